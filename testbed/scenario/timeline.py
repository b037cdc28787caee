"""The timeline's words: what happens to the link and beside it, one class per kind of entry.

What is done to agents and hosts stands in `faults.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from annotated_types import Ge, Le, MinLen, MultipleOf
from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag, model_validator

from testbed import units
from testbed.plan import Direction
from testbed.scenario.entry import Entry
from testbed.scenario.faults import (
    CorruptEntry,
    FillEntry,
    IdleEntry,
    KillEntry,
    PauseEntry,
    PortsEntry,
    RestartEntry,
    SlowEntry,
)
from testbed.scenario.link import LinkPatch, Noise, Outage
from testbed.scenario.quantities import (
    Duration,
    NonNegativeNumber,
    PositiveDuration,
    Rate,
    Section,
    Size,
    StepDuration,
    did_you_mean,
    only_tag,
    refusal,
)

CongestionControl = Literal["cubic", "bbr", "reno", "dctcp"]
Flows = Annotated[int, Strict(), Ge(1), Le(256)]
LONGEST_FILTER: Final = 4096
SMALLEST_DATAGRAM: Final = 64
"""Bytes of an IP packet: its header, that of UDP, a number and a time."""


class LinkEntry(Entry):
    """An entry that acts on the WAN."""

    link: Direction | Literal["both"]

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions the entry acts on."""
        return ("a_to_b", "b_to_a") if self.link == "both" else (self.link,)


class SetEntry(LinkEntry):
    """A step: from `at` on, the link has these values, for a while or until something else sets them."""

    set: LinkPatch
    lasting: StepDuration | None = Field(None, alias="for")


class RampEntry(LinkEntry):
    """A ramp: the values move linearly from those at `at`, and arrive after `over`, in `steps` steps."""

    ramp: LinkPatch
    over: PositiveDuration
    steps: Annotated[int, Strict(), Ge(1), Le(10_000)] | None = None


class PartitionEntry(LinkEntry):
    """An outage: nothing passes from `at` on, for a while or to the end."""

    partition: Literal[True]
    lasting: StepDuration | None = Field(None, alias="for")


class LastingEntry(LinkEntry):
    """An entry that acts until a moment, and then leaves what it found; by default to the end of the run."""

    until: Duration | None = None


class Flap(Section):
    """How long nothing passes, and how long everything does."""

    down: StepDuration
    up: StepDuration


class FlapEntry(LastingEntry):
    """A link that goes down and comes up again and again, down first."""

    flap: Flap


class WaveEntry(LastingEntry):
    """The values swing between those at `at` and these, in `steps` steps a period."""

    wave: LinkPatch
    shape: Literal["sine", "square", "sawtooth", "triangle"] = "sine"
    period: PositiveDuration
    steps: Annotated[int, Strict(), Ge(2), Le(1000), MultipleOf(2)] = 20


class TraceEntry(LastingEntry):
    """The values of a file (CSV: `t` and any of rate, delay, jitter, loss), each until the next."""

    trace: Annotated[str, MinLen(1)]
    repeat: Annotated[bool, Strict()] = False


class MahimahiEntry(LastingEntry):
    """The rate of a mahimahi trace, counted in bins of `bin` and rescaled to `mean_rate`, over and over."""

    mahimahi: Annotated[str, MinLen(1)]
    mean_rate: Rate
    bin: StepDuration = units.parse_duration_ns("100ms")


class NoiseEntry(LastingEntry):
    """Noise for a while, on top of whatever rate holds."""

    noise: Noise


class OutageEntry(LinkEntry):
    """One outage of drawn length at a drawn moment between `at` and `until`."""

    outage: Outage
    until: Duration


def _listed(value: Any) -> Any:
    if value == []:
        raise refusal("nobody", "a host, or a list of hosts")
    return [value] if isinstance(value, str) else value


class Background(Section):
    """Other tenants' bursts over real TCP: every sender `burst` bytes over `flows` connections."""

    sources: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(alias="from")
    sink: str = Field(alias="to")
    flows: Flows = 1
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


class Tenants(Section):
    """Others who come and go: each of `flows` sends one transfer, pauses, sends the next, over real TCP.

    Sizes are lognormal with mean `size` and coefficient of variation `size_cv`, pauses exponential.
    """

    source: str = Field(alias="from")
    sink: str = Field(alias="to")
    flows: Flows = 1
    size: Size
    size_cv: Annotated[NonNegativeNumber, Le(100)] = 0.0
    pause: Duration = 0
    congestion_control: CongestionControl = "cubic"
    until: Duration | None = None


class TenantsEntry(Entry):
    """Other tenants from `at` on, to the end of the run by default."""

    tenants: Tenants


