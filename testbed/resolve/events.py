"""The timeline's named moments and other tenants' bursts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from testbed.plan import Burst, Event
from testbed.resolve.findings import Findings
from testbed.resolve.link import describe
from testbed.scenario.model import (
    BackgroundEntry,
    BulkWorkload,
    PartitionEntry,
    RampEntry,
    Scenario,
    SetEntry,
    TimelineEntry,
)
from testbed.scenario.source import KeyPath
from testbed.units import format_duration_ns, format_size_bytes

MAX_BURSTS: Final = 10_000


def resolve_events(scenario: Scenario, findings: Findings) -> tuple[Event, ...]:
    """Every entry as an event at its begin, and as `<name>.end` at its end if it has one.

    Events after the end of the run and names that stand twice go to `findings`. An entry without a name
    is called after its kind, for the report; expectations cannot refer to it.
    """
    events: list[Event] = []
    lines: dict[str, int] = {}
    for index, entry in enumerate(scenario.timeline):
        path: KeyPath = ("timeline", index)
        kind, detail, end_ns, end_key = _described(entry)
        _refuse_late(scenario.duration, (*path, "at"), entry.at, findings, at_end=False)
        if end_ns is not None and entry.at < scenario.duration:
            _refuse_late(scenario.duration, (*path, *end_key), end_ns, findings, at_end=True)
        if entry.event in lines:
            found = f"the event {entry.event} stands already on line {lines[entry.event]}"
            findings.add((*path, "event"), found, "a name of its own for each event")
        elif entry.event:
            lines[entry.event] = findings.source.line(path)
        name = entry.event or kind
        events.append(Event(t_ns=entry.at, name=name, detail=detail))
        if end_ns is not None:
            events.append(Event(t_ns=end_ns, name=f"{name}.end", detail=detail))
    if isinstance(scenario.workload, BulkWorkload):
        for index, transfer in enumerate(scenario.workload.transfers):
            place: KeyPath = ("workload", "transfers", index, "at")
            _refuse_late(scenario.duration, place, transfer.at, findings, at_end=False)
    return tuple(sorted(events, key=lambda event: event.t_ns))


def named_times(scenario: Scenario) -> dict[str, int]:
    """The moments that expectations can refer to, by name."""
    times: dict[str, int] = {}
    for entry in scenario.timeline:
        if entry.event:
            end_ns = _described(entry)[2]
            times[entry.event] = entry.at
            if end_ns is not None:
                times[f"{entry.event}.end"] = end_ns
    return times


def resolve_bursts(
    scenario: Scenario, scale: float, hosts: Collection[str], findings: Findings
) -> tuple[Burst, ...]:
    """Bursts one by one, from `at` on and before `until`; sizes are multiplied by `scale`."""
    bursts: list[Burst] = []
    for index, entry in enumerate(scenario.timeline):
        if not isinstance(entry, BackgroundEntry):
            continue
        spec = entry.background
        path: KeyPath = ("timeline", index, "background")
        check_hosts(path, spec.source, spec.sink, hosts, findings)
        if spec.until is not None and spec.until <= entry.at:
            found = f"until {format_duration_ns(spec.until)} is not after at {format_duration_ns(entry.at)}"
            findings.add((*path, "until"), found, "a time after at")
            continue
        if spec.until and spec.every and (spec.until - entry.at) // spec.every > MAX_BURSTS:
            every = format_duration_ns(spec.every)
            findings.add((*path, "every"), f"{every} makes too many bursts", f"at most {MAX_BURSTS}")
            continue
        times = range(entry.at, spec.until, spec.every) if spec.until and spec.every else (entry.at,)
        bursts.extend(
            Burst(
                t_ns=t_ns,
                source=spec.source,
                sink=spec.sink,
                flows=spec.flows,
                size_bytes=max(1, round(spec.burst * scale)),
                congestion_control=spec.congestion_control,
            )
            for t_ns in times
        )
    return tuple(sorted(bursts, key=lambda burst: burst.t_ns))


def check_hosts(path: KeyPath, source: str, sink: str, hosts: Collection[str], findings: Findings) -> None:
    """Both ends of a transfer must be hosts of the topology (none are known when it is wrong itself)."""
    for key, name in (("from", source), ("to", sink)):
        if hosts:
            findings.name_unknown((*path, key), "host", name, hosts)
    if source == sink:
        findings.add((*path, "to"), f"{sink} is both source and sink", "two different hosts")


def _described(entry: TimelineEntry) -> tuple[str, str, int | None, KeyPath]:
    """Kind, text for people, end if the entry has one, and the key that sets the end."""
    match entry:
        case SetEntry():
            return "set", f"{entry.link}: {describe(entry.set.changes())}", None, ()
        case RampEntry():
            detail = f"{entry.link}: {describe(entry.ramp.changes())} over {format_duration_ns(entry.over)}"
            return "ramp", detail, entry.at + entry.over, ("over",)
        case PartitionEntry():
            end_ns = None if entry.lasting is None else entry.at + entry.lasting
            return "partition", f"{entry.link}: nothing passes", end_ns, ("for",)
        case BackgroundEntry():
            spec = entry.background
            detail = f"{spec.source} to {spec.sink}: {format_size_bytes(spec.burst)}"
            if spec.every is not None:
                detail += f" every {format_duration_ns(spec.every)}"
            return "background", detail, spec.until, ("background", "until")
    raise AssertionError(entry)


def _refuse_late(duration_ns: int, path: KeyPath, t_ns: int, findings: Findings, *, at_end: bool) -> None:
    """What begins must begin before the end of the run; what ends may end with it."""
    if t_ns > duration_ns or (t_ns == duration_ns and not at_end):
        end = format_duration_ns(duration_ns)
        found = f"{format_duration_ns(t_ns)} is not before the end of the run at {end}"
        if at_end:
            found = f"ends at {format_duration_ns(t_ns)}, after the end of the run at {end}"
        findings.add(
            path, found, f"up to {end}" if at_end else f"before {end}", "move it, or make duration longer"
        )
