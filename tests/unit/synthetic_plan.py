"""The plan of a plausible run, for tests only: trouble from 30 to 75 s, one expectation of each kind."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from agents.config import Cache, Transport
from testbed.plan import (
    Agent,
    Burst,
    Event,
    Expectation,
    LinkChange,
    LinkState,
    Loss,
    Plan,
    Policy,
    Request,
)
from testbed.shaping import distributions

S = 1_000_000_000
DURATION_S, TROUBLE_S, HEALED_S = 120, 30.0, 75.0
FULL_BPS, SCARCE_BPS = 100_000_000_000, 8_000_000_000
CALM_TOKENS, SCARCE_TOKENS = 19_400, 24_400
PREFILL_A = ["prefill-a1", "prefill-a2", "prefill-a3", "prefill-a4"]
PREFILL_B = ["prefill-b1", "prefill-b2", "prefill-b3"]
DECODE = ["decode-1", "decode-2", "decode-3"]
STEP_S = 0.1


def expectation(kind: str, metric: str, name: str = "", **fields: object) -> Expectation:
    """An expectation over the whole run, unless `fields` say otherwise."""
    given = {"name": name or metric, "kind": kind, "metric": metric, "from_ns": 0, "to_ns": DURATION_S * S}
    return msgspec.convert({**given, **fields}, Expectation)


def expectations() -> tuple[Expectation, ...]:
    """What congestion.yaml would expect, at least one of each kind."""
    return (
        expectation(
            "reaction", "threshold_tokens", "threshold follows the link", event="trouble", within_ns=3 * S,
            level=22_000, crosses="above", line=40,
        ),
        expectation(
            "recovery", "threshold_tokens", "threshold returns", event="healed", within_ns=10 * S,
            low=18_000, high=21_000, line=46,
        ),
        expectation(
            "bound", "ttft_s.p90", "P90 TTFT stays bounded in trouble", high=12.0, line=52,
            from_ns=int(TROUBLE_S * S), to_ns=int(HEALED_S * S),
        ),
        expectation("bound", "requests.failed", "no request is lost", high=0, line=56),
        expectation("bound", "requests.unfinished", "every request ends", high=0, line=58),
        expectation("stability", "threshold_tokens", "no oscillation", high=3, level=1_000, line=60),
    )  # fmt: skip


def make_plan(name: str = "congestion", requests: int = 300, seed: int = 7) -> Plan:
    """A plan with `requests` requests over 120 s."""
    random = Random(seed)
    calm = LinkState(rate_bps=FULL_BPS, buffer_bytes=143_750_000, delay_ns=5_750_000, jitter_ns=200_000)
    loss = Loss(model="gilbert_elliott", p=0.0001, r=0.1, loss_bad=0.3)
    scarce = LinkState(
        rate_bps=SCARCE_BPS, buffer_bytes=143_750_000, delay_ns=5_750_000, jitter_ns=200_000, loss=loss
    )
    arrivals = sorted(random.uniform(0, DURATION_S - 2) for _ in range(requests))
    agents = [
        *(_agent(name, "prefill", "prfaas", "h200") for name in PREFILL_A),
        *(_agent(name, "prefill", "pd", "h20") for name in PREFILL_B),
        *(_agent(name, "decode", "pd", "h20") for name in DECODE),
        _agent("router", "router", "pd", "h20"),
        _agent("client", "client", "pd", "h20"),
    ]
    return Plan(
        version=1,
        name=name,
        question="When the link between the datacenters falls from 100 to 8 Gbps, does the scheduler follow "
        "within 3 s, without losing a request and without oscillating?",
        seed=seed,
        scale=1.0,
        duration_ns=DURATION_S * S,
        drain_ns=60 * S,
        topology="two_dc",
        topology_params={},
        mtu_bytes=9000,
        model="kimi_linear_48b",
        link={"a_to_b": calm, "b_to_a": calm},
        changes=(
            LinkChange(t_ns=0, direction="a_to_b", state=calm, seed=1),
            LinkChange(t_ns=0, direction="b_to_a", state=calm, seed=1),
            LinkChange(t_ns=int(TROUBLE_S * S), direction="a_to_b", state=scarce, seed=1),
            LinkChange(t_ns=int(HEALED_S * S), direction="a_to_b", state=calm, seed=2),
        ),
        bursts=(
            Burst(
                t_ns=40 * S,
                source="a4",
                sink="b8",
                flows=8,
                size_bytes=2_000_000_000,
                congestion_control="cubic",
            ),
        ),
        events=(
            Event(t_ns=int(TROUBLE_S * S), name="trouble", detail="capacity to us falls to 8 Gbps"),
            Event(t_ns=40 * S, name="tenants", detail="other tenants send 2 GB in 8 flows"),
            Event(t_ns=int(HEALED_S * S), name="healed", detail="capacity is 100 Gbps again"),
        ),
        requests=tuple(
            Request(
                id=number,
                t_ns=int(arrival_s * S),
                input_tokens=int(min(131_072, max(1024, random.lognormvariate(9.9, 0.9)))),
                output_tokens=1024,
            )
            for number, arrival_s in enumerate(arrivals)
        ),
        bulk=(),
        agents=tuple(agents),
        transport=Transport(
            payload="synthetic",
            connections=4,
            chunk_bytes=16_777_216,
            layer_group=4,
            congestion_control="cubic",
        ),
        cache=Cache(),
        policy=Policy(
            name="bandwidth_aware",
            threshold_tokens=CALM_TOKENS,
            interval_ns=S // 4,
            params={},
            length_quantiles=(1024, 20_000, 131_072),
            prior_arrival_per_s=2.5,
            conversion_ns=10 * S,
        ),
        expectations=expectations(),
        sample_ns=int(STEP_S * S),
        delay_tables={"uniform": distributions.table("uniform")},
        window_bytes=268_435_456,
        memory_bytes=4_294_967_296,
        stream_interval_tokens=32,
    )


def _agent(
    name: str,
    role: Literal["router", "prefill", "decode", "client"],
    cluster: Literal["prfaas", "pd"],
    profile: str,
) -> Agent:
    return Agent(name=name, role=role, host=name, cluster=cluster, profile=profile, memory_bytes=67_108_864)


def with_expectations(plan: Plan, *wanted: Expectation) -> Plan:
    """The plan with other expectations."""
    return msgspec.structs.replace(plan, expectations=wanted)
