"""Single requests on the time axis of the charts: which of them the page holds, and how it holds them.

`waterfall.js` draws those that were under way at a moment. A page holds all requests of a small run; of a
large one those that failed, were tried again or were slow, and of the others as many in each stretch of
time as fit. How many were under way is counted over all of them, in any case.
"""

from __future__ import annotations

import json
from typing import Any, Final

import polars as pl

from testbed.report import svg
from testbed.report.document import asset
from testbed.report.markup import Markup, element, joined
from testbed.report.signals import Tables
from testbed.report.svg import TimeAxis

MOST_REQUESTS, MOST_LOST, MOST_RETRIED, MOST_SLOW = 4_000, 1_000, 500, 200
STRETCHES: Final = 200
"""In as many stretches of the time axis, requests are chosen evenly."""
FINE_S, COARSE_S, SHORT_RUN_S = 1e-4, 1e-3, 60.0
"""Times are whole numbers of this unit: finer in runs shorter than this."""
STATES: Final = ("completed", "failed", "refused", "unfinished")
MOMENTS: Final = {
    "queued": pl.col("prefill_start_s") - pl.col("queue_s"),
    "start": pl.col("prefill_start_s"),
    "end": pl.col("prefill_end_s"),
    "kv": pl.col("kv_done_s"),
    "first": pl.col("first_token_s"),
    "done": pl.col("end_s"),
}
"""Moments of a request, kept as the time since it was sent."""
HEIGHT: Final = 60
PARTS: Final = (
    ("rest", "way to the instance, attempts before the last"),
    ("queue", "queue"),
    ("prefill", "prefill"),
    ("kv", "KV transfer not hidden"),
    ("decode", "decode"),
    ("sent", "KV on the way, each attempt"),
    ("lost", "failed"),
)


def section(tables: Tables, axis: TimeAxis) -> Markup | None:
    """The figure, empty until the script fills it, and its data; None where no request was sent."""
    sent = _sent(tables)
    if sent.is_empty():
        return None
    held = chosen(tables, axis)
    remark = "each from the moment it was sent to its end; click into a chart, or press Enter there"
    caption = element(
        "figcaption",
        element("strong", "Single requests"),
        " ",
        element("span", remark),
        " ",
        _held(sent, held),
    )
    keys = [
        element("span", element("i", class_=f"block s-{name}"), label, class_="key") for name, label in PARTS
    ]
    buttons = [
        element("button", label, type="button", data_do=do)
        for do, label in (
            ("slowest", "the slowest"), ("lost", "failed or tried again"), ("back", "earlier rows"),
            ("on", "later rows"), ("zoom", "zoom to these"), ("close", "close"),
        )
    ]  # fmt: skip
    rows = element(
        "details", element("summary", "These requests as a table"), element("div", class_="scroll")
    )
    figure = element(
        "figure",
        caption,
        element("div", keys, class_="panel-head"),
        element("div", buttons, element("span", class_="now", role="status"), class_="choose"),
        element("div", _timeline(axis), class_="panel"),
        rows,
        class_="card waterfall",
        id="waterfall",
    )
    data = Markup(json.dumps(encoded(tables, axis), separators=(",", ":")).replace("<", "\\u003c"))
    return joined(
        figure,
        element("script", data, type="application/json", id="request-data"),
    )


def script() -> Markup:
    """What draws the requests; comes after the script of the charts."""
    return element("script", asset("waterfall.js"))


def mention(row: dict[str, Any]) -> Markup:
    """A request's number in a table, from which the waterfall can be opened at its first token or its end."""
    at_s = next((row[name] for name in ("first_token_s", "end_s", "sent_s") if row[name] is not None), None)
    return element("span", str(row["id"]), class_="request", data_id=row["id"], data_at=at_s)


def chosen(tables: Tables, axis: TimeAxis) -> pl.DataFrame:
    """The rows of `requests` that the page holds, by the moment they were sent; at most MOST_REQUESTS."""
    sent = _sent(tables)
    if sent.height <= MOST_REQUESTS:
        return sent
    again = pl.col("recomputed") | pl.col("retried") | (pl.col("attempts") > 1)
    answered = sent.filter(pl.col("ttft_s").is_not_null())
    special = pl.concat([
        _spread(sent.filter(pl.col("state") != "completed"), MOST_LOST, axis),
        _spread(sent.filter(again), MOST_RETRIED, axis),
        answered.sort("ttft_s", "id", descending=[True, False]).head(MOST_SLOW),
    ]).unique("id", maintain_order=True)  # fmt: skip
    others = sent.join(special.select("id"), on="id", how="anti", maintain_order="left")
    return pl.concat([special, _spread(others, MOST_REQUESTS - special.height, axis)]).sort("sent_s", "id")


