"""Whether KV that crossed the link led to the answers that one process gives. Pure: it looks at the tables.

With real kernels every request that completed has the tokens of a run in one process, and its logits have the
same bits at every step: what was computed on one side of the link was whole on the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from testbed.plan import Plan
from testbed.verdict import Result, Status

NAME, METRIC = "answers", "answers.wrong"
SHOWN = 3
"""Wrong answers that the sentence of the verdict spells out."""


def judge(plan: Plan, tables: Mapping[str, pl.DataFrame]) -> Result | None:
    """Whether all answers are those of one process; None where no real kernels ran, or for a run that did
    not end by itself. UNKNOWN where nothing tells what would be right.
    """
    ended = not tables["events"].filter(pl.col("kind") == "end").is_empty()
    if plan.compute != "real" or not plan.requests or not ended:
        return None
    completed = tables["answers"].filter(pl.col("state") == "completed")
    found = [text for row in completed.iter_rows(named=True) for text in _wrong(row)]
    unknown = completed["same"].null_count()
    status: Status = "FAIL" if found else "UNKNOWN" if unknown or completed.is_empty() else "PASS"
    return Result(
        name=NAME,
        kind="answers",
        metric=METRIC,
        status=status,
        measured=float(len(found)),
        unit="answers",
        bound="none wrong",
        margin=-float(len(found)),
        sentence=_sentence(found, completed, unknown),
    )


def _wrong(row: dict[str, Any]) -> Iterator[str]:
    who = f"request {row['id']}"
    if row["parts_at"] is not None:
        place = row["parts_at"]
        got, right = (_at(row[which], place) for which in ("received", "reference"))
        yield f"{who}: token {place + 1} is {got}, in one process {right}"
    elif row["same"] is False:
        yield f"{who}: the tokens are right, the logits are not, bit for bit"


def _at(tokens: list[int] | None, place: int) -> str:
    return str(tokens[place]) if tokens is not None and place < len(tokens) else "missing"


def _sentence(found: list[str], completed: pl.DataFrame, unknown: int) -> str:
    if found:
        more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return "; ".join(found[:SHOWN]) + more
    if unknown:
        return f"nothing tells whether {unknown} of {len(completed)} answers are right"
    if completed.is_empty():
        return "no request was answered"
    tokens = completed["received"].list.len().sum()
    return (
        f"{len(completed)} answers of {tokens} tokens in all are those of one process, and the logits behind "
        "them bit for bit"
    )
