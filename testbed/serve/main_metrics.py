"""The metrics that every comparison shows, of one run: what trends are drawn of."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import polars as pl

from testbed import measure
from testbed.compare import worse
from testbed.metrics import METRICS
from testbed.rundir import RunDir
from testbed.serve.summaries import Planned, read
from testbed.units import NS_PER_S


class Measured(NamedTuple):
    """A value over the whole run."""

    name: str
    value: float
    unit: str


NEEDED = (
    "requests", "decisions", "transfers", "links", "pools", "connections", "health", "events",
)  # fmt: skip
"""Tables that metrics are made of; the larger ones are not read."""


def of_run(directory: Path) -> list[Measured]:
    """All that this run has a value for; nothing where its record cannot be read."""
    run = RunDir(directory)
    planned = read(run.plan, Planned)
    if planned is None:
        return []
    try:
        tables = {name: pl.read_parquet(run.record / f"{name}.parquet", glob=False) for name in NEEDED}
        found = [(name, measure.value(METRICS[name], tables, 0.0, planned.duration_ns / NS_PER_S))
                 for name in worse.COMPARED]  # fmt: skip
    except (OSError, pl.exceptions.PolarsError):
        # An older version's record may lack a column, and a run may be removed at any moment.
        return []
    return [Measured(name, value, METRICS[name].unit) for name, value in found if value is not None]
