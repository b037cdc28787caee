"""What a scenario file may say: one class per section, every field with its unit parsed.

Nothing here looks at the machine, at other files or at the lists of policies, profiles and hosts:
those names are checked by `resolve`. docs/writing-a-scenario.md shows each field in use.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from annotated_types import Ge, Le, MinLen
from pydantic import Field, Strict, model_validator

from testbed.scenario.expectations import Expectation
from testbed.scenario.link import Link
from testbed.scenario.quantities import (
    Count,
    CountOrZero,
    Duration,
    Number,
    PositiveDuration,
    PositiveNumber,
    RequestRate,
    Section,
    Size,
    refusal,
)
from testbed.scenario.timeline import Capture, CongestionControl, TimelineEntry
from testbed.units import parse_duration_ns, parse_size_bytes

MIN_SCALE: Final = 1e-4


class Topology(Section):
    """A key of `topologies.TOPOLOGIES` and how many hosts each datacenter has."""

    name: str
    prefill_hosts: Annotated[int, Strict(), Ge(1), Le(99)] = 4
    pd_hosts: Annotated[int, Strict(), Ge(1), Le(99)] = 8


class PrefillCluster(Section):
    """The PrfaaS cluster in DC A: prefill instances on hosts a1, a2, ..."""

    instances: Count
    profile: str


class PdCluster(Section):
    """The PD cluster in DC B: prefill instances on b1, b2, ..., decode instances on the hosts after them."""

    prefill: Count
    decode: Count
    profile: str


class Clusters(Section):
    """Who computes where."""

    prfaas: PrefillCluster
    pd: PdCluster


class Transport(Section):
    """How KV crosses between two instances: TCP connections, chunk size, and what the bytes are."""

    payload: Literal["synthetic", "verified"] = "synthetic"
    connections: Annotated[int, Strict(), Ge(1), Le(256)] = 4
    chunk: Annotated[Size, Ge(2**12), Le(2**30)] = parse_size_bytes("16MiB")
    layer_group: Annotated[int, Strict(), Ge(1), Le(1000)] = 1
    congestion_control: CongestionControl = "cubic"
    window: Annotated[Size, Ge(2**16), Le(2**31 - 1)] | None = None
    """Largest TCP window; by default what the link needs."""


class Policy(Section):
    """The scheduler under test: a key of `agents.policies.POLICIES`, its first threshold, its parameters."""

    name: str
    threshold: CountOrZero
    interval: Annotated[PositiveDuration, Ge(10_000_000), Le(60_000_000_000)] = parse_duration_ns("250ms")
    params: dict[str, Number] = Field(default_factory=dict)


class LognormalWorkload(Section):
    """Poisson arrivals; input lengths from a lognormal distribution cut at `low` and `high` tokens."""

    kind: Literal["lognormal"]
    rate: RequestRate
    mu: Number
    sigma: PositiveNumber
    low: Count
    high: Count
    output_tokens: Annotated[Count, Le(131_072)]

    @model_validator(mode="after")
    def _not_empty(self) -> LognormalWorkload:
        if self.low > self.high:
            raise refusal(f"low ({self.low}) is above high ({self.high})", "low up to high")
        return self


class TraceWindow(Section):
    """The part of a trace to replay: from `start`, for `length` (default: as long as the run)."""

    start: Duration = 0
    length: PositiveDuration | None = None


class MooncakeWorkload(Section):
    """Replay of a trace in Mooncake's format. `time_scale` stretches its time: 0.5 is twice the load."""

    kind: Literal["mooncake"]
    trace: Annotated[str, MinLen(1)]
    window: TraceWindow = TraceWindow()
    time_scale: Annotated[PositiveNumber, Ge(1e-3), Le(1e3)] = 1.0
    clamp: Annotated[bool, Strict()] = False
    """Shorten inputs that the compute profiles do not reach, instead of refusing the trace."""


class BulkSpec(Section):
    """One plain transfer of `size` bytes."""

    at: Duration
    source: str = Field(alias="from")
    sink: str = Field(alias="to")
    size: Size


class BulkWorkload(Section):
    """No requests: transfers that measure the link itself."""

    kind: Literal["bulk"]
    transfers: Annotated[tuple[BulkSpec, ...], MinLen(1)]


Workload: TypeAlias = Annotated[
    LognormalWorkload | MooncakeWorkload | BulkWorkload, Field(discriminator="kind")
]


class Scenario(Section):
    """One question, and all it takes to answer it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,60}$")]
    question: Annotated[str, MinLen(1)]
    seed: Annotated[int, Strict(), Ge(0), Le(2**63 - 1)] = 1
    scale: Annotated[float, Strict(), Ge(MIN_SCALE), Le(1)] = 1.0
    duration: PositiveDuration
    drain: Duration = parse_duration_ns("60s")
    sample: PositiveDuration = parse_duration_ns("100ms")
    topology: Topology
    model: str | None = None
    clusters: Clusters | None = None
    transport: Transport = Transport()
    policy: Policy | None = None
    stream_interval: Count = 256
    link: Link
    workload: Workload
    timeline: tuple[TimelineEntry, ...] = ()
    capture: tuple[Capture, ...] = ()
    expect: tuple[Expectation, ...] = ()
