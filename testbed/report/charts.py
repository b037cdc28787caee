"""Which charts the page has, and what each of them shows."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from testbed.plan import Plan
from testbed.readable import quantity
from testbed.report import connections, failures, signals
from testbed.report.signals import Tables
from testbed.report.svg import MOST_TITLES, Chart, Curve, TimeAxis

GIGA, MEGA = 1e-9, 1e-6
SHARE_WINDOW_S, LATENCY_WINDOW_S = 10.0, 15.0
LINK_FLOOR_SHARE = 1e-3
"""The logarithmic link chart starts at this share of the link's rate."""


@dataclass(frozen=True)
class Figure:
    """Charts under one heading."""

    heading: str
    remark: str
    charts: tuple[Chart, ...]


def figures(plan: Plan, tables: Tables, axis: TimeAxis) -> tuple[Figure, ...]:
    """All figures of the page, from the cause to its effect."""
    return (
        Figure(
            "Link from A to B",
            "what it could carry, what it carried, and what the policy believed; logarithmic",
            (_link(plan, tables),),
        ),
        Figure(
            "Queues and losses",
            "bytes waiting in front of the link and in the senders, packets that had to be sent again",
            (_buffer(tables), _backlog(tables), _retransmissions(tables), _losses(tables)),
        ),
        Figure(
            "Scheduler",
            "requests that leave more tokens to compute than the threshold are prefilled in A",
            (_threshold(tables), _offloaded(tables), *_roles(tables), *_cached(tables)),
        ),
        Figure(
            "Time to first token",
            _dots_remark(tables),
            (_ttft(tables),),
        ),
        Figure(
            "Requests in each state",
            "waiting for a prefill instance, and held by decode",
            (_prefill_queues(tables, axis), _decode_held(tables, axis)),
        ),
        *_failures(tables, axis),
        *_connections(plan, tables),
    )


def _failures(tables: Tables, axis: TimeAxis) -> tuple[Figure, ...]:
    """Nothing where no agent noted anything."""
    found = failures.charts(tables, axis)
    remark = "what was done to agents, whom the router gave up, what KV held in memory and in sockets"
    return (Figure("Faults, pools and connections", remark, found),) if found else ()


def _connections(plan: Plan, tables: Tables) -> tuple[Figure, ...]:
    found = connections.charts(plan, tables)
    return (Figure("TCP connections", connections.remark(plan, tables), found),) if found else ()


def _forward(tables: Tables) -> pl.DataFrame:
    return tables["links"].filter(pl.col("direction") == "a_to_b")


def _control(tables: Tables) -> pl.DataFrame:
    return tables["decisions"].filter(pl.col("kind") == "control")


def _link(plan: Plan, tables: Tables) -> Chart:
    link = _forward(tables)
    sampled = signals.samples(link, "throughput_bps", GIGA)
    averaged = signals.mean_per(link, "throughput_bps", 1.0, GIGA)
    cut_off = pl.when(pl.col("loss_ratio") >= 1).then(0).otherwise(pl.col("rate_bps"))
    carried = link.with_columns(cut_off.alias("rate_bps"))
    capacity = signals.steps_only(signals.samples(carried, "rate_bps", GIGA))
    believed = signals.samples(_control(tables), "capacity_bps", GIGA)
    return Chart(
        "Link A → B",
        "Gbps",
        300,
        (
            Curve("throughput, each sample", "blue", "line", *sampled, faint=True),
            Curve("throughput, mean of 1 s", "blue", "area", *averaged),
            Curve("capacity", "orange", "step", *capacity),
            Curve("capacity as the policy believes", "purple", "step", *believed, dashed=True),
        ),
        log_floor=plan.link["a_to_b"].rate_bps * GIGA * LINK_FLOOR_SHARE,
    )


def _buffer(tables: Tables) -> Chart:
    return Chart(
        "Queue in the link's buffer",
        "MB",
        110,
        (
            Curve("queue", "blue", "area", *signals.samples(_forward(tables), "backlog_bytes", MEGA)),
            Curve("buffer", "orange", "step", *_buffer_sizes(tables), dashed=True),
        ),
    )


def _buffer_sizes(tables: Tables) -> signals.Points:
    """The buffer as read back after each change, to the last sample."""
    changes = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == "a_to_b"))
    sizes: list[float | None] = [json.loads(text)["buffer_bytes"] * MEGA for text in changes["detail"]]
    times_s = [max(0.0, t_s) for t_s in changes["t_s"]]
    last_s = _forward(tables)["t_s"].max()
    if times_s and isinstance(last_s, float) and last_s > times_s[-1]:
        times_s, sizes = [*times_s, last_s], [*sizes, sizes[-1]]
    return times_s, sizes


def _backlog(tables: Tables) -> Chart:
    points = signals.samples(_control(tables), "backlog_bytes", GIGA)
    return Chart("KV waiting in the senders", "GB", 100, (Curve("backlog", "purple", "area", *points),))


def _retransmissions(tables: Tables) -> Chart:
    curves = []
    for use, label, colour in (
        ("kv", "KV", "orange"),
        ("bulk", "bulk", "blue"),
        ("tenant", "other tenants", "grey"),
    ):
        again = signals.retransmitted(tables["tcp"], use)
        curves.append(Curve(label, colour, "area", *signals.sum_per(again, "bytes", 1.0, MEGA)))
    return Chart("Sent again by TCP", "MB/s", 100, tuple(curves))


def _losses(tables: Tables) -> Chart:
    link = _forward(tables)
    return Chart(
        "Packets lost",
        "per second",
        110,
        (
            Curve("on the way", "red", "area", *signals.sum_per(link, "lost_packets", 1.0, 1.0)),
            Curve(
                "dropped by the queue (super-packets, packets by an AQM)",
                "grey",
                "area",
                *signals.sum_per(link, "drops", 1.0, 1.0),
            ),
        ),
    )


