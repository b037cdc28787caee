"""Where the decisions of two runs of the same requests part. Pure."""

from __future__ import annotations

import msgspec
import polars as pl

from testbed import sameness
from testbed.compare.sides import NAMES
from testbed.measure import Tables


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs with the same seed decided differently."""

    seed: int
    identical: bool
    """Their records are, row for row."""
    requests: int
    """Placed by both."""
    elsewhere: int
    """Of these, in another cluster."""
    other_instance: int
    """Of the rest, at another instance for prefill."""
    first_request: str
    """The first that went elsewhere, in words; empty: none did."""
    first_interval: str
    """The first control interval that ended with another threshold or other roles."""
    first_row: str
    """Where the records first differ at all."""


def part(seed: int, first: Tables, second: Tables) -> Parted:
    """Compare the decisions of two records, request by request and interval by interval."""
    placed = _placed(first).join(_placed(second), on="id", suffix="_b")
    elsewhere = placed.filter(pl.col("route").ne_missing(pl.col("route_b")))
    difference = sameness.first_difference(first, second)
    same_route = placed.filter(pl.col("route").eq_missing(pl.col("route_b")))
    return Parted(
        seed=seed,
        identical=difference is None,
        requests=placed.height,
        elsewhere=elsewhere.height,
        other_instance=same_route.filter(pl.col("prefill").ne_missing(pl.col("prefill_b"))).height,
        first_request=_request(elsewhere.sort(pl.min_horizontal("t_s", "t_s_b"), "id").head(1)),
        first_interval=_interval(first, second),
        first_row="" if difference is None else str(difference),
    )


def _placed(tables: Tables) -> pl.DataFrame:
    """The first decision about each request, and where it was prefilled in the end."""
    routes = tables["decisions"].filter((pl.col("kind") == "route") & pl.col("id").is_not_null())
    first = routes.sort("t_s", "step").unique("id", keep="first", maintain_order=True)
    instances = tables["requests"].select("id", "prefill")
    return first.select("id", "t_s", "route", "reason").join(instances, on="id", how="left")


def _request(row: pl.DataFrame) -> str:
    if row.is_empty():
        return ""
    one = row.row(0, named=True)
    sides = [
        f"{one[f'route{end}'] or 'refused'} in the {name} at {one[f't_s{end}']:.2f} s ({one[f'reason{end}']})"
        for name, end in zip(NAMES, ("", "_b"), strict=True)
    ]
    return f"request {one['id']}: {', '.join(sides)}"


def _interval(first: Tables, second: Tables) -> str:
    """Intervals are told apart by their number: both runs have the same ones until one ends."""
    columns = ["t_s", "threshold_tokens", "prefill_instances", "reason"]
    one, two = (
        tables["decisions"].filter(pl.col("kind") == "control").select(columns).with_row_index("number")
        for tables in (first, second)
    )
    both = one.join(two, on="number", suffix="_b", maintain_order="left")
    other = both.filter(
        pl.col("threshold_tokens").ne_missing(pl.col("threshold_tokens_b"))
        | pl.col("prefill_instances").ne_missing(pl.col("prefill_instances_b"))
    )
    if other.is_empty():
        return ""
    row = other.row(0, named=True)
    sides = []
    for name, end in zip(NAMES, ("", "_b"), strict=True):
        roles = row[f"prefill_instances{end}"]
        wanted = "" if roles is None else f" and {roles} prefill instances"
        why = f" ({row[f'reason{end}']})" if row[f"reason{end}"] else ""
        sides.append(f"{row[f'threshold_tokens{end}']:,} tokens{wanted} in the {name}{why}")
    return f"at {row['t_s']:.2f} s: {', '.join(sides)}"
