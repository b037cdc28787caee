"""The timeline's words for what is done to agents and hosts, and the section that has faults drawn.

Names of agents and hosts are checked by `resolve`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan, BeforeValidator, Field, Strict, model_validator

from testbed.scenario.entry import Entry
from testbed.scenario.quantities import Duration, PositiveDuration, Section, StepDuration, refusal

MOST_DRAWN: Final = 100
"""Faults of one run."""

LinkKind = Literal["partition", "one_way", "flap", "loss_storm", "black_hole"]
FaultKind = Literal["kill", "restart", "pause", "slow", "corrupt", "fill", "exhaust_ports"]
Kind = Literal[LinkKind, FaultKind, "idle"]
LINK_KINDS: Final[tuple[LinkKind, ...]] = get_args(LinkKind)
KINDS: Final[tuple[Kind, ...]] = (*LINK_KINDS, *get_args(FaultKind), "idle")


def _some(value: Any) -> Any:
    if value == []:
        raise refusal("no kind at all", f"some of {', '.join(KINDS)}")
    return value


class FaultEntry(Entry):
    """Something that is done to an agent, or to a host: the value of the key that is called like its kind."""

    kind: ClassVar[FaultKind]

    @property
    def target(self) -> str:
        """Name of the agent or of the host."""
        name: str = getattr(self, self.kind)
        return name

    @property
    def lasts_ns(self) -> int | None:
        """How long it lasts; None: nothing ends it, or it is done at once."""
        return None

    @property
    def amount(self) -> float:
        """How much of it there is, for kinds that have more and less."""
        return 0.0


class LastingFaultEntry(FaultEntry):
    """One that ends by itself."""

    lasting: PositiveDuration = Field(alias="for")

    @property
    def lasts_ns(self) -> int:
        return self.lasting


class KillEntry(FaultEntry):
    """An agent dies, at once and for good."""

    kind = "kill"
    kill: str


class RestartEntry(FaultEntry):
    """An agent dies at once, and is started again `after` that."""

    kind = "restart"
    restart: str
    after: PositiveDuration

    @property
    def lasts_ns(self) -> int:
        return self.after


class PauseEntry(LastingFaultEntry):
    """An agent stands still for a while; its connections stay."""

    kind = "pause"
    pause: str


class SlowEntry(LastingFaultEntry):
    """An agent runs `1/factor` of the time, and what it computes takes `factor` times as long."""

    kind = "slow"
    slow: str
    factor: Annotated[float, Strict(), AllowInfNan(False), Gt(1), Le(50)]

    @property
    def amount(self) -> float:
        return self.factor


class CorruptEntry(FaultEntry):
    """The next `chunks` of KV that an instance sends have a bit turned over, before they become packets."""

    kind = "corrupt"
    corrupt: str
    chunks: Annotated[int, Strict(), Ge(1), Le(10_000)]

    @property
    def amount(self) -> float:
        return self.chunks


class FillEntry(LastingFaultEntry):
    """A decode instance has no room for further KV for a while."""

    kind = "fill"
    fill: str


class PortsEntry(LastingFaultEntry):
    """A host has no local port left for a while: what is connected stays, nothing new can be opened."""

    kind = "exhaust_ports"
    exhaust_ports: str


class IdleEntry(Entry):
    """The requests that would arrive in so long a time do not come."""

    idle: PositiveDuration


class DrawnFaults(Section):
    """Further entries of the timeline, drawn from the run's seed: `count` of them, all between two times."""

    count: tuple[
        Annotated[int, Strict(), Ge(0), Le(MOST_DRAWN)], Annotated[int, Strict(), Ge(1), Le(MOST_DRAWN)]
    ]
    start: Duration = Field(0, alias="from")
    until: Duration
    longest: StepDuration
    kinds: Annotated[tuple[Kind, ...], BeforeValidator(_some)] = KINDS

    @model_validator(mode="after")
    def _in_order(self) -> DrawnFaults:
        if self.count[0] > self.count[1]:
            raise refusal(f"a count from {self.count[0]} to {self.count[1]}", "the smaller number first")
        if self.longest > self.until - self.start:
            raise refusal("longest is longer than from to until", "a shorter one, or a later until")
        return self
