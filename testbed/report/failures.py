"""What failed and what became of it: the ledger of KV, faults, instances given up, pools and connections."""

from __future__ import annotations

import polars as pl

from testbed import ledger
from testbed.report import signals
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.signals import Tables
from testbed.report.svg import Chart, Curve, TimeAxis
from testbed.report.tables import DASH, grid, shown

GIGA = 1e-9
KINDS = {
    ("kv", True): "KV over the WAN",
    ("kv", False): "KV inside datacenter B",
    ("cache", True): "cached prefixes over the WAN",
    ("cache", False): "cached prefixes inside datacenter B",
}
MOST_ROWS = 30


def charts(tables: Tables, axis: TimeAxis) -> tuple[Chart, ...]:
    """Only of what there is: runs without faults, or without agents, show less."""
    found = []
    if not (tables["faults"].is_empty() and tables["health"].is_empty()):
        faults = signals.in_state(signals.fault_spans(tables["faults"]), axis.to_s)
        down = tables["health"].filter(~pl.col("up"))
        given_up = signals.in_state(
            down.select("t_s", (pl.col("t_s") + pl.col("down_s")).alias("end_s")).rows(), axis.to_s
        )
        curves = (
            Curve("faults under way", "red", "step", *signals.steps_only(faults)),
            Curve("instances that the router has given up", "orange", "step", *signals.steps_only(given_up)),
        )
        found.append(Chart("Faults", "count", 110, curves))
    if not tables["pools"].is_empty():
        pools = [
            Curve(label, colour, "step", *signals.total(tables["pools"], pool, GIGA))
            for pool, label, colour in (
                ("send", "of prefill instances", "purple"),
                ("receive", "of decode instances", "green"),
            )
        ]
        found.append(Chart("KV held by all pools", "GB", 110, tuple(pools)))
    sockets = signals.samples(tables["connections"], "sockets")
    if sockets[0]:  # none where all were opened before the workload began, and stayed
        curve = Curve("open at the instance that changed", "blue", "dots", *sockets)
        found.append(Chart("Connections for KV", "sockets", 110, (curve,)))
    return tuple(found)


def balance(tables: Tables) -> Markup:
    """The ledger: where all that was produced went, what is not accounted for, and why KV was dropped."""
    rows: list[list[Child]] = []
    attempts = ledger.kv(tables)
    for (use, wan), name in KINDS.items():
        chosen = attempts.filter((pl.col("use") == use) & (pl.col("wan") == wan))
        if chosen.is_empty():
            continue
        amounts = ("produced", "delivered", "dropped", "superseded", "resent")
        rows.append([
            name,
            str(chosen.height),
            str(chosen["resumed"].sum()),
            *(shown(chosen[f"{amount}_bytes"].sum(), "bytes") for amount in amounts),
        ])  # fmt: skip
    heads = ["", "attempts", "resumed", "produced", "delivered", "dropped", "superseded", "sent again"]
    return joined(
        _answer(tables),
        grid(heads, rows, empty="nothing was produced"),
        _titled("Why KV was not delivered", _causes(attempts)),
    )


def happened(tables: Tables) -> Markup | None:
    """Faults, and instances given up; None where there was neither."""
    faults: list[list[Child]] = [
        [row["fault"], row["target"], row["detail"], f"{row['t_s']:.3f} s", shown(row["end_s"], "s")]
        for row in tables["faults"].head(MOST_ROWS).iter_rows(named=True)
    ]
    down: list[list[Child]] = [
        [row["instance"], row["cause"] or DASH, f"{row['t_s']:.3f} s", shown(row["down_s"], "s")]
        for row in tables["health"].filter(~pl.col("up")).head(MOST_ROWS).iter_rows(named=True)
    ]
    again = tables["requests"].filter(pl.col("recomputed") | pl.col("retried"))
    if not (faults or down or again.height):
        return None
    tried = (
        f"{again.height} requests were tried again, {again['recomputed'].sum()} of them in the PD cluster,"
        f" {(again['state'] == 'completed').sum()} completed"
    )
    return joined(
        element("p", tried),
        _titled("Faults", grid(["fault", "of", "", "from", "to"], faults, left=3)),
        _titled("Instances given up", grid(["instance", "cause", "at", "for"], down, left=2)),
    )


def _answer(tables: Tables) -> Markup:
    found = ledger.violations(tables)
    if found is None:
        return element("p", "The run did not end by itself, so the ledger is not judged.", class_="soft")
    if not found:
        return element("p", "Every request and every byte of KV is accounted for.")
    shown_ones = [element("li", text) for text in found[:MOST_ROWS]]
    more = element("li", f"and {len(found) - MOST_ROWS} more") if len(found) > MOST_ROWS else None
    return joined(element("p", "Not accounted for:", class_="FAIL"), element("ul", shown_ones, more))


def _causes(attempts: pl.DataFrame) -> Markup | None:
    lost = attempts.filter(pl.col("fate") != "delivered")
    if lost.is_empty():
        return None
    counted = (
        lost.group_by("fate", "cause")
        .agg(pl.len(), pl.col("produced_bytes").sum())
        .sort("produced_bytes", "fate", "cause", descending=[True, False, False])
    )
    rows: list[list[Child]] = [
        [fate, cause or DASH, str(count), shown(size_bytes, "bytes")]
        for fate, cause, count, size_bytes in counted.head(MOST_ROWS).iter_rows()
    ]
    return grid(["fate", "cause", "attempts", "produced"], rows, left=2)


def _titled(title: str, content: Markup | None) -> Markup | None:
    return joined(element("h3", title), content) if content else None
