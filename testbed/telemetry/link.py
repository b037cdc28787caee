"""What both stages of the WAN's directions have counted."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from testbed.plan import Direction
from testbed.shaping.link import CLSACT, HTB, NETEM, Place
from testbed.telemetry.devices import Devices
from testbed.telemetry.qdisc import Qdiscs, Stats, there


class Counters(msgspec.Struct, frozen=True):
    """Cumulative counters and present queues of one direction."""

    t_ns: int
    """When the rate stage was read (CLOCK_MONOTONIC)."""
    tx_bytes: int
    tx_packets: int
    backlog_bytes: int
    drops: int
    lost_packets: int
    """On the way: by filters and by the delay stage, whatever the reason was, unless the kernel tells drops
    by its limit apart."""
    filtered_packets: int
    """Of these, by filters ahead of the delay stage: too large, or every n-th."""
    limit_drops: int
    """By the delay stage because it was full; always 0 on a kernel that does not tell."""
    flight_packets: int

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not (self.backlog_bytes or self.flight_packets)


class LinkCounters:
    """Reads the counters of directions, each with its rate stage and its delay stage.

    Whatever the link counts has come in, or goes out, by a device of an edge router. So while nothing waits
    and these have nothing to tell, the counters are those of the last time.
    """

    def __init__(self, wan: Mapping[Direction, tuple[Place, Place]]) -> None:
        handles: dict[str, list[tuple[str, int]]] = {}
        self._at: dict[Direction, tuple[tuple[str, int], ...]] = {}
        """Node and place in its answer: of the rate stage, the delay stage and the filters."""
        for direction, ((edge, sending), (node, far)) in wan.items():
            places = ((edge, (sending, HTB)), (node, (far, NETEM)), (node, (far, CLSACT)))
            at = []
            for name, place in places:
                at.append((name, len(handles.setdefault(name, []))))
                handles[name].append(place)
            self._at[direction] = tuple(at)
        self._nodes = {node: Qdiscs(node, several) for node, several in handles.items()}
        self._edges = [Devices(edge) for (edge, _), _ in wan.values()]
        self._counted: list[bytes] = []
        self._idle = False
        self._last: dict[Direction, Counters] = {}

    def read(self) -> dict[Direction, Counters]:
        """All directions, now."""
        if self._idle:
            counted = [edge.counted() for edge in self._edges]
            if counted == self._counted:
                now_ns = time.monotonic_ns()
                return {name: msgspec.structs.replace(one, t_ns=now_ns) for name, one in self._last.items()}
            self._counted = counted
        before, self._last = self._last, self._read()
        unchanged = _timeless(self._last) == _timeless(before)
        self._idle = unchanged and all(one.empty for one in self._last.values())
        return self._last

    def _read(self) -> dict[Direction, Counters]:
        found = {name: (node.read(), time.monotonic_ns()) for name, node in self._nodes.items()}
        return {
            direction: _counters(found[at[0][0]][1], *(found[node][0][number] for node, number in at))
            for direction, at in self._at.items()
        }

    def rate_stage(self, direction: Direction) -> Stats:
        """One direction's rate stage, now."""
        (node, number), *_ = self._at[direction]
        return there(self._nodes[node].read()[number])


def _timeless(counters: Mapping[Direction, Counters]) -> list[Counters]:
    return [msgspec.structs.replace(one, t_ns=0) for one in counters.values()]


def _counters(t_ns: int, rate: Stats | None, delay: Stats | None, filters: Stats | None) -> Counters:
    rate, delay = there(rate), there(delay)
    filtered = filters.drops if filters else 0  # no state so far has wanted one
    return Counters(
        t_ns=t_ns,
        tx_bytes=rate.tx_bytes,
        tx_packets=rate.tx_packets,
        backlog_bytes=rate.backlog_bytes,
        drops=rate.drops,
        lost_packets=delay.drops - delay.overlimits + filtered,
        filtered_packets=filtered,
        limit_drops=delay.overlimits,
        flight_packets=delay.queue_packets,
    )
