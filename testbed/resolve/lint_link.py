"""Warnings about the words of the link: what is written and will not happen, or not for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from testbed.plan import DIRECTIONS, LinkState
from testbed.resolve.link_traces import outline
from testbed.resolve.patterns import span
from testbed.resolve.view import View, Warned
from testbed.scenario.quantities import FINEST_STEP_NS
from testbed.scenario.source import KeyPath
from testbed.scenario.timeline import LinkEntry, TraceEntry, WaveEntry
from testbed.units import format_duration_ns


def _entries(view: View) -> Iterator[tuple[KeyPath, LinkEntry]]:
    for index, entry in enumerate(view.scenario.timeline):
        if isinstance(entry, LinkEntry):
            yield ("timeline", index), entry


def _long_outage(view: View) -> Warned:
    """A direction's own outage is drawn within the run, whatever it may last."""
    for direction in DIRECTIONS:
        outage = getattr(view.scenario.link, direction).outage
        if outage is not None and outage.up_to > view.plan.duration_ns:
            longest, run = format_duration_ns(outage.up_to), format_duration_ns(view.plan.duration_ns)
            found = f"an outage of up to {longest} is cut to the run's {run}"
            yield ("link", direction, "outage"), found, f"up_to: {run} or less, or a longer duration"


def _unfinished(view: View) -> Warned:
    """Waves and traces that end before they have shown everything once."""
    for path, entry in _entries(view):
        room_ns = span(entry, view.plan.duration_ns)[1] - entry.at
        room = format_duration_ns(room_ns)
        if isinstance(entry, WaveEntry) and entry.period > room_ns:
            found = f"a period of {format_duration_ns(entry.period)} does not end within the wave's {room}"
            yield (*path, "period"), found, "a shorter period, or a longer time"
        if isinstance(entry, TraceEntry):
            last_ns = outline(view.directory / entry.trace)[1]
            if last_ns >= room_ns:
                found = f"the trace has rows up to {format_duration_ns(last_ns)}, and {room} to run"
                yield (*path, "trace"), found, "a shorter trace, or a longer time"


def _replaced_bursts(view: View) -> Warned:
    """The column `loss` of a trace is a ratio, in place of whatever loss there was."""
    for path, entry in _entries(view):
        if not isinstance(entry, TraceEntry) or "loss" not in outline(view.directory / entry.trace)[0]:
            continue
        for direction in entry.directions:
            states = [moment.state for moment in view.moments[direction] if moment.t_ns < max(entry.at, 1)]
            loss = states[-1].loss
            if loss is not None and loss.model != "random":
                found = (
                    f"the trace's column loss takes the place of the {loss.model} loss of {direction}, "
                    "and each packet is lost on its own"
                )
                yield (*path, "trace"), found, "a trace without the column loss, and the loss stays as it is"
                break


def _never_told(view: View) -> Warned:
    """Path MTU discovery (RFC 1191) ends at a size that vanishes: TCP never gets through."""

    def swallowed(state: LinkState) -> bool:
        mtu, hole = state.path_mtu_bytes, state.black_hole_bytes
        return mtu is not None and hole is not None and mtu > hole

    for direction in DIRECTIONS:
        moment = view.first(direction, swallowed)
        if moment is not None:
            mtu, hole = moment.state.path_mtu_bytes, moment.state.black_hole_bytes
            found = f"path_mtu {mtu} is above black_hole_above {hole}: senders learn a size that vanishes"
            yield moment.path, found, f"path_mtu: {hole} or less, or none"


def _close_together(view: View) -> Warned:
    """Each entry's steps are checked by itself; what two entries do within a step is not."""
    times = [
        (t_ns, path, entry)
        for path, entry in _entries(view)
        for t_ns in dict.fromkeys((entry.at, span(entry, view.plan.duration_ns)[1]))
    ]
    times.sort(key=lambda item: item[0])
    for (before_ns, before, one), (t_ns, path, other) in pairwise(times):
        shared = before != path and set(one.directions) & set(other.directions)
        if shared and 0 < t_ns - before_ns < FINEST_STEP_NS:
            gap = format_duration_ns(t_ns - before_ns)
            found = f"something else happens {gap} before, and timers of the run have a grid of 1ms"
            yield path, found, "the same time, or 1ms between them"


LINK_RULES: Final[tuple[Callable[[View], Warned], ...]] = (
    _long_outage,
    _unfinished,
    _replaced_bursts,
    _never_told,
    _close_together,
)
