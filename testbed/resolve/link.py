"""The link over time: the timeline's steps, ramps and outages as full states of each direction.

A direction's conditions are kept as the scenario gives them until the very end, because a buffer given
as a time follows the rate. `set` and `ramp` change some fields, the rest stays; the kernel always gets
the full state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from testbed.plan import DIRECTIONS, Direction, LinkChange, LinkState, Loss
from testbed.resolve.findings import Findings
from testbed.resolve.seeds import derive_seed
from testbed.scenario.model import (
    GilbertElliott,
    LinkDirection,
    LinkEntry,
    PartitionEntry,
    RampEntry,
    Scenario,
    SetEntry,
)
from testbed.scenario.quantities import Buffer
from testbed.scenario.source import KeyPath
from testbed.units import MAX_INTEGER, NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes

RAMP_STEP_NS: Final = 100_000_000
MAX_RAMP_STEPS: Final = 10_000
MAX_WINDOW_BYTES: Final = 2**30
"""The largest window TCP can announce (RFC 7323: a shift of 14)."""
MIN_BUFFER_BYTES: Final = 2**16
"""A few jumbo frames; a byte-limited queue much smaller would pass hardly anything."""


@dataclass(frozen=True)
class Conditions:
    """One direction of the link in the scenario's terms, unscaled."""

    rate: int
    buffer: Buffer
    delay: int
    jitter: int
    loss: float | GilbertElliott
    partitioned: bool = False

    @classmethod
    def of(cls, spec: LinkDirection) -> Conditions:
        """The conditions at the start."""
        return cls(spec.rate, spec.buffer, spec.delay, spec.jitter, spec.loss)

    def state(self, scale: float) -> LinkState:
        """What the kernel is to be set to."""
        rate_bps = round(self.rate * scale)
        return LinkState(
            rate_bps=rate_bps,
            buffer_bytes=self.buffer.size_bytes(rate_bps, scale),
            delay_ns=self.delay,
            jitter_ns=self.jitter,
            loss=plan_loss(self.loss),
            partitioned=self.partitioned,
        )


@dataclass(frozen=True)
class Step:
    """From `t_ns` on, `fields` of `direction` have new values; `path` is the timeline entry."""

    t_ns: int
    direction: Direction
    fields: dict[str, Any]
    path: KeyPath


@dataclass(frozen=True)
class Moment:
    """A direction at one time, and what brought it there."""

    t_ns: int
    direction: Direction
    state: LinkState
    path: KeyPath


@dataclass(frozen=True)
class LinkPlan:
    """The initial states, all changes, and the largest numbers that buffers and windows must fit."""

    initial: dict[Direction, LinkState]
    changes: tuple[LinkChange, ...]
    need_bytes: int
    """Largest bandwidth-delay product plus largest buffer, in bytes."""


def resolve_link(scenario: Scenario, scale: float, seed: int, findings: Findings) -> LinkPlan:
    """Every state the link will have; problems of single states and of windows go to `findings`.

    The first change of each direction is at 0 and repeats the initial state: netem starts its random
    numbers anew with every change, so that what was sent before the run does not matter.
    """
    steps = _steps(scenario, findings)
    moments = {direction: _moments(scenario, direction, steps, scale) for direction in DIRECTIONS}
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
        _check_states(moments[direction], findings)
    need_bytes = _check_windows(scenario, moments, findings)
    return LinkPlan(
        initial={
            direction: Conditions.of(getattr(scenario.link, direction)).state(scale)
            for direction in DIRECTIONS
        },
        changes=tuple(sorted(changes, key=lambda change: (change.t_ns, DIRECTIONS.index(change.direction)))),
        need_bytes=need_bytes,
    )


def plan_loss(loss: float | GilbertElliott) -> Loss | None:
    """A scenario's loss in the plan's terms."""
    if isinstance(loss, GilbertElliott):
        return Loss(model="gilbert_elliott", p=loss.p, r=loss.r, loss_bad=loss.bad, loss_good=loss.good)
    return Loss(model="random", ratio=loss) if loss else None


def describe(fields: dict[str, Any]) -> str:
    """Changed conditions for people: `rate 8gbit, loss 0.1%`."""
    return ", ".join(f"{name} {_described(name, value)}" for name, value in fields.items())


