"""Whether everything that the system under test handled is accounted for. Pure: it looks at the tables alone.

- Every request has one terminal state and is answered once, from KV that was complete and whole.
- Every attempt to move KV has one fate: what it produced was delivered, dropped with a reason, or superseded
  by another attempt; what was delivered is what was announced, and what the sink counted.
- The words of its two ends fit: nobody received what was not produced, nothing was acknowledged that the sink
  did not count. Where one was killed, half of the words may be missing.
- At the end of the run no pool holds anything, but for requests that were still open then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from testbed.plan import Plan
from testbed.readable import quantity
from testbed.record_transfers import LAST_MOMENT_NS, RUN_ENDED
from testbed.units import NS_PER_S
from testbed.verdict import Result

Tables = Mapping[str, pl.DataFrame]

NAME, METRIC = "ledger", "ledger.violations"
SHOWN = 3
"""Violations that the sentence of the verdict spells out."""


def judge(plan: Plan, tables: Tables) -> Result | None:
    """Whether the ledger balances; None without requests, or for a run that did not end by itself."""
    found = violations(tables)
    if not plan.requests or found is None:
        return None
    return Result(
        name=NAME,
        kind="ledger",
        metric=METRIC,
        status="FAIL" if found else "PASS",
        measured=float(len(found)),
        unit="violations",
        bound="none",
        margin=-float(len(found)),
        sentence=_sentence(found),
    )


def violations(tables: Tables) -> list[str] | None:
    """Everything that is not accounted for, in sentences; None for a run that did not end by itself."""
    ends = tables["events"].filter(pl.col("kind") == "end")["t_s"].drop_nulls().to_list()
    if not ends:
        return None
    return [
        *(text for row in tables["requests"].iter_rows(named=True) for text in _request(row)),
        *(text for row in kv(tables).iter_rows(named=True) for text in _attempt(row)),
        *(text for row in kv(tables).iter_rows(named=True) for text in _ends(row, tables["faults"])),
        *_pools(tables, float(ends[0])),
    ]


def kv(tables: Tables) -> pl.DataFrame:
    """The rows of transfers that have a fate: of requests, and of cached prefixes."""
    return tables["transfers"].filter(pl.col("use").is_in(["kv", "cache"]))


def _request(row: dict[str, Any]) -> Iterator[str]:
    who = f"request {row['id']}"
    if row["state"] == "unfinished":
        yield f"{who} has no end"
    if row["served_twice"]:
        yield f"{who} was answered twice"
    if row["decode_start_s"] is not None and row["kv_done_s"] is None:
        yield f"{who} was decoded without all of its KV"
    if row["decode_start_s"] is None and row["state"] == "completed":
        yield f"{who} was answered, but nobody decoded it"


def _attempt(row: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one attempt."""
    who = _who(row)
    produced, delivered, dropped, superseded = (
        row[f"{what}_bytes"] for what in ("produced", "delivered", "dropped", "superseded")
    )
    if row["fate"] is None or produced != delivered + dropped + superseded:
        texts = _sizes(produced, delivered, dropped)
        yield f"{who}: {texts[0]} produced, {texts[1]} delivered, {texts[2]} dropped"
    elif row["fate"] == "delivered" and delivered != row["size_bytes"]:
        texts = _sizes(row["size_bytes"], delivered)
        yield f"{who}: {texts[0]} announced, {texts[1]} delivered"
    if row["source_bytes"] not in {None, produced}:
        texts = _sizes(produced, row["source_bytes"])
        yield f"{who}: {texts[0]} produced, but {row['source']} says {texts[1]}"
    if row["damaged_chunks"]:
        chunks = quantity(row["damaged_chunks"], "chunks")
        yield f"{who}: {row['sink']} accepted {chunks} although damaged"


def _ends(row: dict[str, Any], faults: pl.DataFrame) -> Iterator[str]:
    """What the two ends of one attempt say against each other, if neither was killed since it began."""
    sink_bytes, acked_bytes = row["sink_bytes"], row["acked_bytes"]
    if sink_bytes is None or acked_bytes is None:
        return
    killed = pl.col("fault").is_in(["kill", "restart"]) & (pl.col("t_s") >= row["start_s"])
    if not faults.filter(killed & pl.col("target").is_in([row["source"], row["sink"]])).is_empty():
        return
    who = _who(row)
    if sink_bytes > row["produced_bytes"]:
        texts = _sizes(row["produced_bytes"], sink_bytes)
        yield f"{who}: {texts[0]} produced, but {row['sink']} received {texts[1]}"
    if acked_bytes > sink_bytes:
        texts = _sizes(acked_bytes, sink_bytes)
        yield f"{who}: {texts[0]} acknowledged, but {row['sink']} received {texts[1]}"


def _who(row: dict[str, Any]) -> str:
    if row["use"] == "cache":
        return f"cached prefix {row['id']}"
    return f"request {row['id']}, attempt {row['attempt']}"


def _pools(tables: Tables, end_s: float) -> Iterator[str]:
    """What is held at the end, by instances with no request open that could explain it."""
    ended_s = pl.col("end_s")
    still_open = tables["requests"].filter(ended_s.is_null() | (ended_s > end_s - LAST_MOMENT_NS / NS_PER_S))
    cut_off = kv(tables).filter((pl.col("use") == "cache") & (pl.col("cause") == RUN_ENDED))
    holders = {
        "send": Counter([*still_open["prefill"], *cut_off["source"]]),
        "receive": Counter([*still_open["decode"], *cut_off["sink"]]),
    }
    last = tables["pools"].group_by("instance", "pool", maintain_order=True).last().sort("instance", "pool")
    for row in last.iter_rows(named=True):
        instance, transfers = row["instance"], row["transfers"]
        if transfers > holders[row["pool"]][instance] or (row["held_bytes"] and not transfers):
            held = f"{_sizes(row['held_bytes'])[0]} in {quantity(transfers, 'transfers')}"
            yield f"{instance} holds {held} at the end"


def _sentence(found: list[str]) -> str:
    if not found:
        return "every request and every byte of KV is accounted for"
    more = len(found) - SHOWN
    return "; ".join(found[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _sizes(*sizes_bytes: int) -> list[str]:
    """Rounded, unless that hides a difference."""
    rounded = [quantity(size_bytes, "bytes") for size_bytes in sizes_bytes]
    hidden = len(set(rounded)) < len(set(sizes_bytes))
    return [f"{size_bytes:,} B" for size_bytes in sizes_bytes] if hidden else rounded
