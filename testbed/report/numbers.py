"""The main numbers of a run, as texts: for the page, for Markdown and for the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from testbed.plan import Plan
from testbed.readable import number, quantity
from testbed.report import computing
from testbed.report.signals import Tables
from testbed.report.tables import DASH


@dataclass(frozen=True)
class Number:
    """One of them; `rest` is what follows the value in small print."""

    name: str
    value: str
    rest: str = ""


def main_numbers(
    plan: Plan, tables: Tables, manifest: Mapping[str, object], digest: str
) -> tuple[Number, ...]:
    """What was served, what crossed the WAN, how long it took, and what all of that depends on."""
    requests, transfers = tables["requests"], tables["transfers"]
    over_wan = transfers.filter((pl.col("use") == "kv") & pl.col("wan") & (pl.col("state") == "completed"))
    completed = (requests["state"] == "completed").sum()
    return (
        Number("requests completed", str(completed), f" of {requests.height}"),
        *(_ttft(tables, share) for share in (0.5, 0.9)),
        Number("offloaded", str((requests["route"] == "prfaas").sum()), " requests"),
        Number("KV over the WAN", quantity(float(over_wan["size_bytes"].sum()), "bytes")),
        *_clock(tables, manifest, real_time=computing.in_real_time(plan, manifest)),
        Number("scale", number(plan.scale), " full rate" if plan.scale == 1 else " of full rate"),
        *((Number("policy", plan.policy.name),) if plan.policy.name else ()),
        Number("seed", str(plan.seed)),
        Number("record digest", digest[:12]),
    )


def _ttft(tables: Tables, share: float) -> Number:
    found = tables["requests"]["ttft_s"].quantile(share, "linear")
    return Number(f"TTFT P{share * 100:.0f}", DASH if found is None else quantity(found, "s"))


def _clock(tables: Tables, manifest: Mapping[str, object], *, real_time: bool) -> tuple[Number, ...]:
    last_s = max(
        (table["t_s"].max() or 0.0 for table in tables.values() if "t_s" in table.columns), default=0.0
    )
    virtual_s, wall_s = manifest.get("virtual_s", last_s), manifest.get("wall_s")
    found = []
    if isinstance(virtual_s, int | float):
        found.append(Number("real time" if real_time else "virtual time", f"{virtual_s:,.1f} s"))
    if isinstance(wall_s, int | float):
        found.append(Number("wall time", f"{wall_s:,.1f} s"))
        if isinstance(virtual_s, int | float) and wall_s > 0 and not real_time:
            found.append(Number("faster than real time", f"{number(virtual_s / wall_s)} times"))
    return tuple(found)
