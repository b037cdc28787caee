"""Whether the samples reach from the start of the run to its end: a file that was cut short shows nothing.

The link is sampled all the time. Of TCP there are samples only while something moves, so a gap shows where
KV over the WAN arrived, or the link was busy with a transfer, and there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from testbed.audit.finding import Finding
from testbed.audit.notes import clock
from testbed.plan import Direction, Plan
from testbed.readable import number, quantity
from testbed.units import NS_PER_S

LINK_INTERVALS: Final = 5
TCP_INTERVALS: Final = 2
LEAST_S: Final = {"virtual": 0.0, "real": 2.0}
"""A gap that is no reason yet: a machine that does something else for a moment samples late."""
BUSY_SHARE: Final = 0.25
"""Of the link's rate: more than control traffic, whose connections are not sampled, ever takes."""
ARRIVED_SHARE: Final = 0.5
"""Of a transfer's bytes: what went over the link in its time tells its direction."""

Gap = tuple[float, float]
"""From when to when, in seconds since t0."""


def judge(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """The longest gaps that are too long; of a run that was broken off there is nothing to say."""
    ends_s = tables["events"].filter(pl.col("kind") == "end")["t_s"]
    links = tables["links"].filter(pl.col("direction") == direction)
    if ends_s.is_empty() or links.is_empty():
        return
    end_s, least_s = float(ends_s[0]), LEAST_S[clock(tables)]
    interval_s = plan.sample_ns / NS_PER_S
    allowed_s = max(LINK_INTERVALS * interval_s, least_s)
    gaps = [gap for gap in _between(links["t_s"].to_numpy(), 0.0, end_s) if _length(gap) > allowed_s]
    yield from _finding("samples", direction, "link", interval_s, allowed_s, gaps)
    interval_s = plan.tcp_sample_ns / NS_PER_S
    allowed_s = max(TCP_INTERVALS * interval_s, least_s)
    gaps = _tcp_gaps(plan, _Carried(links), tables, end_s, allowed_s)
    yield from _finding("samples of TCP", direction, "tcp", interval_s, allowed_s, gaps)


def _finding(  # noqa: PLR0917 - what a sentence is made of, in its order
    what: str, direction: Direction, writer: str, interval_s: float, allowed_s: float, gaps: Sequence[Gap]
) -> Iterator[Finding]:
    if not gaps:
        return
    from_s, to_s = max(gaps, key=_length)
    yield Finding(
        what,
        direction,
        f"one every {quantity(interval_s, 's')}",
        f"none from {number(from_s)} s to {number(to_s)} s",
        f"up to {quantity(allowed_s, 's')} without",
        ok=False,
        more=f"journal/{writer}.jsonl is not whole",
    )


class _Carried:
    """What left the rate stage of a direction between two moments, and what could have (bits)."""

    def __init__(self, links: pl.DataFrame) -> None:
        self._times_s = links["t_s"].to_numpy()
        steps_s = np.diff(self._times_s, prepend=self._times_s[0])
        self._sent = np.cumsum(links["throughput_bps"].fill_null(0.0).to_numpy() * steps_s)
        self._most = np.cumsum(links["rate_bps"].to_numpy() * steps_s)

    def bits(self, gap: Gap) -> float:
        return float(np.diff(np.interp(gap, self._times_s, self._sent))[0])

    def share(self, gap: Gap) -> float:
        most = float(np.diff(np.interp(gap, self._times_s, self._most))[0])
        return self.bits(gap) / most if most > 0 else 0.0


def _tcp_gaps(
    plan: Plan, carried: _Carried, tables: Mapping[str, pl.DataFrame], end_s: float, allowed_s: float
) -> list[Gap]:
    """Times without samples in which TCP moved bytes over the WAN.

    Who sends UDP or runs programs keeps the link busy without samples: then KV alone tells.
    """
    samples_s = np.unique(tables["tcp"]["t_s"].to_numpy())
    kv_s = np.sort(tables["tcp"].filter(pl.col("use") == "kv")["t_s"].to_numpy())
    wan = tables["transfers"].filter(pl.col("wan") & pl.col("start_s").is_not_null())
    gaps: list[Gap] = []
    arrived = wan.filter(pl.col("use").is_in(["kv", "cache"]) & (pl.col("state") == "completed"))
    for start_s, done_s, size_bytes in arrived.select("start_s", "end_s", "size_bytes").rows():
        if done_s is None or done_s + allowed_s > end_s:
            continue
        first = int(np.searchsorted(kv_s, start_s))
        sampled = first < len(kv_s) and kv_s[first] <= done_s + allowed_s
        if not sampled and carried.bits((start_s, done_s + allowed_s)) > ARRIVED_SHARE * 8 * size_bytes:
            gaps.append((start_s, done_s + allowed_s))
    if plan.microbursts or plan.programs:
        return gaps
    flows = wan.filter(pl.col("use").is_in(["tenant", "bulk"])).select("start_s", "end_s")
    for start_s, done_s in flows.rows():
        until_s = end_s if done_s is None else min(done_s, end_s)
        quiet = [gap for gap in _between(samples_s, start_s, until_s) if _length(gap) > allowed_s]
        gaps += [gap for gap in quiet if carried.share(gap) >= BUSY_SHARE]
    return gaps


def _between(samples_s: npt.NDArray[np.float64], from_s: float, to_s: float) -> list[Gap]:
    """The times without any of these samples, from one moment to another."""
    first, last = np.searchsorted(samples_s, from_s, side="right"), np.searchsorted(samples_s, to_s)
    return list(pairwise([from_s, *samples_s[first:last].tolist(), to_s]))


def _length(gap: Gap) -> float:
    return gap[1] - gap[0]
