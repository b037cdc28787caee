"""Whether the programs of a scenario did as they should. Pure: it looks at the record alone."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from testbed.plan import Plan
from testbed.verdict import Result

NAME, METRIC = "programs", "programs.failed"


def judge(plan: Plan, tables: Mapping[str, pl.DataFrame]) -> Result | None:
    """Whether each became ready and ended as expected; None without programs, or if the run was cut short."""
    events = tables["events"]
    if not plan.programs or "end" not in set(events["kind"]):
        return None
    failed = events.filter(pl.col("kind") == "program_failed").sort("t_s")
    causes: dict[str, str] = {}
    for name, detail in failed.select("name", "detail").iter_rows():
        causes.setdefault(name, f"{name} {detail}")
    number = len(plan.programs)
    return Result(
        name=NAME,
        kind="programs",
        metric=METRIC,
        status="FAIL" if causes else "PASS",
        measured=float(len(causes)),
        unit="programs",
        bound="none",
        margin=-float(len(causes)),
        sentence="; ".join(causes.values()) or f"{number} program{'s' * (number > 1)} did as expected",
    )