def _threshold(tables: Tables) -> Chart:
    points = signals.steps_only(signals.samples(_control(tables), "threshold_tokens"))
    return Chart("Threshold", "tokens", 170, (Curve("threshold", "green", "step", *points),), from_zero=False)


def _offloaded(tables: Tables) -> Chart:
    routed = tables["decisions"].filter((pl.col("kind") == "route") & pl.col("route").is_not_null())
    points = signals.moving(
        routed["t_s"].to_list(),
        [100.0 if route == "prfaas" else 0.0 for route in routed["route"].to_list()],
        SHARE_WINDOW_S,
        lambda values: sum(values) / len(values),
    )
    curve = Curve(f"prefilled in A, last {SHARE_WINDOW_S:.0f} s", "blue", "line", *points)
    return Chart("Offloaded share of requests", "%", 120, (curve,), top=100.0)


def _roles(tables: Tables) -> tuple[Chart, ...]:
    """Nothing where no role changed."""
    if tables["roles"].is_empty():
        return ()
    control = _control(tables)
    curves = (
        Curve("prefill", "orange", "step", *signals.samples(control, "n_prefill")),
        Curve("decode", "green", "step", *signals.samples(control, "n_decode")),
    )
    return (Chart("Instances of B that take new work", "instances", 120, curves),)


def _cached(tables: Tables) -> tuple[Chart, ...]:
    """Nothing where the cache gave nothing."""
    requests = tables["requests"].filter(pl.col("cached_tokens").is_not_null()).sort("arrival_s", "id")
    if not requests["cached_tokens"].sum():
        return ()
    shares = (100 * requests["cached_tokens"] / requests["input_tokens"]).to_list()
    points = signals.moving(
        requests["arrival_s"].to_list(), shares, SHARE_WINDOW_S, lambda values: sum(values) / len(values)
    )
    curve = Curve(f"of a prompt, mean of the last {SHARE_WINDOW_S:.0f} s", "purple", "line", *points)
    return (Chart("Given by the prefix cache", "%", 120, (curve,), top=100.0),)


def _ttft(tables: Tables) -> Chart:
    requests = tables["requests"].filter(pl.col("sent_s").is_not_null()).sort("sent_s", "id")
    answered = requests.filter(pl.col("ttft_s").is_not_null())
    running = signals.moving(
        answered["sent_s"].to_list(), answered["ttft_s"].to_list(), LATENCY_WINDOW_S, signals.percentile(0.9)
    )
    lost = requests.filter(pl.col("state") != "completed")["sent_s"].to_list()
    curves = [
        _dots(answered.filter(pl.col("route") == "prfaas"), "prefilled in A (offloaded)", "blue", "dots"),
        _dots(answered.filter(pl.col("route") == "pd"), "prefilled in B", "orange", "squares"),
        Curve(f"P90 of the last {LATENCY_WINDOW_S:.0f} s", "ink", "line", *running),
    ]
    if lost:
        curves.append(Curve("not completed", "red", "marks", lost, [0.0] * len(lost)))
    return Chart("Time to first token", "s", 300, tuple(curves))


def _dots(requests: pl.DataFrame, label: str, colour: str, shape: str) -> Curve:
    assert shape in ("dots", "squares")
    return Curve(
        label,
        colour,
        "dots" if shape == "dots" else "squares",
        requests["sent_s"].to_list(),
        requests["ttft_s"].to_list(),
        titles=[_title(row) for row in requests.iter_rows(named=True)]
        if requests.height <= MOST_TITLES
        else (),
    )


def _dots_remark(tables: Tables) -> str:
    count = tables["requests"]["ttft_s"].count()
    if count <= MOST_TITLES:
        return "one dot per request at the moment it was sent; hover for its parts"
    return f"each request at the moment it was sent: {count:,}, of which many share a dot"


def _title(row: dict[str, object]) -> str:
    lines = [
        f"request {row['id']}: {row['computed_tokens'] or row['input_tokens']:,} tokens, {row['prefill']}"
    ]
    for column, what in (
        ("ttft_s", "time to first token"),
        ("queue_s", "queue"),
        ("prefill_s", "prefill"),
        ("kv_transfer_s", "KV transfer not hidden"),
    ):
        value = row[column]
        if isinstance(value, float):
            lines.append(f"{what} {quantity(value, 's')}")
    return "\n".join(lines)


def _prefill_queues(tables: Tables, axis: TimeAxis) -> Chart:
    curves = []
    for route, label, colour in (("prfaas", "waiting in A", "blue"), ("pd", "waiting in B", "orange")):
        waiting = _spans(tables, "sent_s", "prefill_start_s", route)
        curves.append(Curve(label, colour, "step", *signals.in_state(waiting, axis.to_s)))
    return Chart("Prefill queue", "requests", 130, tuple(curves))


def _decode_held(tables: Tables, axis: TimeAxis) -> Chart:
    points = signals.in_state(_spans(tables, "decode_start_s", "last_token_s", None), axis.to_s)
    return Chart("In decode", "requests", 120, (Curve("in a decode batch", "green", "step", *points),))


def _spans(
    tables: Tables, start: str, end: str, route: str | None
) -> list[tuple[float | None, float | None]]:
    requests = tables["requests"]
    if route is not None:
        requests = requests.filter(pl.col("route") == route)
    # A request that ended early leaves its state when it ends.
    left = pl.coalesce(pl.col(end), pl.col("end_s"))
    return requests.select(pl.col(start), left.alias("left")).rows()
