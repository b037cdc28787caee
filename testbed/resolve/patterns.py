"""What a timeline entry does to a direction, as steps: ramps, flaps, waves, traces, noise, outages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import cos, pi
from pathlib import Path
from typing import Any, Final, TypeAlias

from testbed.plan import Direction
from testbed.resolve import noise
from testbed.resolve.conditions import Factor, Jitter, Shapes
from testbed.resolve.describe import described
from testbed.resolve.findings import Findings
from testbed.resolve.link_traces import NS_PER_MS, LinkTrace, binned, read_mahimahi, read_trace
from testbed.resolve.seeds import generator
from testbed.scenario.link import Outage
from testbed.scenario.quantities import FINEST_STEP_NS, TOO_FINE, Buffer, Section
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import (
    FlapEntry,
    LastingEntry,
    LinkEntry,
    MahimahiEntry,
    NoiseEntry,
    OutageEntry,
    PartitionEntry,
    RampEntry,
    SetEntry,
    TraceEntry,
    WaveEntry,
)
from testbed.units import format_duration_ns

RAMP_STEP_NS: Final = 100_000_000
MAX_RAMP_STEPS: Final = 10_000
MAX_STEPS: Final = 100_000
"""Of one entry: 100 changes a second for a quarter of an hour."""

Fields: TypeAlias = dict[str, Any]
Steps: TypeAlias = Iterator[tuple[int, Fields]]
"""From a time on, fields of the conditions have new values; in the order of time."""


@dataclass
class Making:
    """What the making of steps needs to know, and where its problems go."""

    end_ns: int
    """The end of the run."""
    seed: int
    directory: Path
    """Where the files of the link lie."""
    shapes: Shapes
    findings: Findings
    traces: dict[KeyPath, LinkTrace | None] = field(default_factory=dict)
    """By entry: read once, even when both directions follow it."""

    def bearable(self, count: int, path: KeyPath) -> bool:
        """Whether an entry may make so many steps; notes a problem when not."""
        if count <= MAX_STEPS:
            return True
        found = f"makes {count} changes of the link"
        self.findings.add(path, found, f"at most {MAX_STEPS}", "longer steps, or for a shorter time")
        return False

    def slow_enough(self, step_ns: int, path: KeyPath) -> bool:
        """Whether the run's timers can make steps of that length; notes a problem when not."""
        if step_ns >= FINEST_STEP_NS:
            return True
        found = f"a step of {format_duration_ns(step_ns)} {TOO_FINE}"
        self.findings.add(path, found, "steps of 1ms or more", "fewer steps, or a longer time")
        return False


def fields_of(entry: LinkEntry, making: Making, path: KeyPath) -> frozenset[str]:
    """The fields on which an entry acts."""
    match entry:
        case SetEntry(set=patch) | RampEntry(ramp=patch) | WaveEntry(wave=patch):
            return frozenset(patch.changes())
        case TraceEntry():
            trace = _followed(entry, making, path)
            return frozenset(trace.rows[0]) if trace else frozenset()
        case MahimahiEntry():
            return frozenset({"rate"})
        case NoiseEntry():
            return frozenset({"storm"})
        case PartitionEntry() | FlapEntry() | OutageEntry():
            return frozenset({"partitioned"})
    raise AssertionError(entry)


def span(entry: LinkEntry, end_ns: int) -> tuple[int, int]:
    """From when to when an entry acts."""
    match entry:
        case RampEntry():
            return entry.at, entry.at + entry.over
        case SetEntry():
            return entry.at, entry.at + (entry.lasting or 0)
        case PartitionEntry():
            return entry.at, end_ns if entry.lasting is None else entry.at + entry.lasting
        case OutageEntry():
            return entry.at, entry.until
        case LastingEntry():
            return entry.at, end_ns if entry.until is None else entry.until
        case _:
            return entry.at, entry.at


def steps(
    entry: LinkEntry, direction: Direction, before: Callable[[str], Any], making: Making, path: KeyPath
) -> Steps:
    """What the entry does to the direction, whose values at the entry's begin are `before`."""
    end_ns = span(entry, making.end_ns)[1]
    match entry:
        case SetEntry():
            fields = making.shapes.fields(entry.set.changes(), (*path, "set"))
            restored = {name: before(name) for name in fields}
            yield entry.at, fields
            if entry.lasting is not None:
                yield end_ns, restored
        case RampEntry():
            yield from _ramp(entry, before, making, path)
        case PartitionEntry():
            yield entry.at, {"partitioned": True}
            if entry.lasting is not None:
                yield end_ns, {"partitioned": False}
        case OutageEntry():
            yield from outage(drawn_outage(entry, making.seed, path))
        case TraceEntry() | MahimahiEntry():
            yield from _trace(entry, before, end_ns, making, path)
        case LastingEntry():
            yield from _generated(entry, direction, before, making, path)


