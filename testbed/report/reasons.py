"""Why the scheduler decided as it did: every decision, counted by its reason."""

from __future__ import annotations

from typing import Final

import polars as pl

from testbed.report.markup import Child, Markup, element, joined
from testbed.report.signals import Tables
from testbed.report.tables import DASH, grid

MOST_KINDS: Final = 20
NUMBER: Final = r"\d[\d,]*(?:\.\d+)?"
"""Reasons that differ in their numbers only are of one kind."""


def routes(tables: Tables) -> Markup:
    """Where requests went and why: one row for each route and kind of reason."""
    return _counted(
        tables["decisions"].filter(pl.col("kind") == "route"),
        ("route", pl.col("route").fill_null("refused")),
        "no request was routed",
    )


def control(tables: Tables) -> Markup:
    """What each control interval did to the threshold and why."""
    change = pl.col("threshold_tokens") - pl.col("previous_tokens")
    moved = pl.when(change > 0).then(pl.lit("up")).when(change < 0).then(pl.lit("down"))
    return _counted(
        tables["decisions"].filter(pl.col("kind") == "control"),
        ("threshold", moved.otherwise(pl.lit("as it was"))),
        "nothing was controlled",
    )


def _counted(decisions: pl.DataFrame, what: tuple[str, pl.Expr], empty: str) -> Markup:
    name, decided = what
    found = (
        decisions.sort("t_s", maintain_order=True)
        .group_by(
            decided.alias("decided"),
            pl.col("reason").fill_null("").str.replace_all(NUMBER, "…").alias("pattern"),
            maintain_order=True,
        )
        .agg(
            pl.len().alias("count"),
            pl.col("t_s").min().alias("first"),
            pl.col("t_s").max().alias("last"),
            pl.col("reason").first(),
        )
        .sort("count", "decided", "pattern", descending=[True, False, False])
    )
    rows: list[list[Child]] = [
        [
            row["decided"],
            row["pattern"] or DASH,
            row["reason"] if row["reason"] and row["reason"] != row["pattern"] else DASH,
            f"{row['count']:,}",
            f"{100 * row['count'] / decisions.height:.1f} %",
            f"{row['first']:.2f} s",
            f"{row['last']:.2f} s",
        ]
        for row in found.head(MOST_KINDS).iter_rows(named=True)
    ]
    rest = found["count"][MOST_KINDS:].sum()
    heads = [name, "reason", "for example", "decisions", "share", "first at", "last at"]
    more = f"and {rest:,} decisions for {found.height - MOST_KINDS:,} rarer reasons"
    return joined(grid(heads, rows, left=3, empty=empty), element("p", more, class_="soft") if rest else None)
