"""The tables of the page, each from the record."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from testbed.readable import number, quantity
from testbed.report import signals
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.signals import Tables
from testbed.report.svg import TimeAxis
from testbed.report.waterfall import mention

SLOWEST, LAST_CHANGES, LAST_ROUTES, MOST_CONNECTIONS = 10, 16, 10, 24
MOST_TROUBLED = 30
DASH = "\N{EN DASH}"
ROUTES = {"prfaas": "prefilled in A (offloaded)", "pd": "prefilled in B", None: "not routed"}


def grid(
    heads: Sequence[str], rows: Sequence[Sequence[Child]], *, left: int = 1, empty: str = "none"
) -> Markup:
    """A table whose first `left` columns are text and whose other columns are numbers."""
    if not rows:
        return element("p", empty, class_="soft")
    classes = [None if index < left else "n" for index in range(len(heads))]
    # A column without a name has no header: an empty one would be read aloud as one.
    head = [
        element("th", text, class_=kind, scope="col") if text else element("td")
        for text, kind in zip(heads, classes, strict=True)
    ]
    body = [
        element("tr", [element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True)])
        for row in rows
    ]
    table = element("table", element("thead", element("tr", head)), element("tbody", body))
    return element("div", table, class_="scroll")


def shown(value: object, unit: str = "") -> str:
    """A cell: the quantity, or a dash for what is not there."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return DASH if value is None else str(value)
    return quantity(value, unit) if unit else number(value)


def phases(tables: Tables, axis: TimeAxis) -> Markup:
    """Before, during and after the trouble, side by side."""
    rows: list[list[Child]] = []
    for name, from_s, to_s in signals.phases(axis):
        requests = _between(tables["requests"], "sent_s", from_s, to_s)
        control = _between(tables["decisions"].filter(pl.col("kind") == "control"), "t_s", from_s, to_s)
        link = _between(tables["links"].filter(pl.col("direction") == "a_to_b"), "t_s", from_s, to_s)
        routed = requests.filter(pl.col("route").is_not_null())
        share = (routed["route"] == "prfaas").sum() / routed.height if routed.height else None
        rows.append([
            joined(name, element("span", f" {number(from_s, 4)} to {number(to_s, 4)} s", class_="soft")),
            str(requests.height),
            DASH if share is None else f"{100 * share:.0f} %",
            *(shown(requests["ttft_s"].quantile(q, "linear"), "s") for q in (0.5, 0.9)),
            shown(requests["kv_transfer_s"].quantile(0.9, "linear"), "s"),
            shown(control["threshold_tokens"].median()),
            shown(link["throughput_bps"].mean(), "bps"),
            shown(link["backlog_bytes"].max(), "bytes"),
        ])  # fmt: skip
    heads = [
        "", "requests", "offloaded", "TTFT P50", "TTFT P90", "KV transfer not hidden, P90",
        "threshold, median", "link A → B, mean", "queue, largest",
    ]  # fmt: skip
    return grid(heads, rows)


def by_route(tables: Tables) -> Markup:
    """How requests fared on each route; medians, and tails of the time to first token."""
    rows: list[list[Child]] = []
    for route, label in (
        ("prfaas", "prefilled in A (offloaded)"),
        ("pd", "prefilled in B"),
        (None, "not routed"),
    ):
        chosen = pl.col("route").is_null() if route is None else pl.col("route") == route
        requests = tables["requests"].filter(chosen)
        if requests.is_empty():
            continue
        rows.append([
            label,
            str(requests.height),
            str((requests["state"] == "completed").sum()),
            *(shown(requests["ttft_s"].quantile(q, "linear"), "s") for q in (0.5, 0.9, 0.99)),
            *(
                shown(requests[column].median(), "s")
                for column in ("queue_s", "prefill_s", "kv_transfer_s", "itl_s", "e2e_s")
            ),
            shown(requests["kv_bytes"].sum(), "bytes"),
        ])  # fmt: skip
    heads = [
        "route", "requests", "completed", "TTFT P50", "P90", "P99", "queue P50", "prefill P50",
        "KV transfer P50", "ITL P50", "E2E P50", "KV",
    ]  # fmt: skip
    return grid(heads, rows)


