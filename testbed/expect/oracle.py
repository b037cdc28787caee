"""What the link from A to B carried while KV waited for it alone, and what it could have carried then.

KV of a request waits for the link alone from the end of its prefill, when all of it is there, until it has
arrived. The oracle knows what the link is at each moment: its rate, and the share of packets that it loses.
It fills that rate from the first moment to the last, has the link for itself, and pays neither headers nor
round trips. What was carried is what receivers acknowledged: neither headers nor what was sent again.

Connections are sampled about every second, where something moved. So time is counted in whole intervals
between these samples that lie in a time of waiting; one in which nothing moved counts, with nothing carried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import polars as pl

from testbed.measure import Tables

A_NETWORK = "10.1.0."
"""What addresses of DC A begin with: `topologies.two_dc.A_PREFIX`. KV that leaves it crosses the WAN."""
LATE = 1.5
"""Samples farther apart than so many intervals had nothing to show between them."""
FEWEST_MOMENTS = 2
BITS_PER_BYTE = 8
Span = tuple[float, float]


@dataclass(frozen=True)
class Carried:
    """What crossed, and what could have crossed."""

    carried_bits: float
    possible_bits: float
    waited_s: float


def compare(tables: Tables, from_s: float, to_s: float) -> Carried | None:
    """Carried against possible in [from, to); None where KV never waited for a whole interval."""
    waited = _waiting(tables["transfers"], from_s, to_s)
    moments_s = _moments(tables)
    acked = _acked_bytes(tables["tcp"])
    link = tables["links"].filter(pl.col("direction") == "a_to_b").sort("t_s")
    times_s = link["t_s"].to_list()
    # What was lost by chance has to be sent again; a partition loses all.
    capacity = (link["rate_bps"] * (1 - link["loss_ratio"].fill_null(0.0))).to_list()
    carried = possible = waited_s = 0.0
    for begin_s, end_s in pairwise(moments_s):
        if not any(start_s <= begin_s and end_s <= stop_s for start_s, stop_s in waited):
            continue
        seen = capacity[bisect_right(times_s, begin_s) : bisect_right(times_s, end_s)]
        if seen:
            carried += BITS_PER_BYTE * (acked(end_s) - acked(begin_s))
            possible += sum(seen) / len(seen) * (end_s - begin_s)
            waited_s += end_s - begin_s
    return Carried(carried, possible, waited_s) if possible else None


def _waiting(transfers: pl.DataFrame, from_s: float, to_s: float) -> list[Span]:
    """When some KV that arrived waited for the link alone, in [from, to], merged."""
    kv = transfers.filter((pl.col("use") == "kv") & pl.col("wan") & pl.col("hidden_ratio").is_not_null())
    prefilled_s = pl.col("start_s") + pl.col("hidden_ratio") * (pl.col("sink_end_s") - pl.col("start_s"))
    spans: list[Span] = []
    for start_s, stop_s in sorted(kv.select(prefilled_s.alias("from_s"), "sink_end_s").rows()):
        begin_s, end_s = max(start_s, from_s), min(stop_s, to_s)
        if spans and begin_s <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end_s))
        elif begin_s < end_s:
            spans.append((begin_s, end_s))
    return spans


def _moments(tables: Tables) -> list[float]:
    """When connections were sampled; with moments, an interval apart, where none had moved."""
    noted = sorted(set(tables["tcp"]["t_s"].to_list()))
    if len(noted) < FEWEST_MOMENTS:
        return []
    interval_s = median(after - before for before, after in pairwise(noted))
    until_s = max([noted[-1], *tables["links"]["t_s"].drop_nulls().to_list()])
    found = [noted[0]]
    for moment_s in [*noted[1:], until_s]:
        idle = int((moment_s - found[-1]) / interval_s - (LATE - 1)) if moment_s > found[-1] else 0
        # Counted back from the sample that shows what moved in the interval before it.
        found += [moment_s - number * interval_s for number in range(idle, 0, -1)]
        found.append(moment_s)
    return found


class _Counter:
    """Bytes acknowledged up to a moment, as last noted."""

    def __init__(self, times_s: Sequence[float], sums: Sequence[int]) -> None:
        self._times_s, self._sums = times_s, sums

    def __call__(self, t_s: float) -> int:
        place = bisect_right(self._times_s, t_s)
        return self._sums[place - 1] if place else 0


def _acked_bytes(tcp: pl.DataFrame) -> _Counter:
    """What receivers acknowledged of KV that left DC A, over all connections."""
    socket = ["host", "local", "remote"]
    delta = pl.col("bytes_acked").diff().over(socket)
    rows = tcp.filter((pl.col("use") == "kv") & pl.col("local").str.starts_with(A_NETWORK)).with_columns(
        # A counter that fell belongs to a new connection between the same ports.
        pl.when(delta.is_null() | (delta < 0)).then(pl.col("bytes_acked")).otherwise(delta).alias("bytes")
    )
    steps = rows.group_by("t_s").agg(pl.col("bytes").sum()).sort("t_s")
    return _Counter(steps["t_s"].to_list(), steps["bytes"].cum_sum().to_list())