def encoded(tables: Tables, axis: TimeAxis) -> dict[str, Any]:
    """What the script reads: columns of whole numbers, those that only grow as differences.

    `sent` in units since the start of the axis; the moments of `MOMENTS` in units since then, null where
    there was none; `prefill`, `decode` and `cause` as places in `names`; `transfers`: of KV, the request
    by its row, both ends in units since the request was sent, and whether it arrived. `all`, only where
    requests were left out: when each was sent, and when each ended, both in order.
    """
    held, everyone = chosen(tables, axis), _sent(tables)
    unit_s = FINE_S if axis.to_s - axis.from_s < SHORT_RUN_S else COARSE_S
    names = sorted(
        {name for column in ("prefill", "decode", "cause") for name in held[column].unique() if name}
    )
    place = {name: index for index, name in enumerate(names)}
    moments = held.select(
        ((moment - pl.col("sent_s")) / unit_s).round().cast(pl.Int64).alias(name)
        for name, moment in MOMENTS.items()
    )
    found: dict[str, Any] = {
        "unit": unit_s,
        "names": names,
        "states": STATES,
        "id": held["id"].to_list(),
        "sent": _differences(held["sent_s"], unit_s),
        **{name: moments[name].to_list() for name in MOMENTS},
        **{name: [place.get(one) for one in held[name]] for name in ("prefill", "decode", "cause")},
        "state": [STATES.index(state) for state in held["state"]],
        "route": [1 if route == "prfaas" else 0 for route in held["route"]],
        "tokens": held["input_tokens"].to_list(),
        "attempts": held["attempts"].to_list(),
        "transfers": _transfers(tables, held, unit_s),
    }  # fmt: skip
    if held.height < everyone.height:
        found["all"] = {
            "sent": _differences(everyone["sent_s"], unit_s),
            "ended": _differences(everyone["end_s"].drop_nulls().sort(), unit_s),
        }
    return found


def _transfers(tables: Tables, held: pl.DataFrame, unit_s: float) -> list[list[int | None]]:
    """Columns: row of the request (as differences), start, end, arrived."""
    rows = held.select("id", "sent_s").with_row_index("row")
    kv = tables["transfers"].filter((pl.col("use") == "kv") & pl.col("start_s").is_not_null())
    found = (
        kv.join(rows, on="id")
        .sort("row", "attempt")
        .select(
            pl.col("row").cast(pl.Int64).diff().fill_null(pl.col("row")),
            *(
                ((moment - pl.col("sent_s")) / unit_s).round().cast(pl.Int64).alias(name)
                for name, moment in (
                    ("start", pl.col("start_s")),
                    ("end", pl.coalesce("end_s", "source_end_s", "sink_end_s")),
                )
            ),
            (pl.col("state") == "completed").cast(pl.Int64).alias("arrived"),
        )
    )
    return [found[name].to_list() for name in found.columns]


def _spread(requests: pl.DataFrame, most: int, axis: TimeAxis) -> pl.DataFrame:
    """At most so many of them, evenly over time: as many of each stretch, and evenly within it."""
    if requests.height <= most or most <= 0:
        return requests.head(max(most, 0))
    share = max(1, most // STRETCHES)
    stretch = ((pl.col("sent_s") - axis.from_s) / (axis.to_s - axis.from_s) * STRETCHES).floor()
    place, count = pl.int_range(pl.len()).over("stretch"), pl.len().over("stretch")
    first = place == 0
    steps = (place * share) // count != ((place - 1) * share) // count
    return (
        requests.sort("sent_s", "id")
        .with_columns(stretch.alias("stretch"))
        .filter((count <= share) | first | steps)
        .drop("stretch")
        .head(most)
    )


def _differences(times_s: pl.Series, unit_s: float) -> list[int]:
    """Times in order as whole numbers of units, each as what it adds to the one before."""
    ticks = (times_s / unit_s).round().cast(pl.Int64)
    return ticks.diff().fill_null(ticks).to_list()


def _sent(tables: Tables) -> pl.DataFrame:
    return tables["requests"].filter(pl.col("sent_s").is_not_null()).sort("sent_s", "id")


def _held(sent: pl.DataFrame, held: pl.DataFrame) -> Markup | None:
    """Which requests the page does not hold, if any."""
    if held.height == sent.height:
        return None
    text = (
        f"The page holds {held.height:,} of {sent.height:,} requests: those that failed, were tried again or "
        "were slow first, the others evenly over time. The record has them all."
    )
    return element("span", text, class_="soft")


def _timeline(axis: TimeAxis) -> Markup:
    return svg.timeline(axis, "requests", HEIGHT, "Single requests over time in s: as a table below")
