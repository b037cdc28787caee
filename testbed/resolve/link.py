"""The link over time: everything the scenario says of it as full states of each direction.

A direction's conditions are kept as the scenario gives them until the very end, because a buffer given
as a time follows the rate. An entry changes some fields, the rest stays; the kernel always gets the full
state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from testbed.plan import DIRECTIONS, Direction, LinkChange, LinkState
from testbed.resolve import noise, patterns
from testbed.resolve.conditions import Conditions, Factor, Shapes
from testbed.resolve.findings import Findings
from testbed.resolve.link_checks import Moment, check_states, check_windows
from testbed.resolve.patterns import Making
from testbed.resolve.seeds import derive_seed
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import LinkEntry

WORDS: Final = {"partitioned": "partition", "storm": "noise"}
"""What the scenario calls a field of `Conditions`."""


@dataclass(frozen=True)
class Step:
    """From `t_ns` on, `fields` of a direction have new values; `path` is what says so."""

    t_ns: int
    fields: dict[str, Any]
    path: KeyPath


@dataclass(frozen=True)
class LinkPlan:
    """The initial states, all changes, and the largest numbers that buffers and windows must fit."""

    initial: dict[Direction, LinkState]
    changes: tuple[LinkChange, ...]
    delay_tables: dict[str, bytes]
    need_bytes: int
    """Largest bandwidth-delay product plus largest buffer, in bytes."""


class History:
    """What each field of a direction was when, for entries that begin where others ended."""

    def __init__(self, initial: Conditions) -> None:
        self._initial = initial
        self._times: dict[str, list[int]] = defaultdict(list)
        self._values: dict[str, list[Any]] = defaultdict(list)

    def note(self, step: Step) -> None:
        """Steps of one field come in the order of time; those that do not are a problem elsewhere."""
        for name, value in step.fields.items():
            self._times[name].append(step.t_ns)
            self._values[name].append(value)

    def value(self, name: str, t_ns: int) -> Any:
        """The field at a time, after what happens then."""
        position = bisect_right(self._times[name], t_ns)
        return self._values[name][position - 1] if position else getattr(self._initial, name)


def resolve_link(
    scenario: Scenario, scale: float, seed: int, directory: Path, findings: Findings
) -> LinkPlan:
    """Every state the link will have; problems of single states and of windows go to `findings`.

    `directory` holds the files that the link follows. The first change of each direction is at 0 and
    repeats the initial state: netem starts its random numbers anew with every change, so that what was
    sent before the run does not matter.
    """
    shapes = Shapes(directory, findings)
    making = Making(scenario.duration, seed, directory, shapes, findings)
    starts = {
        direction: shapes.conditions(getattr(scenario.link, direction), ("link", direction))
        for direction in DIRECTIONS
    }
    steps = _steps(scenario, starts, making)
    moments = {
        direction: _moments(direction, starts[direction], steps[direction], scale) for direction in DIRECTIONS
    }
    changes = [
        LinkChange(
            t_ns=moment.t_ns,
            direction=direction,
            state=moment.state,
            seed=derive_seed(seed, "link", direction, number),
        )
        for direction in DIRECTIONS
        for number, moment in enumerate(moments[direction])
    ]
    for direction in DIRECTIONS:
        check_states(moments[direction], scenario.link.mtu, shapes.tables, findings)
    need_bytes = check_windows(scenario, moments, findings)
    return LinkPlan(
        initial={direction: starts[direction].state(scale) for direction in DIRECTIONS},
        changes=tuple(sorted(changes, key=lambda change: (change.t_ns, DIRECTIONS.index(change.direction)))),
        delay_tables=dict(sorted(shapes.tables.items())),
        need_bytes=need_bytes,
    )


def _steps(
    scenario: Scenario, starts: dict[Direction, Conditions], making: Making
) -> dict[Direction, list[Step]]:
    """All entries as steps, by time; an entry begins at the values that those before it left."""
    entries: list[tuple[LinkEntry, KeyPath]] = [
        (entry, ("timeline", index))
        for index, entry in enumerate(scenario.timeline)
        if isinstance(entry, LinkEntry)
    ]
    _refuse_clashes(scenario, entries, making)
    histories = {direction: History(starts[direction]) for direction in DIRECTIONS}
    steps = {direction: list(_standing(scenario, direction, making)) for direction in DIRECTIONS}
    for entry, path in sorted(entries, key=lambda item: item[0].at):
        begin_ns, end_ns = patterns.span(entry, scenario.duration)
        if begin_ns > end_ns:
            continue  # a problem of its own (`resolve_events`)
        for direction in entry.directions:
            history = histories[direction]

            def before(name: str, history: History = history, t_ns: int = entry.at) -> Any:
                return history.value(name, t_ns)

            for t_ns, fields in patterns.steps(entry, direction, before, making, path):
                step = Step(t_ns, fields, path)
                history.note(step)
                steps[direction].append(step)
    return {direction: sorted(taken, key=attrgetter("t_ns")) for direction, taken in steps.items()}


def _standing(scenario: Scenario, direction: Direction, making: Making) -> Iterator[Step]:
    """What a direction itself says of its whole run: noise and an outage of drawn length."""
    spec = getattr(scenario.link, direction)
    path: KeyPath = ("link", direction)
    steps_of_noise = noise.steps_in(spec.noise, scenario.duration) if spec.noise else 0
    if spec.noise is not None and making.bearable(steps_of_noise, (*path, "noise")):
        drawn = noise.factors(spec.noise, 0, scenario.duration, making.seed, "noise", direction)
        for t_ns, factor in drawn:
            yield Step(t_ns, {"noise": Factor(factor, noise.least(spec.noise))}, (*path, "noise"))
    if spec.outage is not None:
        times_ns = patterns.draw_outage(spec.outage, 0, scenario.duration, making.seed)
        for t_ns, fields in patterns.outage(times_ns):
            yield Step(t_ns, fields, (*path, "outage"))


def _refuse_clashes(scenario: Scenario, entries: list[tuple[LinkEntry, KeyPath]], making: Making) -> None:
    """Two entries must not move the same field of a direction at the same time."""
    spans: dict[tuple[Direction, str], list[tuple[int, int, KeyPath]]] = defaultdict(list)
    for direction in DIRECTIONS:
        if getattr(scenario.link, direction).outage is not None:
            spans[direction, "partitioned"].append((0, scenario.duration, ("link", direction, "outage")))
    for entry, path in entries:
        for direction in entry.directions:
            for name in sorted(patterns.fields_of(entry, making, path)):
                spans[direction, name].append((*patterns.span(entry, scenario.duration), path))
    clashes: dict[tuple[KeyPath, KeyPath], set[str]] = defaultdict(set)
    for (_, name), taken in spans.items():
        for one, other in _overlaps(sorted(taken, key=lambda item: item[0])):
            first, second = sorted((one, other), key=lambda path: (path[0] == "timeline", path))
            clashes[first, second].add(WORDS.get(name, name))
    for (first, second), names in clashes.items():
        line = making.findings.source.line(first)
        found = f"sets {', '.join(sorted(names))} while the entry of line {line} is at it"
        making.findings.add(second, found, "one entry at a time for each value of a direction")


def _overlaps(spans: list[tuple[int, int, KeyPath]]) -> Iterator[tuple[KeyPath, KeyPath]]:
    """Of spans by their begin, each that begins with or within an earlier one, with that one."""
    longest: tuple[int, int, KeyPath] | None = None
    for span in spans:
        if longest is not None and (span[0] < longest[1] or span[0] == longest[0]):
            yield longest[2], span[2]
        if longest is None or span[1] >= longest[1]:
            longest = span


def _moments(direction: Direction, start: Conditions, steps: list[Step], scale: float) -> list[Moment]:
    """The direction's states at 0 and at every time at which something changes."""
    conditions = start
    moments = {0: Moment(0, conditions.state(scale), ("link", direction), conditions.least_bps(scale))}
    for t_ns, group in groupby(steps, key=attrgetter("t_ns")):
        fields: dict[str, Any] = {}
        for step in group:
            fields |= step.fields
        conditions = replace(conditions, **fields)
        least_bps = conditions.least_bps(scale)
        moments[t_ns] = Moment(t_ns, conditions.state(scale), step.path, least_bps)
    return list(moments.values())