def endings(tables: Tables) -> Markup | None:
    """Requests that did not complete, by state and cause; None when all did."""
    lost = tables["requests"].filter(pl.col("state") != "completed")
    if lost.is_empty():
        return None
    counted = (
        lost.group_by("state", "cause").agg(pl.len(), pl.col("id").sort().head(8)).sort("state", "cause")
    )
    rows: list[list[Child]] = [
        [state, cause or DASH, ", ".join(map(str, ids)), str(count)]
        for state, cause, count, ids in counted.iter_rows()
    ]
    return grid(["state", "cause", "requests", "count"], rows, left=3)


def slowest(tables: Tables) -> Markup:
    """The requests that waited longest for their first token, and where the time went."""
    requests = tables["requests"].filter(pl.col("ttft_s").is_not_null())
    worst = requests.sort("ttft_s", "id", descending=[True, False]).head(SLOWEST)
    longest = worst["ttft_s"].max()
    rows: list[list[Child]] = []
    for row in worst.iter_rows(named=True):
        parts = [row["queue_s"] or 0.0, row["prefill_s"] or 0.0, row["kv_transfer_s"] or 0.0]
        rest = max(0.0, row["ttft_s"] - sum(parts))
        rows.append([
            mention(row),
            row["prefill"] or DASH,
            _stack([*parts, rest], float(longest) if isinstance(longest, float) else 1.0),
            shown(row["sent_s"], "s"),
            shown(row["input_tokens"]),
            shown(row["ttft_s"], "s"),
            *(shown(row[column], "s") for column in ("queue_s", "prefill_s", "kv_transfer_s")),
            shown(rest, "s"),
        ])  # fmt: skip
    key = element(
        "p",
        [
            joined(element("span", class_=f"swatch s-{name}"), text)
            for name, text in (
                ("queue", "queue"), ("prefill", "prefill"), ("kv", "KV transfer not hidden"),
                ("rest", "routing, first decode step, way back"),
            )
        ],
        class_="soft",
    )  # fmt: skip
    heads = [
        "request", "prefill", "time to first token", "sent at", "input tokens", "TTFT", "queue", "prefill",
        "KV", "rest",
    ]  # fmt: skip
    return joined(grid(heads, rows, left=3, empty="no request got a first token"), key if rows else None)


def troubled(tables: Tables) -> Markup | None:
    """Requests that did not complete or were tried again, one by one; None where there were none."""
    again = pl.col("recomputed") | pl.col("retried") | (pl.col("attempts") > 1)
    found = tables["requests"].filter((pl.col("state") != "completed") | again)
    if found.is_empty():
        return None
    lost_first = found.sort(pl.col("state") == "completed", "id").head(MOST_TROUBLED)
    rows: list[list[Child]] = [
        [
            mention(row),
            row["state"],
            row["cause"] or DASH,
            row["prefill"] or DASH,
            row["decode"] or DASH,
            shown(row["sent_s"], "s"),
            str(row["attempts"]),
            *(shown(row[column], "s") for column in ("queue_s", "prefill_s", "kv_transfer_s", "e2e_s")),
        ]
        for row in lost_first.iter_rows(named=True)
    ]
    heads = [
        "request", "state", "cause", "prefill", "decode", "sent at", "attempts", "queue", "prefill", "KV",
        "whole",
    ]  # fmt: skip
    rest = found.height - len(rows)
    note = element("p", f"and {rest:,} more", class_="soft") if rest else None
    return joined(grid(heads, rows, left=5), note)


def threshold_changes(tables: Tables) -> Markup:
    """The last times the policy moved its threshold or wanted other roles, and why."""
    moved = tables["decisions"].filter(
        (pl.col("kind") == "control")
        & ((pl.col("threshold_tokens") != pl.col("previous_tokens")) | (pl.col("reason") != ""))
    )
    rows: list[list[Child]] = [
        [
            f"{row['t_s']:.2f} s",
            row["reason"] or DASH,
            shown(row["previous_tokens"]),
            shown(row["threshold_tokens"]),
            shown(row["capacity_bps"], "bps") if row["capacity_bps"] is not None else "not binding",
            shown(row["backlog_bytes"], "bytes"),
            shown(row["retrans_ratio"], "ratio"),
        ]
        for row in moved.tail(LAST_CHANGES).iter_rows(named=True)
    ]
    heads = ["at", "reason", "from tokens", "to tokens", "believed capacity", "backlog", "sent again, share"]
    note = (
        element("p", f"the last {LAST_CHANGES} of {moved.height}", class_="soft")
        if moved.height > LAST_CHANGES
        else None
    )
    return joined(note, grid(heads, rows, left=2, empty="the threshold never moved"))


