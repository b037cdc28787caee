"""From lines of a journal, as they come, to a few numbers per stretch of virtual time. Pure.

A run is cut into stretches of equal length, as many as a chart can show. Each signal has a value per stretch;
a line may still change the values of the newest stretches, as writers do not wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from testbed.journal_lines import (
    Control,
    Decision,
    End,
    Event,
    Line,
    LinkSample,
    Request,
    Start,
    TcpSample,
)
from testbed.units import NS_PER_S

STRETCHES: Final = 400
LEAST_STRETCH_S: Final = 0.1
"""Link samples are so far apart, by default."""
MOST_STRETCHES: Final = 20_000
"""Whatever a damaged journal says: later moments fall into the last of these."""
SHARE_WINDOW_S, TTFT_WINDOW_S = 10.0, 15.0
"""As in the report's charts of the same name."""
TCP_EVERY_S: Final = 1.0
"""Sockets are sampled at least so often. What a sample has more was sent within it, as in the report."""
BITS: Final = 8

SIGNALS: Final = (
    "capacity_bps",
    "goodput_bps",
    "queue_bytes",
    "retrans_bps",
    "threshold_tokens",
    "offloaded_ratio",
    "ttft_p50_s",
    "ttft_p90_s",
    "queued_a",
    "queued_b",
    "in_decode",
    "completed",
    "failed",
)
Values = dict[str, float | None]


@dataclass
class _Stretch:
    """What fell into a stretch of time."""

    held: dict[str, float] = field(default_factory=dict)
    """Signals of which the last value counts, in this stretch or before it."""
    noted: set[str] = field(default_factory=set)
    """Those of them that were noted in this stretch."""
    sent_bytes: float = 0.0
    sent_s: float = 0.0
    """The part of the stretch in which these were sent."""
    queue_bytes: int = 0
    retrans_bytes: float = 0.0
    routed: int = 0
    offloaded: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    completed: int = 0
    failed: int = 0
    sampled: bool = False


class Mark(msgspec.Struct, frozen=True):
    """Something that happened."""

    t_s: float
    text: str


