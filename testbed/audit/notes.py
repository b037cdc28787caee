"""What the bench noted of the link, as the record's events have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from testbed.plan import Direction


def detail(tables: Mapping[str, pl.DataFrame], kind: str, name: str) -> dict[str, Any] | None:
    """The fields of an event."""
    events = tables["events"].filter((pl.col("kind") == kind) & (pl.col("name") == name))
    return None if events.is_empty() else json.loads(events["detail"][0])


def clock(tables: Mapping[str, pl.DataFrame]) -> str:
    """Of the run: virtual or real; virtual, which is stricter, when nothing says."""
    trains = tables["events"].filter(pl.col("kind") == "train")
    return "virtual" if trains.is_empty() else str(json.loads(trains["detail"][0])["clock"])


def grain_bytes(tables: Mapping[str, pl.DataFrame], direction: Direction) -> int:
    """The largest super-packet, by which counters move."""
    noted = detail(tables, "calibration", direction)
    return int(noted["grain_bytes"]) if noted else 0
