"""What the rules of the lint look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from testbed.plan import DIRECTIONS, Direction, LinkState, Plan
from testbed.resolve.link_checks import Moment
from testbed.resolve.patterns import span
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import LinkEntry
from topologies import TOPOLOGIES

Clock: TypeAlias = Literal["virtual", "real"]
Warned: TypeAlias = Iterator[tuple[KeyPath, str, str]]
"""Place; what and why; what to write instead."""


@dataclass(frozen=True)
class View:
    """What the rules look at; kernel and clock are None where nobody has chosen them yet."""

    scenario: Scenario
    plan: Plan
    directory: Path
    """Where the files of the link lie."""
    kernel: str | None
    clock: Clock | None

    @cached_property
    def moments(self) -> dict[Direction, list[Moment]]:
        """The states of each direction, and what of the scenario they come from."""
        moments = {each: [Moment(0, self.plan.link[each], ("link", each))] for each in DIRECTIONS}
        for change in self.plan.changes:
            path = self._path(change.direction, change.t_ns)
            moments[change.direction].append(Moment(change.t_ns, change.state, path))
        return moments

    def fullest(self, direction: Direction) -> tuple[int, int]:
        """Rate (bps) and round trip (ns) when most is in flight in a direction: of all the run's states."""
        back = DIRECTIONS[1 - DIRECTIONS.index(direction)]
        back_ns = max(moment.state.delay_ns for moment in self.moments[back])
        states = [moment.state for moment in self.moments[direction]]
        fullest = max(states, key=lambda state: state.rate_bps * (state.delay_ns + back_ns))
        return fullest.rate_bps, fullest.delay_ns + back_ns

    def first(self, direction: Direction, meets: Callable[[LinkState], bool]) -> Moment | None:
        """The first moment of a direction whose state meets a condition."""
        return next((moment for moment in self.moments[direction] if meets(moment.state)), None)

    def _path(self, direction: Direction, t_ns: int) -> KeyPath:
        """The entry that acts on the direction at a time, the latest to begin of several."""
        acting = [
            (entry.at, index)
            for index, entry in enumerate(self.scenario.timeline)
            if isinstance(entry, LinkEntry) and direction in entry.directions
            if entry.at <= t_ns <= span(entry, self.plan.duration_ns)[1]
        ]
        return ("timeline", max(acting)[1]) if acting else ("link", direction)

    def side_a(self) -> set[str]:
        """The hosts from which `a_to_b` leads away."""
        topo = TOPOLOGIES[self.plan.topology](**self.plan.topology_params)
        edge = topo.wan["a_to_b"][0][0]
        pairs = [pair for one, other in topo.links() for pair in ((one, other), (other, one))]
        switches = {other for one, other in pairs if one == edge and topo.isSwitch(other)}
        return {other for one, other in pairs if one in switches and other != edge}

    def direction(self, source: str, sink: str) -> Direction | None:
        """The direction that a transfer crosses, if it leaves its datacenter."""
        side_a = self.side_a()
        if (source in side_a) == (sink in side_a):
            return None
        return "a_to_b" if source in side_a else "b_to_a"
