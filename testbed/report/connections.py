"""TCP, connection by connection over time: those with most bytes one by one, the others together."""

from __future__ import annotations

from typing import Final

import polars as pl

from testbed.plan import Plan
from testbed.report import signals
from testbed.report.signals import Points, Tables
from testbed.report.svg import Chart, Curve
from testbed.units import NS_PER_S

SOCKET: Final = ("host", "local", "remote")
COLOURS: Final = ("blue", "orange", "green", "purple", "red")
"""Of the connections drawn one by one; as many as can be told apart."""
MILLI, MEGA = 1e3, 1e-6
NEARLY: Final = 0.9
"""A round trip over the WAN takes at least this share of both delays: jitter takes a little of it."""
PAUSE: Final = 3
"""A line breaks where a connection was not seen for so many times the usual: only what moved is sampled."""


def charts(plan: Plan, tables: Tables) -> tuple[Chart, ...]:
    """Window, round-trip time and what was sent again; nothing where no socket was sampled."""
    tcp, _ = over_wan(plan, tables["tcp"])
    if tcp.is_empty():
        return ()
    ranked = most_bytes(tcp)
    named = [
        (f"{host} {local} → {remote}", colour, tcp.filter(host=host, local=local, remote=remote))
        for (host, local, remote), colour in zip(ranked.rows(), COLOURS, strict=False)
    ]
    others = tcp.join(ranked.head(len(COLOURS)), on=SOCKET, how="anti", maintain_order="left")
    count = ranked.height - len(named)
    usual_s = tcp["t_s"].unique().sort().diff().median()
    pause_s = PAUSE * usual_s if isinstance(usual_s, float) else None

    def over_time(title: str, unit: str, column: str, scale: float) -> Chart:
        curves = [
            Curve(label, colour, "line", *_broken(signals.samples(one, column, scale), pause_s))
            for label, colour, one in named
        ]
        if count:
            together = others.group_by("t_s").agg(pl.col(column).median()).sort("t_s")
            points = signals.samples(together, column, scale)
            curves.append(Curve(f"median of {count} others", "grey", "line", *points, dashed=True))
        return Chart(title, unit, 140, tuple(curves))

    again = [Curve(label, colour, "line", *_again(one)) for label, colour, one in named]
    if count:
        again.append(Curve(f"sum of {count} others", "grey", "line", *_again(others), dashed=True))
    return (
        over_time("Congestion window", "packets", "cwnd_packets", 1.0),
        over_time("Round-trip time", "ms", "rtt_s", MILLI),
        Chart("Sent again, by connection", "MB/s", 120, tuple(again)),
    )


def remark(plan: Plan, tables: Tables) -> str:
    """Which connections the charts show."""
    tcp, crossing = over_wan(plan, tables["tcp"])
    count, where = tcp.select(SOCKET).unique().height, " over the WAN" if crossing else ""
    if count <= len(COLOURS):
        return f"all {count}{where}" if count != 1 else f"the only one{where}"
    return f"the {len(COLOURS)} with most bytes of {count}{where}, and the others together"


def over_wan(plan: Plan, tcp: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """The samples of connections whose packets took as long as the link does, and True; or all of them."""
    delay_s = sum(state.delay_ns for state in plan.link.values()) / NS_PER_S
    crossing = tcp.filter(pl.col("rtt_s").median().over(SOCKET) >= NEARLY * delay_s)
    return (tcp, False) if crossing.is_empty() or delay_s == 0 else (crossing, True)


def most_bytes(tcp: pl.DataFrame) -> pl.DataFrame:
    """Host, local and remote end of each connection, that with most acknowledged bytes first."""
    order = tcp.group_by(SOCKET).agg(pl.col("bytes_acked").max())
    return order.sort("bytes_acked", *SOCKET, descending=[True, False, False, False]).select(SOCKET)


def _again(tcp: pl.DataFrame) -> Points:
    return signals.sum_per(signals.retransmitted(tcp), "bytes", 1.0, MEGA)


def _broken(points: Points, pause_s: float | None) -> Points:
    """With a break wherever nothing is known for a while."""
    times_s: list[float] = []
    values: list[float | None] = []
    for t_s, value in zip(*points, strict=True):
        if pause_s is not None and times_s and t_s - times_s[-1] > pause_s:
            times_s.append(times_s[-1])
            values.append(None)
        times_s.append(t_s)
        values.append(value)
    return times_s, values