class Frames:
    """All stretches of one run so far."""

    def __init__(self, duration_s: float) -> None:
        self.stretch_s = max(duration_s / STRETCHES, LEAST_STRETCH_S)
        self.marks: list[Mark] = []
        self.newest_s = 0.0
        """The newest moment of any line, in virtual seconds since t0."""
        self.ended = False
        self._t0_ns: int | None = None
        self._early: list[Line] = []
        self._stretches: list[_Stretch] = []
        self._link_before: tuple[float, int] | None = None
        self._retrans_bytes: dict[tuple[str, str, str], int] = {}
        self._changed: set[int] = set()

    def add(self, lines: Iterable[Line]) -> None:
        """Take in lines, in the order of each file; those before t0 wait until t0 is known."""
        for line in lines:
            if isinstance(line, Start):
                self._t0_ns = line.t_ns
                early, self._early = self._early, []
                self.add(early)
            elif self._t0_ns is None:
                self._early.append(line)
            else:
                self._add(line, (line.t_ns - self._t0_ns) / NS_PER_S)

    def __len__(self) -> int:
        return len(self._stretches)

    def take_changed(self) -> list[int]:
        """Numbers of the stretches that have changed since this was last asked, in order."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    def values(self, number: int) -> Values:
        """Every signal in this stretch; None: nothing was measured."""
        one = self._stretches[number]
        shares = self._trailing(number, SHARE_WINDOW_S)
        routed = sum(each.routed for each in shares)
        ttfts = sorted(t_s for each in self._trailing(number, TTFT_WINDOW_S) for t_s in each.ttfts_s)
        return {
            **{name: one.held.get(name) for name in ("capacity_bps", "threshold_tokens")},
            "goodput_bps": one.sent_bytes * BITS / one.sent_s if one.sent_s else None,
            "queue_bytes": float(one.queue_bytes) if one.sampled else None,
            "retrans_bps": one.retrans_bytes * BITS / self.stretch_s if one.sampled else None,
            "offloaded_ratio": sum(each.offloaded for each in shares) / routed if routed else None,
            "ttft_p50_s": _percentile(ttfts, 0.5),
            "ttft_p90_s": _percentile(ttfts, 0.9),
            **{name: one.held.get(name) for name in ("queued_a", "queued_b", "in_decode")},
            "completed": one.completed / self.stretch_s if one.sampled else None,
            "failed": one.failed / self.stretch_s if one.sampled else None,
        }

    def _trailing(self, number: int, window_s: float) -> list[_Stretch]:
        return self._stretches[max(0, number + 1 - round(window_s / self.stretch_s)) : number + 1]

    def _add(self, line: Line, t_s: float) -> None:
        match line:
            case LinkSample() if line.direction == "a_to_b":
                self._link(line, t_s)
            case TcpSample():
                self._tcp(line, t_s)
            case Control():
                self._control(line, t_s)
            case Decision() if line.route is not None:
                stretch = self._at(t_s, SHARE_WINDOW_S)
                stretch.routed += 1
                stretch.offloaded += line.route == "prfaas"
            case Request():
                self._request(line, t_s)
            case Event():
                self._at(t_s)
                self.marks.append(Mark(round(t_s, 3), line.name))
            case End():
                self._at(t_s)
                self.ended = True

    def _link(self, line: LinkSample, t_s: float) -> None:
        """What a counter has more was sent evenly since the sample before, however stretches lie to that."""
        before_s, before_bytes = self._link_before or (t_s, line.tx_bytes)
        self._link_before = (t_s, line.tx_bytes)
        if t_s < 0:
            return
        lost = line.loss_ratio >= 1.0  # a partition
        self._hold(t_s, "capacity_bps", 0.0 if lost else float(line.rate_bps))
        last = self._at(t_s)
        for stretch, part_s in self._between(before_s, t_s):
            stretch.sent_bytes += max(0, line.tx_bytes - before_bytes) * part_s / (t_s - before_s)
            stretch.sent_s += part_s
            if not stretch.sampled:
                stretch.queue_bytes, stretch.sampled = line.backlog_bytes, True
        last.sampled = True
        last.queue_bytes = max(last.queue_bytes, line.backlog_bytes)

    def _tcp(self, line: TcpSample, t_s: float) -> None:
        """Counters are those of a socket; one that fell belongs to a new socket on the same ports."""
        socket = (line.host, line.local, line.remote)
        more = line.bytes_retrans - self._retrans_bytes.get(socket, 0)
        self._retrans_bytes[socket] = line.bytes_retrans
        if t_s < 0:
            return
        self._at(t_s)
        sent_bytes = more if more >= 0 else line.bytes_retrans
        for stretch, part_s in self._between(t_s - TCP_EVERY_S, t_s) if sent_bytes else ():
            stretch.retrans_bytes += sent_bytes * part_s / TCP_EVERY_S

    def _between(self, from_s: float, to_s: float) -> Iterator[tuple[_Stretch, float]]:
        """The stretches from one moment to another, which change, and how much of each lies between them.

        Nothing before t0; stretches up to `to_s` are there.
        """
        for number in range(self._number(from_s), self._number(to_s) + 1):
            begin_s, end_s = number * self.stretch_s, (number + 1) * self.stretch_s
            part_s = min(end_s, to_s) - max(begin_s, from_s, 0.0)
            if part_s > 0:
                self._changed.add(number)
                yield self._stretches[number], part_s

    def _control(self, line: Control, t_s: float) -> None:
        self._hold(t_s, "threshold_tokens", float(line.threshold_tokens))
        queues = (line.queue_prfaas, line.queue_pd, line.queue_decode)
        for name, value in zip(("queued_a", "queued_b", "in_decode"), queues, strict=True):
            if value is not None:
                self._hold(t_s, name, float(value))

    def _hold(self, t_s: float, name: str, value: float) -> None:
        """A value from this moment until another is noted; lines of another file may have come further."""
        stretch = self._at(t_s)
        stretch.noted.add(name)
        stretch.held[name] = value
        for number in range(self._number(t_s) + 1, len(self._stretches)):
            later = self._stretches[number]
            if name in later.noted:
                break
            if later.held.get(name) != value:
                later.held[name] = value
                self._changed.add(number)

    def _request(self, line: Request, sent_s: float) -> None:
        """A request counts when it has ended; `t_ns` is when it was sent."""
        end_ns = line.t_end_ns if line.t_end_ns is not None else line.t_ns
        assert self._t0_ns is not None, "lines before t0 wait"
        stretch = self._at((end_ns - self._t0_ns) / NS_PER_S)
        stretch.completed += line.state == "completed"
        stretch.failed += line.state != "completed"
        if line.t_first_ns is not None:
            first_s = (line.t_first_ns - self._t0_ns) / NS_PER_S
            self._at(first_s, TTFT_WINDOW_S).ttfts_s.append(first_s - sent_s)

    def _number(self, t_s: float) -> int:
        return min(int(max(t_s, 0.0) / self.stretch_s), MOST_STRETCHES - 1)

    def _at(self, t_s: float, window_s: float = 0.0) -> _Stretch:
        """The stretch of this moment, which changes, and so do those that look back to it over `window_s`.

        Stretches on the way to it are made.
        """
        t_s = max(t_s, 0.0)
        self.newest_s = max(self.newest_s, t_s)
        number = self._number(t_s)
        while len(self._stretches) <= number:
            # What was held before holds until something else is noted.
            held = dict(self._stretches[-1].held) if self._stretches else {}
            self._stretches.append(_Stretch(held=held))
            self._changed.add(len(self._stretches) - 1)
        beyond = number + max(1, round(window_s / self.stretch_s))
        self._changed.update(range(number, min(beyond, len(self._stretches))))
        return self._stretches[number]


def _percentile(ordered: list[float], share: float) -> float | None:
    """Of values in order, with linear interpolation, as in the report; None of nothing."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
