"""The sections about KV on its way: how it crosses, who gives up when, and what happens then."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, Field, Strict, model_validator

from agents import config
from agents.timeouts import ladder
from testbed.scenario.quantities import (
    Duration,
    PositiveDuration,
    PositiveNumber,
    Section,
    Size,
    did_you_mean,
    refusal,
)
from testbed.scenario.timeline import CongestionControl
from testbed.units import parse_size_bytes

_TIMEOUTS, _FAILURES = config.Timeouts(), config.Failures()
FLAWS: tuple[str, ...] = get_args(config.Flaw)


class CongestionControls(Section):
    """One per class of connections: KV between the datacenters, KV within one, the router's own."""

    wan: CongestionControl = "cubic"
    lan: CongestionControl = "cubic"
    control: CongestionControl = "cubic"


def _for_kv(value: Any) -> Any:
    return {"wan": value, "lan": value} if isinstance(value, str) else value


class Transport(Section):
    """How KV crosses between two instances: connections, chunks, order, bounds, and what the bytes are."""

    payload: Literal["synthetic", "verified"] = "synthetic"
    connections: Annotated[int, Strict(), Ge(1), Le(256)] = 4
    chunk: Annotated[Size, Ge(2**12), Le(2**30)] = parse_size_bytes("16MiB")
    layer_group: Annotated[int, Strict(), Ge(1), Le(1000)] = 1
    congestion_control: Annotated[CongestionControls, BeforeValidator(_for_kv)] = CongestionControls()
    window: Annotated[Size, Ge(2**16), Le(2**31 - 1)] | None = None
    """Largest TCP window; by default what the link needs."""
    compression: str | None = None
    """A key of `agents.profiles.COMPRESSIONS`, for policies that compress KV."""
    handover: Literal["source_first", "destination_first"] = "source_first"
    priority: Literal["fifo", "least_slack"] = "fifo"
    ttft_target: PositiveDuration | None = None
    """What `least_slack` counts the time to spare from."""
    pacing: Annotated[PositiveNumber, Gt(0), Le(1)] | None = None
    """Share of the link's rate at the start that all connections of DC A together may send at."""
    send_pool: Size | None = None
    receive_pool: Size | None = None
    """KV that one instance holds at most; by default so much that memory is never what binds. Scaled."""

    @model_validator(mode="after")
    def _slack_has_a_target(self) -> Transport:
        if (self.priority == "least_slack") != (self.ttft_target is not None):
            raise refusal(
                "one of priority: least_slack and ttft_target without the other", "both of them, or none"
            )
        return self


class Timeouts(Section):
    """How long each waits without any progress (`agents.config.Timeouts`), longest first."""

    client: PositiveDuration = _TIMEOUTS.client_ns
    router: PositiveDuration = _TIMEOUTS.router_ns
    decode_wait: PositiveDuration = _TIMEOUTS.decode_wait_ns
    lease: PositiveDuration = _TIMEOUTS.lease_ns
    transfer: Annotated[PositiveDuration, Ge(10_000_000)] = _TIMEOUTS.transfer_ns

    def resolved(self) -> config.Timeouts:
        """As the agents get it."""
        return config.Timeouts(
            client_ns=self.client,
            router_ns=self.router,
            decode_wait_ns=self.decode_wait,
            lease_ns=self.lease,
            transfer_ns=self.transfer,
        )

    @model_validator(mode="after")
    def _one_ladder(self) -> Timeouts:
        wrong = ladder(self.resolved())
        if wrong:
            raise refusal("; ".join(wrong), "client > router > decode_wait > lease > transfer")
        return self


class Failures(Section):
    """What becomes of a request that lost an instance or its KV (`agents.config.Failures`)."""

    policy: Literal["recompute", "retry", "fail"] = _FAILURES.policy
    attempts: Annotated[int, Strict(), Ge(1), Le(config.MAX_ATTEMPTS)] = _FAILURES.attempts
    """All in all."""
    silence: Annotated[Duration, Ge(1_000_000_000)] = _FAILURES.silence_ns
    probe: Annotated[PositiveDuration, Ge(10_000_000)] = _FAILURES.probe_ns
    probe_max: PositiveDuration = _FAILURES.probe_max_ns

    def resolved(self) -> config.Failures:
        """As the agents get it."""
        return config.Failures(
            policy=self.policy,
            attempts=self.attempts,
            silence_ns=self.silence,
            probe_ns=self.probe,
            probe_max_ns=self.probe_max,
        )

    @model_validator(mode="after")
    def _grows(self) -> Failures:
        if self.probe > self.probe_max:
            raise refusal("probe is above probe_max", "probe up to probe_max")
        return self


def _flaw(value: Any) -> Any:
    if value not in FLAWS:
        raise refusal(f"unknown flaw {value!r}", ", ".join(FLAWS), did_you_mean(str(value), FLAWS))
    return value


FlawName = Annotated[config.Flaw, BeforeValidator(_flaw)]
Flaws = Annotated[tuple[FlawName, ...], Field(max_length=len(FLAWS))]
