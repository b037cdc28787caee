"""What both stages of a WAN direction have counted."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.shaping.link import CLSACT, HTB, NETEM
from testbed.telemetry.qdisc import QdiscStats


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative counters and present queues of one direction."""

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


class LinkCounters:
    """Reads a direction's counters: `rate_stage` and `delay_stage` are (namespace, device)."""

    def __init__(self, rate_stage: tuple[str, str], delay_stage: tuple[str, str]) -> None:
        self._rate = QdiscStats(*rate_stage, HTB)
        self._delay = QdiscStats(*delay_stage, NETEM)
        self._filters = QdiscStats(*delay_stage, CLSACT)

    def read(self) -> Counters:
        """Both stages, now."""
        rate, delay = self._rate.read(), self._delay.read()
        filtered = self._filtered()
        return Counters(
            tx_bytes=rate.tx_bytes,
            tx_packets=rate.tx_packets,
            backlog_bytes=rate.backlog_bytes,
            drops=rate.drops,
            lost_packets=delay.drops - delay.overlimits + filtered,
            filtered_packets=filtered,
            limit_drops=delay.overlimits,
            flight_packets=delay.queue_packets,
        )

    def _filtered(self) -> int:
        try:
            return self._filters.read().drops
        except OSError:  # no state so far has wanted a filter
            return 0