def _generated(
    entry: LastingEntry, direction: Direction, before: Callable[[str], Any], making: Making, path: KeyPath
) -> Steps:
    """Noise, flaps and waves."""
    begin_ns, end_ns = span(entry, making.end_ns)
    length_ns = end_ns - begin_ns
    match entry:
        case NoiseEntry():
            if making.bearable(noise.steps_in(entry.noise, length_ns), (*path, "noise")):
                names = ("noise", direction, path[-1])
                drawn = noise.factors(entry.noise, begin_ns, end_ns, making.seed, *names)
                least = noise.least(entry.noise)
                storms = ((t_ns, {"storm": Factor(now, least)}) for t_ns, now in drawn)
                yield from _until(entry, storms, {"storm": Factor()})
        case FlapEntry():
            if making.bearable(2 * length_ns // (entry.flap.down + entry.flap.up), (*path, "flap")):
                yield from _until(entry, _flap(entry, end_ns), {"partitioned": False})
        case WaveEntry():
            target = making.shapes.fields(entry.wave.changes(), (*path, "wave"))
            start = {name: before(name) for name in target}
            swings = entry.shape == "square" or _straight(start, target, (*path, "wave"), making.findings)
            steps_a_period = 2 if entry.shape == "square" else entry.steps
            if not making.slow_enough(entry.period // steps_a_period, (*path, "period")):
                return
            if swings and making.bearable(length_ns * steps_a_period // entry.period, (*path, "period")):
                yield from _until(entry, _wave(entry, start, target, end_ns), start)


def _until(entry: LastingEntry, taken: Steps, restored: Fields) -> Steps:
    """The steps, and at `until` what was before them."""
    yield from taken
    if entry.until is not None:
        yield entry.until, restored


def _ramp(entry: RampEntry, before: Callable[[str], Any], making: Making, path: KeyPath) -> Steps:
    """Steps of equal length that end at the ramp's values exactly at `at + over`."""
    target = making.shapes.fields(entry.ramp.changes(), (*path, "ramp"))
    start = {name: before(name) for name in target}
    if not _straight(start, target, (*path, "ramp"), making.findings):
        return
    count = entry.steps or min(-(-entry.over // RAMP_STEP_NS), MAX_RAMP_STEPS)
    if not making.slow_enough(entry.over // count, (*path, "steps" if entry.steps else "over")):
        return
    for number in range(1, count + 1):
        fields = {name: _between(start[name], value, number, count) for name, value in target.items()}
        yield entry.at + entry.over * number // count, fields


def _wave(entry: WaveEntry, start: Fields, target: Fields, end_ns: int) -> Steps:
    """Period after period, each at its exact begin."""
    levels = wave_levels(entry.shape, entry.steps)
    shapes = [
        {name: _between(start[name], value, level, whole) for name, value in target.items()}
        for level, whole in levels
    ]
    for begin_ns in range(entry.at, end_ns, entry.period):
        for number, fields in enumerate(shapes):
            t_ns = begin_ns + entry.period * number // len(shapes)
            if t_ns < end_ns:
                yield t_ns, fields


def wave_levels(shape: str, steps: int) -> list[tuple[float, float]]:
    """How far from the present values (0) to the wave's (the second number) each step of a period is.

    `sine` and `triangle` rise and fall, `sawtooth` rises and falls back, all from the present values;
    `square` has the wave's values for the first half of the period.
    """
    match shape:
        case "square":
            return [(1, 1), (0, 1)]
        case "sawtooth":
            return [(number, steps - 1) for number in range(steps)]
        case "triangle":
            return [(min(number, steps - number), steps // 2) for number in range(steps)]
        case "sine":
            folded = [min(number, steps - number) for number in range(steps)]
            return [((1 - cos(2 * pi * number / steps)) / 2, 1) for number in folded]
    raise AssertionError(shape)


def _flap(entry: FlapEntry, end_ns: int) -> Steps:
    for begin_ns in range(entry.at, end_ns, entry.flap.down + entry.flap.up):
        yield begin_ns, {"partitioned": True}
        if begin_ns + entry.flap.down < end_ns:
            yield begin_ns + entry.flap.down, {"partitioned": False}


def drawn_outage(entry: OutageEntry, seed: int, path: KeyPath) -> tuple[int, int]:
    """Begin and end of the entry's outage; both directions have the same."""
    return draw_outage(entry.outage, entry.at, entry.until, seed, path[-1])


def draw_outage(spec: Outage, from_ns: int, to_ns: int, seed: int, *names: str | int) -> tuple[int, int]:
    """A length uniform up to `up_to`, and a begin uniform over what leaves room for it."""
    random = generator(seed, "outage", *names)
    longest_ns = min(spec.up_to, to_ns - from_ns)
    length_ns = max(min(FINEST_STEP_NS, longest_ns), round(random.uniform(0, longest_ns)))
    begin_ns = round(random.uniform(from_ns, to_ns - length_ns))
    return begin_ns, begin_ns + length_ns


def outage(times_ns: tuple[int, int]) -> Steps:
    """Nothing passes from the first time to the second."""
    yield times_ns[0], {"partitioned": True}
    yield times_ns[1], {"partitioned": False}


def _trace(
    entry: TraceEntry | MahimahiEntry,
    before: Callable[[str], Any],
    end_ns: int,
    making: Making,
    path: KeyPath,
) -> Steps:
    trace = _followed(entry, making, path)
    if trace is None:
        return
    repeats = isinstance(entry, MahimahiEntry) or entry.repeat
    if repeats and len(trace.times_ns) == 1 and isinstance(entry, TraceEntry):
        making.findings.add((*path, "repeat"), "a trace of one row has no length", "two rows or more")
        return
    rounds = -(-(end_ns - entry.at) // trace.length_ns) if repeats else 1
    if not making.bearable(rounds * len(trace.rows), (*path, "until" if repeats else "trace")):
        return
    rows = trace.rows
    if "jitter" in rows[0]:
        present = before("jitter")
        rows = tuple(row | {"jitter": making.shapes.followed(row["jitter"], present)} for row in rows)
    restored = {name: before(name) for name in rows[0]}
    yield from _until(entry, _followed_to(entry.at, end_ns, trace, rows, rounds), restored)


def _followed_to(at_ns: int, end_ns: int, trace: LinkTrace, rows: tuple[Fields, ...], rounds: int) -> Steps:
    for number in range(rounds):
        begin_ns = at_ns + number * trace.length_ns
        for t_ns, row in zip(trace.times_ns, rows, strict=True):
            if begin_ns + t_ns < end_ns:
                yield begin_ns + t_ns, row


def _followed(entry: TraceEntry | MahimahiEntry, making: Making, path: KeyPath) -> LinkTrace | None:
    """The file that an entry follows; None, with problems, when it is none."""
    if path not in making.traces:
        if isinstance(entry, TraceEntry):
            file, key = making.directory / entry.trace, (*path, "trace")
            making.traces[path] = read_trace(file, key, making.findings)
        else:
            making.traces[path] = _mahimahi(entry, making, path)
    return making.traces[path]


def _mahimahi(entry: MahimahiEntry, making: Making, path: KeyPath) -> LinkTrace | None:
    moments_ms = read_mahimahi(making.directory / entry.mahimahi, (*path, "mahimahi"), making.findings)
    if moments_ms is None:
        return None
    if not making.bearable(-(-moments_ms[-1] * NS_PER_MS // entry.bin), (*path, "bin")):
        return None
    return binned(moments_ms, entry.bin, entry.mean_rate)


def _straight(start: Fields, target: Fields, path: KeyPath, findings: Findings) -> bool:
    """Whether there is a way between the values; each field without one is a problem."""
    crooked = [name for name, value in target.items() if not _same_form(start[name], value)]
    for name in crooked:
        findings.add(
            (*path, name),
            f"no straight way from {described(name, start[name])} to {described(name, target[name])}",
            "two values of the same form (a buffer in ms or in bytes, a loss as a single ratio)",
        )
    return not crooked


def _same_form(start: Any, end: Any) -> bool:
    if isinstance(start, Buffer) and isinstance(end, Buffer):
        return (start.time_ns is None) == (end.time_ns is None)
    if isinstance(start, Jitter) and isinstance(end, Jitter):
        return start.distribution == end.distribution or 0 in (start.scale_ns, end.scale_ns)
    return not any(value is None or isinstance(value, Section) for value in (start, end))


def _between(start: Any, end: Any, number: float, count: float) -> Any:
    """The value after `number` of `count` equal steps, exact at both ends."""
    if number in (0, count):
        return end if number else start
    if isinstance(start, Buffer):
        if start.time_ns is not None:
            return Buffer(time_ns=_between(start.time_ns, end.time_ns, number, count))
        return Buffer(fixed_bytes=_between(start.fixed_bytes, end.fixed_bytes, number, count))
    if isinstance(start, Jitter):
        shape = end.distribution if end.scale_ns else start.distribution
        return Jitter(_between(start.scale_ns, end.scale_ns, number, count), shape)
    if isinstance(start, int) and isinstance(end, int) and isinstance(number, int):
        return start + (end - start) * number // int(count)
    value = start + (end - start) * number / count
    return round(value) if isinstance(start, int) and isinstance(end, int) else value
