"""Whether the policy broke. Pure: it looks at the tables alone.

A policy that crashes, hangs or answers nonsense is what the run found out: FAIL, whatever could not be
measured afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from testbed.readable import number
from testbed.verdict import Result

NAME, METRIC = "policy", "policy.failures"


def judge(tables: Mapping[str, pl.DataFrame]) -> Result | None:
    """How the policy broke; None when it did not."""
    failed = tables["decisions"].filter(pl.col("kind") == "failed")
    if failed.is_empty():
        return None
    first = failed.row(0, named=True)
    about = "" if first["id"] is None else f", asked about request {first['id']}"
    return Result(
        name=NAME,
        kind="policy",
        metric=METRIC,
        status="FAIL",
        measured=float(failed.height),
        unit="failures",
        bound="none",
        margin=-float(failed.height),
        sentence=f"at {number(first['t_s'])} s{about}: {first['reason']}",
    )