def last_routes(tables: Tables) -> Markup:
    """The last decisions about single requests."""
    routed = tables["decisions"].filter(pl.col("kind") == "route").tail(LAST_ROUTES)
    rows: list[list[Child]] = [
        [
            f"{row['t_s']:.2f} s",
            row["route"] or "refused",
            row["reason"] or DASH,
            str(row["id"]),
            shown(row["uncached_tokens"]),
        ]
        for row in routed.iter_rows(named=True)
    ]
    return grid(["at", "route", "reason", "request", "uncached tokens"], rows, left=3)


def transfers(tables: Tables) -> Markup:
    """KV, other tenants and bulk transfers, summed up."""
    names = {
        ("kv", True): "KV over the WAN", ("kv", False): "KV inside datacenter B",
        ("tenant", True): "other tenants", ("microburst", True): "microbursts",
        ("bulk", True): "bulk transfers",
    }  # fmt: skip
    rows: list[list[Child]] = []
    for (use, wan), name in names.items():
        chosen = tables["transfers"].filter((pl.col("use") == use) & (pl.col("wan") == wan))
        if chosen.is_empty():
            continue
        rows.append([
            name,
            str(chosen.height),
            str((chosen["state"] == "failed").sum()),
            str((chosen["state"] == "partial").sum()),
            shown(chosen.filter(pl.col("state") == "completed")["size_bytes"].sum(), "bytes"),
            *(shown(chosen["goodput_bps"].quantile(q, "linear"), "bps") for q in (0.1, 0.5, 0.9)),
            shown(chosen["chunks"].sum()) if chosen["chunks"].count() else DASH,
            shown(chosen["checksum_errors"].sum()) if chosen["checksum_errors"].count() else DASH,
        ])  # fmt: skip
    heads = [
        "",
        "transfers",
        "failed",
        "partial",
        "bytes of the complete",
        "goodput P10",
        "P50",
        "P90",
        "chunks",
        "checksum errors",
    ]
    return grid(heads, rows, empty="nothing was transferred")


def connections(tables: Tables) -> Markup:
    """TCP, one row per connection, those with most bytes first."""
    by_socket = (
        tables["tcp"]
        .group_by("host", "local", "remote", "use", "congestion_control")
        .agg(
            pl.col("bytes_acked").max(), pl.col("bytes_retrans").max(), pl.col("rtt_s").median(),
            pl.col("rtt_s").max().alias("rtt_max_s"), pl.col("cwnd_packets").max(),
            pl.col("delivery_bps").max(),
        )
        .sort("bytes_acked", "host", "local", "remote", descending=[True, False, False, False])
    )  # fmt: skip
    rows: list[list[Child]] = [
        [
            f"{row['host']}  {row['local']} → {row['remote']}",
            row["use"],
            row["congestion_control"],
            shown(row["bytes_acked"], "bytes"),
            shown(row["bytes_retrans"], "bytes"),
            shown(100 * row["bytes_retrans"] / row["bytes_acked"]) + " %" if row["bytes_acked"] else DASH,
            shown(row["rtt_s"], "s"),
            shown(row["rtt_max_s"], "s"),
            shown(row["cwnd_packets"]),
            shown(row["delivery_bps"], "bps"),
        ]
        for row in by_socket.head(MOST_CONNECTIONS).iter_rows(named=True)
    ]
    rest = by_socket.height - len(rows)
    heads = [
        "connection", "use", "cc", "acked", "sent again", "share", "RTT P50", "RTT max", "cwnd max, packets",
        "delivery rate max",
    ]  # fmt: skip
    note = element("p", f"and {rest} more connections with fewer bytes", class_="soft") if rest > 0 else None
    return joined(grid(heads, rows, left=3, empty="no socket was sampled"), note)


def _between(table: pl.DataFrame, column: str, from_s: float, to_s: float) -> pl.DataFrame:
    return table.filter((pl.col(column) >= from_s) & (pl.col(column) < to_s))


def _stack(parts: Sequence[float], longest: float) -> Markup:
    names = ("queue", "prefill", "kv", "rest")
    segments = [
        element("i", class_=f"s-{name}", style=f"width:{100 * part / longest:.2f}%")
        for name, part in zip(names, parts, strict=True)
    ]
    return element("div", segments, class_="stack", aria_hidden="true")