def _described(name: str, value: Any) -> str:
    match value:
        case GilbertElliott():
            return f"in bursts (p {value.p:g}, r {value.r:g}, bad {value.bad:g}, good {value.good:g})"
        case Buffer(time_ns=int(time_ns)):
            return format_duration_ns(time_ns)
        case Buffer(fixed_bytes=int(fixed_bytes)):
            return format_size_bytes(fixed_bytes)
        case float():
            return f"{value:g}"
        case _:
            return format_rate_bps(value) if name == "rate" else format_duration_ns(value)


def _steps(scenario: Scenario, findings: Findings) -> list[Step]:
    """All entries as steps, by time; a ramp begins at the values that the steps before it left."""
    entries: list[tuple[LinkEntry, KeyPath]] = [
        (entry, ("timeline", index))
        for index, entry in enumerate(scenario.timeline)
        if isinstance(entry, LinkEntry)
    ]
    steps: list[Step] = []
    for entry, path in sorted(entries, key=lambda item: item[0].at):
        for direction in entry.directions:
            match entry:
                case SetEntry():
                    steps.append(Step(entry.at, direction, entry.set.changes(), path))
                case PartitionEntry():
                    steps.append(Step(entry.at, direction, {"partitioned": True}, path))
                    if entry.lasting is not None:
                        end_ns = entry.at + entry.lasting
                        steps.append(Step(end_ns, direction, {"partitioned": False}, path))
                case RampEntry():
                    before = _conditions_at(scenario, direction, steps, entry.at)
                    steps.extend(_ramp(entry, direction, before, path, findings))
    _refuse_clashes(entries, findings)
    return sorted(steps, key=lambda step: step.t_ns)


def _conditions_at(scenario: Scenario, direction: Direction, steps: list[Step], t_ns: int) -> Conditions:
    conditions = Conditions.of(getattr(scenario.link, direction))
    for step in sorted(steps, key=lambda step: step.t_ns):
        if step.direction == direction and step.t_ns <= t_ns:
            conditions = replace(conditions, **step.fields)
    return conditions