class Microbursts(Section):
    """UDP in bursts too short for any average: `rate` for `length`, every `every`, in packets of one size."""

    source: str = Field(alias="from")
    sink: str = Field(alias="to")
    rate: Rate
    packet: Annotated[int, Strict(), Ge(SMALLEST_DATAGRAM), Le(9000)] = 1500
    length: PositiveDuration
    every: PositiveDuration
    until: Duration | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Microbursts:
        if self.length > self.every:
            raise refusal("length is above every: one burst would run into the next", "length up to every")
        if self.rate * self.length < self.packet * 8 * units.NS_PER_S:
            raise refusal("a burst would not hold one packet", "a longer length, or a higher rate")
        return self


class MicroburstsEntry(Entry):
    """Microbursts from `at` on, to the end of the run by default."""

    microbursts: Microbursts


ENTRIES: Final[dict[str, type[Entry]]] = {
    "set": SetEntry,
    "ramp": RampEntry,
    "partition": PartitionEntry,
    "flap": FlapEntry,
    "wave": WaveEntry,
    "trace": TraceEntry,
    "mahimahi": MahimahiEntry,
    "noise": NoiseEntry,
    "outage": OutageEntry,
    "background": BackgroundEntry,
    "tenants": TenantsEntry,
    "microbursts": MicroburstsEntry,
    "kill": KillEntry,
    "restart": RestartEntry,
    "pause": PauseEntry,
    "slow": SlowEntry,
    "corrupt": CorruptEntry,
    "fill": FillEntry,
    "exhaust_ports": PortsEntry,
    "idle": IdleEntry,
}
"""By the key that says what an entry is."""


def _of_one_kind(value: Any) -> Any:
    """Refuses a mapping that says none of the kinds, or several, before its keys are looked at."""
    if not isinstance(value, dict) or only_tag(value, tuple(ENTRIES)):
        return value
    allowed = f"exactly one of the keys {', '.join(ENTRIES)}"
    shared = {key for entry in ENTRIES.values() for key in entry.yaml_keys()}
    odd = [key for key in value if key not in shared]
    hints = [hint for key in odd if (hint := did_you_mean(key, ENTRIES))]
    raise refusal("a timeline entry of no known kind", allowed, hints[0] if hints else "")


TimelineEntry: TypeAlias = Annotated[
    Annotated[SetEntry, Tag("<set>")]
    | Annotated[RampEntry, Tag("<ramp>")]
    | Annotated[PartitionEntry, Tag("<partition>")]
    | Annotated[FlapEntry, Tag("<flap>")]
    | Annotated[WaveEntry, Tag("<wave>")]
    | Annotated[TraceEntry, Tag("<trace>")]
    | Annotated[MahimahiEntry, Tag("<mahimahi>")]
    | Annotated[NoiseEntry, Tag("<noise>")]
    | Annotated[OutageEntry, Tag("<outage>")]
    | Annotated[BackgroundEntry, Tag("<background>")]
    | Annotated[TenantsEntry, Tag("<tenants>")]
    | Annotated[MicroburstsEntry, Tag("<microbursts>")]
    | Annotated[KillEntry, Tag("<kill>")]
    | Annotated[RestartEntry, Tag("<restart>")]
    | Annotated[PauseEntry, Tag("<pause>")]
    | Annotated[SlowEntry, Tag("<slow>")]
    | Annotated[CorruptEntry, Tag("<corrupt>")]
    | Annotated[FillEntry, Tag("<fill>")]
    | Annotated[PortsEntry, Tag("<exhaust_ports>")]
    | Annotated[IdleEntry, Tag("<idle>")],
    Discriminator(
        lambda value: only_tag(value, tuple(ENTRIES)),
        custom_error_type="refused",
        custom_error_message="a timeline entry of no known kind",
        custom_error_context={"allowed": f"exactly one of the keys {', '.join(ENTRIES)}"},
    ),
    BeforeValidator(_of_one_kind),
]


def _printable(value: Any) -> Any:
    """Refuses what no command line can hold."""
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST_FILTER:
        raise refusal(f"a filter of {len(value)} characters", f"at most {LONGEST_FILTER}")
    if not (value.isascii() and value.isprintable()):
        raise refusal("a filter with characters that do not print", "one line of printable ASCII")
    return value


class Capture(Section):
    """Packets of one direction of the link, or of one host, into the run directory."""

    link: Direction | None = None
    host: str | None = None
    snap: Annotated[Size, Le(262_144)] = units.parse_size_bytes("96B")
    filter: Annotated[str, BeforeValidator(_printable)] = ""

    @model_validator(mode="after")
    def _one_place(self) -> Capture:
        if (self.link is None) == (self.host is None):
            raise refusal("a capture of no one place", "exactly one of the keys link, host")
        return self
