"""What a scenario file may say: one class per section, every field with its unit parsed.

Nothing here looks at the machine, at other files or at the lists of policies, profiles and hosts:
those names are checked by `resolve`. docs/writing-a-scenario.md shows each field in use.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from annotated_types import Ge, Le, MinLen
from pydantic import Discriminator, Field, Strict, Tag, field_validator, model_validator

from testbed.plan import Direction
from testbed.scenario.expectations import Expectation
from testbed.scenario.quantities import (
    BufferField,
    Count,
    CountOrZero,
    Duration,
    Number,
    PositiveDuration,
    PositiveNumber,
    Probability,
    Rate,
    RequestRate,
    Section,
    Size,
    only_tag,
    refusal,
)
from testbed.units import parse_duration_ns, parse_size_bytes

MIN_SCALE: Final = 1e-4
CongestionControl = Literal["cubic", "bbr", "reno"]


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


class Policy(Section):
    """The scheduler under test: a key of `agents.policies.POLICIES`, its first threshold, its parameters."""

    name: str
    threshold: CountOrZero
    interval: Annotated[PositiveDuration, Ge(10_000_000), Le(60_000_000_000)] = parse_duration_ns("250ms")
    params: dict[str, Number] = Field(default_factory=dict)


class GilbertElliott(Section):
    """Burst loss of two states. Per packet: good to bad `p`, bad to good `r`, lost in bad and in good."""

    model: Literal["gilbert_elliott"]
    p: Probability
    r: Probability
    bad: Probability = 1.0
    good: Probability = 0.0

    @field_validator("r")
    @classmethod
    def _ends(cls, r: float) -> float:
        if r == 0:
            raise refusal("r is 0: the bad state would never end", "a ratio above 0")
        return r


def _loss_form(value: Any) -> str:
    return "gilbert_elliott" if isinstance(value, dict | GilbertElliott) else "ratio"


Loss: TypeAlias = Annotated[
    Annotated[Probability, Tag("ratio")] | Annotated[GilbertElliott, Tag("gilbert_elliott")],
    Discriminator(_loss_form),
]


class LinkDirection(Section):
    """One direction of the WAN at the start."""

    rate: Rate
    buffer: BufferField
    delay: Duration
    jitter: Duration = 0
    loss: Loss = 0.0


class LinkPatch(Section):
    """Changes to a direction; what is not named stays as it is."""

    rate: Rate | None = None
    buffer: BufferField | None = None
    delay: Duration | None = None
    jitter: Duration | None = None
    loss: Loss | None = None

    @model_validator(mode="before")
    @classmethod
    def _says_something(cls, data: Any) -> Any:
        if data == {}:
            raise refusal("an empty mapping", f"at least one of {', '.join(cls.model_fields)}")
        return data

    def changes(self) -> dict[str, Any]:
        """The fields that were named, by name."""
        return {
            name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set
        }


class Link(Section):
    """Both directions and what they share. `mtu` is in bytes."""

    mtu: Annotated[int, Strict(), Ge(1280), Le(9000)] = 9000
    a_to_b: LinkDirection
    b_to_a: LinkDirection


class Entry(Section):
    """What every timeline entry has: a moment, and a name that expectations can refer to."""

    at: Duration
    event: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")] | None = None


class LinkEntry(Entry):
    """An entry that acts on the WAN."""

    link: Direction | Literal["both"]

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions the entry acts on."""
        return ("a_to_b", "b_to_a") if self.link == "both" else (self.link,)


class SetEntry(LinkEntry):
    """A step: from `at` on, the link has these values."""

    set: LinkPatch


class RampEntry(LinkEntry):
    """A ramp: the values move linearly from those at `at`, and arrive after `over`, in `steps` steps."""

    ramp: LinkPatch
    over: PositiveDuration
    steps: Annotated[int, Strict(), Ge(1), Le(10_000)] | None = None


class PartitionEntry(LinkEntry):
    """An outage: nothing passes from `at` on, for a while or to the end."""

    partition: Literal[True]
    lasting: PositiveDuration | None = Field(None, alias="for")


class Background(Section):
    """Other tenants' bursts over real TCP: `burst` bytes over `flows` connections, again and again."""

    source: str = Field(alias="from")
    sink: str = Field(alias="to")
    flows: Annotated[int, Strict(), Ge(1), Le(256)] = 1
    burst: Size
    every: PositiveDuration | None = None
    until: Duration | None = None
    congestion_control: CongestionControl = "cubic"

    @model_validator(mode="after")
    def _both_or_none(self) -> Background:
        if (self.every is None) != (self.until is None):
            raise refusal("one of every and until without the other", "both (repeated bursts) or none (one)")
        return self


class BackgroundEntry(Entry):
    """Bursts of other tenants that begin at `at`."""

    background: Background


def _entry_form(value: Any) -> str | None:
    return only_tag(value, ("set", "ramp", "partition", "background"))


TimelineEntry: TypeAlias = Annotated[
    Annotated[SetEntry, Tag("<set>")]
    | Annotated[RampEntry, Tag("<ramp>")]
    | Annotated[PartitionEntry, Tag("<partition>")]
    | Annotated[BackgroundEntry, Tag("<background>")],
    Discriminator(
        _entry_form,
        custom_error_type="refused",
        custom_error_message="a timeline entry of no known kind",
        custom_error_context={"allowed": "exactly one of the keys set, ramp, partition, background"},
    ),
]


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
    expect: tuple[Expectation, ...] = ()