def _ramp(
    entry: RampEntry, direction: Direction, before: Conditions, path: KeyPath, findings: Findings
) -> Iterator[Step]:
    """Steps of equal length that end at the ramp's values exactly at `at + over`."""
    target = entry.ramp.changes()
    crooked = [name for name, value in target.items() if not _rampable(getattr(before, name), value)]
    for name in crooked:
        start, value = getattr(before, name), target[name]
        findings.add(
            (*path, "ramp", name),
            f"no straight way from {_described(name, start)} to {_described(name, value)}",
            "two values of the same form (a buffer in ms or in bytes, a loss as a single ratio)",
        )
    if crooked:
        return
    count = entry.steps or min(-(-entry.over // RAMP_STEP_NS), MAX_RAMP_STEPS)
    for number in range(1, count + 1):
        fields = {
            name: _between(getattr(before, name), value, number, count) for name, value in target.items()
        }
        yield Step(entry.at + entry.over * number // count, direction, fields, path)


def _rampable(start: Any, end: Any) -> bool:
    if isinstance(start, Buffer):
        return (start.time_ns is None) == (end.time_ns is None)
    return not isinstance(start, GilbertElliott) and not isinstance(end, GilbertElliott)


def _between(start: Any, end: Any, number: int, count: int) -> Any:
    """The value after `number` of `count` equal steps, exact at the end."""
    if isinstance(start, Buffer):
        if start.time_ns is not None:
            return Buffer(time_ns=_between(start.time_ns, end.time_ns, number, count))
        return Buffer(fixed_bytes=_between(start.fixed_bytes, end.fixed_bytes, number, count))
    if isinstance(start, int) and isinstance(end, int):
        return start + (end - start) * number // count
    return end if number == count else start + (end - start) * number / count


def _refuse_clashes(entries: list[tuple[LinkEntry, KeyPath]], findings: Findings) -> None:
    """Two entries must not move the same field of a direction at the same time."""
    for position, (entry, path) in enumerate(entries):
        start, end, fields = _span(entry)
        for other, other_path in entries[:position]:
            other_start, other_end, other_fields = _span(other)
            at_once = start == other_start or (start < other_end and other_start < end)
            shared = sorted(fields & other_fields)
            if at_once and shared and set(entry.directions) & set(other.directions):
                line = findings.source.line(other_path)
                found = f"sets {', '.join(shared)} while the entry of line {line} is at it"
                findings.add(path, found, "one entry at a time for each value of a direction")


def _span(entry: LinkEntry) -> tuple[int, int, set[str]]:
    """From when to when an entry acts, and on which fields."""
    match entry:
        case SetEntry():
            return entry.at, entry.at, set(entry.set.changes())
        case RampEntry():
            return entry.at, entry.at + entry.over, set(entry.ramp.changes())
        case PartitionEntry():
            return entry.at, entry.at + (entry.lasting or MAX_INTEGER), {"partition"}
    raise AssertionError(entry)


def _moments(scenario: Scenario, direction: Direction, steps: list[Step], scale: float) -> list[Moment]:
    """The direction's states at 0 and at every time at which something changes."""
    conditions = Conditions.of(getattr(scenario.link, direction))
    moments = {0: Moment(0, direction, conditions.state(scale), ("link", direction))}
    own = [step for step in steps if step.direction == direction]
    for t_ns, group in groupby(own, key=lambda step: step.t_ns):
        for step in group:
            conditions = replace(conditions, **step.fields)
        moments[t_ns] = Moment(t_ns, direction, conditions.state(scale), step.path)
    return list(moments.values())


def _check_states(moments: list[Moment], findings: Findings) -> None:
    """Refuse states that the kernel would not carry out as meant; each trouble once, where it begins."""
    before: set[str] = set()
    for moment in moments:
        state, now = moment.state, set[str]()
        if state.jitter_ns > state.delay_ns:
            now.add("jitter")
        if state.buffer_bytes < MIN_BUFFER_BYTES:
            now.add("buffer")
        if "jitter" in now - before:
            jitter, delay = format_duration_ns(state.jitter_ns), format_duration_ns(state.delay_ns)
            findings.add(
                moment.path, f"jitter of {jitter} above the delay of {delay}", "jitter up to the delay"
            )
        if "buffer" in now - before:
            rate, size = format_rate_bps(state.rate_bps), format_size_bytes(state.buffer_bytes)
            findings.add(
                moment.path,
                f"the buffer would be only {size} at {rate}, too small for a few packets",
                f"at least {format_size_bytes(MIN_BUFFER_BYTES)}",
                "raise the buffer or the rate, or use a larger scale",
            )
        before = now


def _check_windows(scenario: Scenario, moments: dict[Direction, list[Moment]], findings: Findings) -> int:
    """Refuse rates that the connections together cannot fill; returns LinkPlan.need_bytes."""
    products = {direction: _bandwidth_delay(moments, direction) for direction in DIRECTIONS}
    connections = scenario.transport.connections
    for bdp_bytes, rtt_ns, moment in products.values():
        if bdp_bytes > connections * MAX_WINDOW_BYTES:
            rate, rtt = format_rate_bps(moment.state.rate_bps), format_duration_ns(rtt_ns)
            window_gib = bdp_bytes / connections / 2**30
            findings.add(
                moment.path,
                f"too few connections ({connections}) to fill {rate} at a round trip of {rtt}: each would "
                f"need a TCP window of {window_gib:.2f} GiB",
                "at most 1 GiB for each connection",
                f"set transport.connections to {-(-bdp_bytes // MAX_WINDOW_BYTES)} or more",
            )
    buffers = (moment.state.buffer_bytes for direction in DIRECTIONS for moment in moments[direction])
    return max(bdp_bytes for bdp_bytes, _, _ in products.values()) + max(buffers)


def _bandwidth_delay(moments: dict[Direction, list[Moment]], direction: Direction) -> tuple[int, int, Moment]:
    """The direction's largest bandwidth-delay product in bytes, its round trip, and its moment."""
    products = []
    for t_ns in sorted({moment.t_ns for each in DIRECTIONS for moment in moments[each]}):
        there, back = (_at(moments[each], t_ns) for each in DIRECTIONS)
        rtt_ns = there.state.delay_ns + back.state.delay_ns
        moment = there if direction == DIRECTIONS[0] else back
        products.append((moment.state.rate_bps * rtt_ns // (8 * NS_PER_S), rtt_ns, moment))
    return max(products, key=lambda product: product[0])


def _at(moments: list[Moment], t_ns: int) -> Moment:
    """What holds at `t_ns`."""
    return next(moment for moment in reversed(moments) if moment.t_ns <= t_ns)
