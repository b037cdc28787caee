"""Tables of runs of the paper's experiments, made up."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from testbed import tables as record
from testbed.paper.printed import TABLE_6

ROOT = Path(__file__).parents[2]
EMPTY = {name: pl.DataFrame(schema=schema) for name, schema in record.TABLES.items()}
Tables = dict[str, pl.DataFrame]


def controls(values: list[tuple[float, int, int]]) -> pl.DataFrame:
    """Threshold and prefill instances every 250 ms, taking the given values from the given times on."""
    rows = []
    for step in range(2400):
        t_s = step / 4
        _, tokens, n_p = max(one for one in values if one[0] <= t_s)
        rows.append({"t_s": t_s, "kind": "control", "threshold_tokens": tokens, "n_prefill": n_p})
    return pl.DataFrame(rows, schema=record.TABLES["decisions"])


def wan_run(per_s: float, values: list[tuple[float, int, int]]) -> Tables:
    """A run that completes so many requests per second, evenly, and decides as given."""
    ends = [{"state": "completed", "end_s": number / per_s} for number in range(int(600 * per_s))]
    requests = pl.DataFrame(ends, schema=record.TABLES["requests"])
    return {**EMPTY, "requests": requests, "decisions": controls(values)}


def table6_run(long_per_s: float, short_per_s: float, gbps: float) -> Tables:
    """An over-loaded run: so many requests per second of each kind from 0 to 300 s, and the link's use."""
    rows = [
        {
            "arrival_s": at_s, "prefill_end_s": at_s, "end_s": at_s, "state": "completed", "route": route,
            "input_tokens": tokens,
        }
        for route, per_s, tokens in (("prfaas", long_per_s, 45_000), ("pd", short_per_s, 8_000))
        for at_s in (number / per_s for number in range(int(300 * per_s)))
    ]  # fmt: skip
    samples = [
        {"t_s": float(t_s), "direction": "a_to_b", "throughput_bps": gbps * 1e8, "rate_bps": 10**10}
        for t_s in range(300)
    ]
    return {
        **EMPTY,
        "requests": pl.DataFrame(rows, schema=record.TABLES["requests"]),
        "links": pl.DataFrame(samples, schema=record.TABLES["links"]),
    }


def table6_runs(homogeneous_per_s: float = 2.0) -> dict[str, Tables]:
    """Runs at a tenth of the scale for all three deployments, by their scenario's file."""
    prfaas, homogeneous, naive = (column.scenario for column in TABLE_6)
    return {
        prfaas: table6_run(1.5, 1.5, 12.0),
        homogeneous: table6_run(0.0, homogeneous_per_s, 0.0) if homogeneous_per_s else {},
        naive: table6_run(2.3, 0.0, 15.0),
    }
