"""The workload section: requests drawn or replayed, several of these at once, or plain transfers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BeforeValidator, Field, Strict, model_validator

from agents.cache.pool import BLOCK_TOKENS
from testbed.scenario.arrivals import Arrivals, PoissonArrivals
from testbed.scenario.quantities import (
    Count,
    Duration,
    NonNegativeNumber,
    Number,
    PositiveDuration,
    PositiveNumber,
    RequestRate,
    Section,
    Size,
    parsed,
    refusal,
)
from testbed.units import format_duration_ns, parse_ratio

OutputTokens = Annotated[Count, Le(131_072)]


class LengthSpec(Section):
    """Token counts from a lognormal distribution (`mu`, `sigma` of the logarithm) cut at `low` and `high`."""

    mu: Number
    sigma: PositiveNumber
    low: Count
    high: Count

    @model_validator(mode="after")
    def _not_empty(self) -> LengthSpec:
        if self.low > self.high:
            raise refusal(f"low ({self.low}) is above high ({self.high})", "low up to high")
        return self


class RequestSpec(Section):
    """What every workload of requests has: whose they are, and when in the run they may arrive."""

    tenant: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")] = "default"
    start: Duration = Field(0, alias="from")
    until: Duration | None = None
    """None: the end of the run."""

    def phase(self, duration_ns: int) -> tuple[int, int]:
        """When its requests may arrive: from the first time on, before the second."""
        return self.start, duration_ns if self.until is None else self.until

    @model_validator(mode="after")
    def _lasts(self) -> RequestSpec:
        if self.until is not None and self.until <= self.start:
            until, start = format_duration_ns(self.until), format_duration_ns(self.start)
            raise refusal(f"until {until} is not after from {start}", "from before until")
        return self


class LognormalWorkload(LengthSpec, RequestSpec):
    """Arrivals with lognormal input lengths, drawn one by one or evenly spread (`stratified`)."""

    kind: Literal["lognormal"]
    rate: RequestRate
    arrivals: Arrivals = PoissonArrivals()
    output_tokens: OutputTokens
    draw: Literal["independent", "stratified"] = "independent"


class SharedPrompt(Section):
    """A system prompt of `tokens` in front of every session, one of `prefixes` different ones.

    The n-th of them is drawn with a weight of 1 / n^zipf.
    """

    tokens: Annotated[Count, Ge(BLOCK_TOKENS)]
    prefixes: Annotated[Count, Le(100_000)] = 1
    zipf: Annotated[NonNegativeNumber, Le(10)] = 1.0


class SessionsWorkload(RequestSpec):
    """Conversations; each turn's prompt is all that was said before and an increment.

    The number of turns is geometric with mean `turns`. A turn follows the arrival of the one before after
    `think_min` and an exponential time, `think` in the mean.
    """

    kind: Literal["sessions"]
    rate: RequestRate
    """Sessions per second."""
    arrivals: Arrivals = PoissonArrivals()
    """Of sessions."""
    turns: Annotated[Number, Ge(1), Le(1000)]
    first: LengthSpec
    """Of the first prompt, without what is `shared`."""
    increment: LengthSpec
    output_tokens: OutputTokens
    think: PositiveDuration
    think_min: Duration = 0
    shared: SharedPrompt | None = None

    @model_validator(mode="after")
    def _mean_above_least(self) -> SessionsWorkload:
        if self.think_min > self.think:
            least, mean = format_duration_ns(self.think_min), format_duration_ns(self.think)
            raise refusal(f"think_min ({least}) is above think ({mean})", "think_min up to think, the mean")
        return self


class TraceWindow(Section):
    """The part of a trace to replay: from `start`, for `length` (default: as long as the run)."""

    start: Duration = 0
    length: PositiveDuration | None = None


class TraceWorkload(RequestSpec):
    """Replay of a trace in the format `kind`. `time_scale` stretches its time: 0.5 is twice the load."""

    kind: Literal["mooncake", "azure", "burstgpt", "aiperf", "vidur"]
    trace: Annotated[str, MinLen(1)]
    window: TraceWindow = TraceWindow()
    time_scale: Annotated[PositiveNumber, Ge(1e-3), Le(1e3)] = 1.0
    sample: Annotated[float, parsed(parse_ratio), Gt(0)] = 1.0
    """Share of its sessions that is replayed, or of its rows where they name no session."""
    clamp: Annotated[bool, Strict()] = False
    """Shorten inputs that the compute profiles do not reach, instead of refusing the trace."""


RequestWorkload: TypeAlias = LognormalWorkload | SessionsWorkload | TraceWorkload


def _some(parts: Any) -> Any:
    if parts == []:
        raise refusal("no part", "a list of workloads of requests")
    return parts


class MixWorkload(Section):
    """Several workloads of requests at once; parts share no prefixes."""

    kind: Literal["mix"]
    parts: Annotated[
        tuple[Annotated[RequestWorkload, Field(discriminator="kind")], ...], BeforeValidator(_some)
    ]


class BulkSpec(Section):
    """One plain transfer of `size` bytes."""

    at: Duration
    source: str = Field(alias="from")
    sink: str = Field(alias="to")
    size: Size


class BulkWorkload(Section):
    """No requests: transfers that measure the link itself; or, of kind `none`, nothing at all."""

    kind: Literal["bulk", "none"]
    transfers: tuple[BulkSpec, ...] = ()

    @model_validator(mode="after")
    def _transfers_of_their_kind(self) -> BulkWorkload:
        if self.kind == "bulk" and not self.transfers:
            raise refusal("bulk without transfers", "one or more transfers, or kind: none")
        if self.kind == "none" and self.transfers:
            raise refusal("none with transfers", "kind: bulk, or no transfers")
        return self


Workload: TypeAlias = Annotated[
    LognormalWorkload | SessionsWorkload | TraceWorkload | MixWorkload | BulkWorkload,
    Field(discriminator="kind"),
]
