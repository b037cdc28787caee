"""From the lines of a journal to the rows of the tables about the link: links, probes, counters."""

from __future__ import annotations

from collections import defaultdict

from testbed import journal_lines as lines
from testbed.record_rows import (
    BITS_PER_BYTE,
    Row,
    SortedJournal,
    between,
    rate_bps,
    went_backwards,
)
from testbed.units import NS_PER_S


def links(journal: SortedJournal) -> list[Row]:
    """Samples of both directions; the first of each has no differences yet."""
    rows: list[Row] = []
    previous: dict[str, lines.LinkSample] = {}
    for line in journal.of(lines.LinkSample):
        row: Row = {
            "t_s": journal.seconds(line.t_ns),
            "direction": line.direction,
            "rate_bps": line.rate_bps,
            "delay_s": line.delay_ns / NS_PER_S,
            "jitter_s": line.jitter_ns / NS_PER_S,
            "loss_ratio": line.loss_ratio,
            "backlog_bytes": line.backlog_bytes,
            "flight_packets": line.flight_packets,
        }
        before = previous.get(line.direction)
        if before is not None and not went_backwards(before, line):
            row["throughput_bps"] = rate_bps(line.tx_bytes - before.tx_bytes, before.t_ns, line.t_ns)
            row["drops"] = line.drops - before.drops
            row["sent_packets"] = line.tx_packets - before.tx_packets
            row["lost_packets"] = line.lost_packets - before.lost_packets
            row["filtered_packets"] = line.filtered_packets - before.filtered_packets
            row["limit_drops"] = line.limit_drops - before.limit_drops
            if line.busy_from_ns is not None and line.busy_ns and line.busy_bytes is not None:
                row["busy_from_s"] = journal.seconds(line.busy_from_ns)
                row["busy_s"] = line.busy_ns / NS_PER_S
                row["busy_bps"] = line.busy_bytes * BITS_PER_BYTE / row["busy_s"]
        previous[line.direction] = line
        rows.append(row)
    return rows


def probes(journal: SortedJournal) -> list[Row]:
    """One row for every probe that was sent, and for every further copy of it that arrived."""
    rows: list[Row] = []
    for train in journal.of(lines.Train):
        arrivals: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        for place, (number, t_ns, intact) in enumerate(train.arrived):
            arrivals[number].append((place, t_ns, intact))
        for number, (size_bytes, left_ns) in enumerate(zip(train.sizes, train.left_ns, strict=True)):
            probe: Row = {
                "direction": train.direction,
                "number": number,
                "size_bytes": size_bytes,
                "copy": 0,
                "left_s": journal.seconds(left_ns),
            }
            copies = [
                {
                    "copy": copy,
                    "arrived_s": journal.seconds(t_ns),
                    "delay_s": None if left_ns is None else between(left_ns, t_ns),
                    "place": place,
                    "intact": intact,
                }
                for copy, (place, t_ns, intact) in enumerate(arrivals[number])
            ]
            rows += [{**probe, **copy} for copy in copies or [{}]]
    return rows


def counters(journal: SortedJournal) -> list[Row]:
    """Counters of the WAN's devices and qdiscs at t0 and at the end, one row per place."""
    return [
        {
            "t_s": journal.seconds(line.t_ns),
            "moment": line.moment,
            "direction": line.direction,
            "place": place,
            **found,
        }
        for line in journal.of(lines.Counters)
        for place, found in line.places.items()
    ]
