"""Whether the link was what the scenario says: a pure comparison of the plan with the record.

`judge` gives a finding for everything that was measured: before the workload by a transfer and a train of
probes, during the run by the kernel's counters. One that is not ok makes the run's verdict UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from testbed.audit import counters, idle, running, telemetry, train
from testbed.audit.finding import ABSENT, Finding, summary, table
from testbed.plan import DIRECTIONS, Plan

__all__ = ["ABSENT", "Finding", "judge", "summary", "table"]


def judge(plan: Plan, tables: Mapping[str, pl.DataFrame]) -> list[Finding]:
    """Everything that was measured of the link, direction by direction, in the order of measuring."""
    return [
        finding
        for direction in DIRECTIONS
        for part in (idle.judge, train.judge, telemetry.judge, running.judge, counters.judge)
        for finding in part(plan, direction, tables)
    ]
