"""The timeline's named moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.plan import DIRECTIONS, Event
from testbed.resolve.describe import describe
from testbed.resolve.findings import Findings
from testbed.resolve.patterns import draw_outage, drawn_outage
from testbed.scenario.faults import FaultEntry, FaultKind, IdleEntry
from testbed.scenario.link import Noise
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import (
    BackgroundEntry,
    FlapEntry,
    LastingEntry,
    MahimahiEntry,
    MicroburstsEntry,
    NoiseEntry,
    OutageEntry,
    PartitionEntry,
    RampEntry,
    SetEntry,
    TenantsEntry,
    TimelineEntry,
    TraceEntry,
    WaveEntry,
)
from testbed.scenario.workload import BulkWorkload
from testbed.units import format_duration_ns, format_rate_bps, format_size_bytes

FAULTS: Final[dict[FaultKind, tuple[str, str]]] = {
    "kill": ("{target} dies", ""),
    "restart": ("{target} dies, and is started again {length} later", "{target} is started again"),
    "pause": ("{target} stands still for {length}", "{target} goes on"),
    "slow": ("{target} is {amount:g} times slower for {length}", "{target} is as fast as before"),
    "corrupt": ("{target} sends {amount:g} chunks with a bit turned over", ""),
    "fill": ("{target} has no room for KV for {length}", "{target} has room for KV again"),
    "exhaust_ports": ("{target} has no local port left for {length}", "{target} has local ports again"),
}
"""What begins, and what ends."""


@dataclass(frozen=True)
class Told:
    """An entry for people: what it is, what begins, what ends, when, and which key says when it ends."""

    kind: str
    begins: str
    begin_ns: int
    ends: str = ""
    end_ns: int | None = None
    end_key: KeyPath = ()


def resolve_events(scenario: Scenario, seed: int, findings: Findings) -> tuple[Event, ...]:
    """Every entry as an event at its begin, and as `<name>.end` at its end if it has one.

    Events after the end of the run and names that stand twice go to `findings`. An entry without a name
    is called after its kind, for the report; expectations cannot refer to it.
    """
    events: list[Event] = []
    lines: dict[str, int] = {}
    for index, entry in enumerate(scenario.timeline):
        path: KeyPath = ("timeline", index)
        if not _in_time(scenario, entry, path, findings):
            continue
        told = _told(entry, seed, path)
        if entry.event in lines:
            found = f"the event {entry.event} stands already on line {lines[entry.event]}"
            findings.add((*path, "event"), found, "a name of its own for each event")
        elif entry.event:
            lines[entry.event] = findings.source.line(path)
        events += _as_events(told, entry.event or told.kind)
    for direction in DIRECTIONS:
        spec = getattr(scenario.link, direction).outage
        if spec is not None:
            times_ns = draw_outage(spec, 0, scenario.duration, seed)
            events += _as_events(_outage(direction, times_ns, ()), "outage")
    if isinstance(scenario.workload, BulkWorkload):
        for index, transfer in enumerate(scenario.workload.transfers):
            place: KeyPath = ("workload", "transfers", index, "at")
            _refuse_late(scenario.duration, place, transfer.at, findings, at_end=False)
    return tuple(sorted(events, key=lambda event: event.t_ns))


def _as_events(told: Told, name: str) -> list[Event]:
    events = [Event(t_ns=told.begin_ns, name=name, detail=told.begins)]
    if told.end_ns is not None:
        events.append(Event(t_ns=told.end_ns, name=f"{name}.end", detail=told.ends))
    return events


def named_times(scenario: Scenario, seed: int) -> dict[str, int]:
    """The moments that expectations can refer to, by name."""
    times: dict[str, int] = {}
    for index, entry in enumerate(scenario.timeline):
        if entry.event and not _turned_around(entry):
            told = _told(entry, seed, ("timeline", index))
            times[entry.event] = told.begin_ns
            if told.end_ns is not None:
                times[f"{entry.event}.end"] = told.end_ns
    return times


def _in_time(scenario: Scenario, entry: TimelineEntry, path: KeyPath, findings: Findings) -> bool:
    """Whether the entry begins and ends within the run, in this order; problems go to `findings`."""
    _refuse_late(scenario.duration, (*path, "at"), entry.at, findings, at_end=False)
    if _turned_around(entry):
        until = getattr(entry, "until", None) or 0
        found = f"until {format_duration_ns(until)} is not after at {format_duration_ns(entry.at)}"
        findings.add((*path, "until"), found, "a time after at")
        return False
    if isinstance(entry, OutageEntry):
        room_ns = entry.until - entry.at
        if entry.outage.up_to > room_ns:
            up_to, room = format_duration_ns(entry.outage.up_to), format_duration_ns(room_ns)
            findings.add((*path, "outage", "up_to"), f"{up_to} is longer than at to until", f"up to {room}")
        _refuse_late(scenario.duration, (*path, "until"), entry.until, findings, at_end=True)
        return True
    told = _told(entry, 0, path)
    if told.end_ns is not None and entry.at < scenario.duration:
        _refuse_late(scenario.duration, (*path, *told.end_key), told.end_ns, findings, at_end=True)
    return True


def _turned_around(entry: TimelineEntry) -> bool:
    """Whether an entry of the link ends before it begins."""
    return isinstance(entry, LastingEntry | OutageEntry) and (
        entry.until is not None and entry.until <= entry.at
    )


def _told(entry: TimelineEntry, seed: int, path: KeyPath) -> Told:
    match entry:
        case SetEntry() | RampEntry():
            return _moved(entry)
        case PartitionEntry():
            end_ns = None if entry.lasting is None else entry.at + entry.lasting
            begins, ends = f"{entry.link}: nothing passes", f"{entry.link}: passes again"
            return Told("partition", begins, entry.at, ends, end_ns, ("for",))
        case OutageEntry():
            return _outage(entry.link, drawn_outage(entry, seed, path), ("until",))
        case LastingEntry():
            return _lasting(entry)
        case FaultEntry():
            return _fault(entry)
        case _:
            return _beside(entry)


def _moved(entry: SetEntry | RampEntry) -> Told:
    at, link = entry.at, entry.link
    if isinstance(entry, RampEntry):
        target = describe(entry.ramp.changes())
        begins = f"{link}: {target} over {format_duration_ns(entry.over)}"
        return Told("ramp", begins, at, f"{link}: {target} reached", at + entry.over, ("over",))
    begins = f"{link}: {describe(entry.set.changes())}"
    if entry.lasting is None:
        return Told("set", begins, at)
    begins += f" for {format_duration_ns(entry.lasting)}"
    ends = f"{link}: {', '.join(entry.set.changes())} as before"
    return Told("set", begins, at, ends, at + entry.lasting, ("for",))


def _outage(link: str, times_ns: tuple[int, int], key: KeyPath) -> Told:
    length = format_duration_ns(times_ns[1] - times_ns[0])
    begins, ends = f"{link}: nothing passes for {length}", f"{link}: passes again"
    return Told("outage", begins, times_ns[0], ends, times_ns[1], key)


def _lasting(entry: LastingEntry) -> Told:
    duration = format_duration_ns
    match entry:
        case FlapEntry():
            down, up = duration(entry.flap.down), duration(entry.flap.up)
            kind, what, ends = "flap", f"down for {down}, up for {up}, again and again", "up for good"
        case WaveEntry():
            swing = f"swings to {describe(entry.wave.changes())} ({entry.shape}, {duration(entry.period)})"
            kind, what, ends = "wave", swing, "swings no more"
        case TraceEntry():
            again = ", again and again" if entry.repeat else ""
            kind, what, ends = "trace", f"follows {entry.trace}{again}", f"follows {entry.trace} no more"
        case MahimahiEntry():
            what = f"follows {entry.mahimahi}, {format_rate_bps(entry.mean_rate)} on average"
            kind, ends = "mahimahi", f"follows {entry.mahimahi} no more"
        case NoiseEntry():
            kind, what, ends = "noise", f"noise {_noise(entry.noise)}", "no more of this noise"
        case _:
            raise AssertionError(entry)
    return Told(kind, f"{entry.link}: {what}", entry.at, f"{entry.link}: {ends}", entry.until, ("until",))


def _noise(noise: Noise) -> str:
    text = f"of {noise.cv:.3g} every {format_duration_ns(noise.every)}"
    drops = noise.excursions
    if drops is None:
        return text
    return f"{text}, {drops.depth:.3g} less for {format_duration_ns(drops.length)} now and then"


def _beside(entry: TimelineEntry) -> Told:
    """Other people's traffic, and the lack of our own."""
    match entry:
        case IdleEntry():
            begins = f"nobody asks for {format_duration_ns(entry.idle)}"
            return Told("idle", begins, entry.at, "requests again", entry.at + entry.idle, ("idle",))
        case BackgroundEntry():
            spec = entry.background
            way = f"{', '.join(spec.sources)} to {spec.sink}"
            begins = f"{way}: {format_size_bytes(spec.burst)}{' each' if len(spec.sources) > 1 else ''}"
            if spec.every is not None:
                begins += f" every {format_duration_ns(spec.every)}"
            return Told(
                "background", begins, entry.at, f"{way}: no more", spec.until, ("background", "until")
            )
        case TenantsEntry():
            tenants = entry.tenants
            way = f"{tenants.source} to {tenants.sink}"
            begins = f"{way}: {tenants.flows} flows, {format_size_bytes(tenants.size)} at a time"
            return Told("tenants", begins, entry.at, f"{way}: no more", tenants.until, ("tenants", "until"))
        case MicroburstsEntry():
            bursts = entry.microbursts
            way = f"{bursts.source} to {bursts.sink}"
            length, every = format_duration_ns(bursts.length), format_duration_ns(bursts.every)
            begins = f"{way}: {format_rate_bps(bursts.rate)} for {length} every {every}"
            return Told(
                "microbursts", begins, entry.at, f"{way}: no more", bursts.until, ("microbursts", "until")
            )
    raise AssertionError(entry)


def _fault(entry: FaultEntry) -> Told:
    length = "" if entry.lasts_ns is None else format_duration_ns(entry.lasts_ns)
    begins, ends = (
        text.format(target=entry.target, length=length, amount=entry.amount) for text in FAULTS[entry.kind]
    )
    if entry.lasts_ns is None:
        return Told(entry.kind, begins, entry.at)
    key = "after" if entry.kind == "restart" else "for"
    return Told(entry.kind, begins, entry.at, ends, entry.at + entry.lasts_ns, (key,))


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
