"""TCP by connection, and decisions by reason: nothing is lost where much is put together."""

from __future__ import annotations

import polars as pl
import pytest

from testbed import tables as record
from testbed.report import connections, reasons
from testbed.report.svg import Curve
from testbed.report.tables import DASH
from tests.unit.synthetic_plan import make_plan
from tests.unit.test_report import Outline

PLAN = make_plan(requests=1)
WAN_S, LOCAL_S = 0.0117, 0.0004


def tcp(*sockets: tuple[str, float, int], seconds: int = 10, paused: range = range(0)) -> pl.DataFrame:
    """Samples of sockets: (local, round-trip time, bytes a second); of all, a hundredth is sent again."""
    rows = [
        {
            "t_s": float(t_s), "host": "a1", "local": local, "remote": "b1:7000", "use": "kv",
            "cwnd_packets": 10 * place + t_s, "rtt_s": rtt_s, "bytes_acked": t_s * rate,
            "bytes_retrans": t_s * rate // 100,
        }
        for t_s in range(seconds)
        if t_s not in paused
        for place, (local, rtt_s, rate) in enumerate(sockets)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=record.TABLES["tcp"])


def curves(samples: pl.DataFrame, title: str) -> tuple[Curve, ...]:
    return next(one for one in connections.charts(PLAN, {"tcp": samples}) if one.title == title).curves


def test_most_bytes_come_first_and_the_rest_together() -> None:
    """Five one by one, in order of their bytes; the others as one, that says how many they are."""
    samples = tcp(*((f"s{rate}", WAN_S, rate * 1_000_000) for rate in range(1, 9)))
    labels = [curve.label for curve in curves(samples, "Congestion window")]
    assert labels == [*(f"a1 s{rate} → b1:7000" for rate in (8, 7, 6, 5, 4)), "median of 3 others"]
    assert len({curve.colour for curve in curves(samples, "Congestion window")}) == 6
    assert connections.remark(PLAN, {"tcp": samples}) == (
        "the 5 with most bytes of 8 over the WAN, and the others together"
    )


def test_all_that_was_sent_again_is_in_the_chart() -> None:
    """One by one or together, every byte sent again over the WAN is in one curve."""
    samples = tcp(*((f"s{rate}", WAN_S, rate * 1_000_000) for rate in range(1, 9)))
    drawn = sum(
        value or 0.0 for curve in curves(samples, "Sent again, by connection") for value in curve.values
    )
    assert drawn == pytest.approx(sum(9 * rate * 10_000 for rate in range(1, 9)) / 1e6)


def test_connections_within_a_datacenter_stand_back() -> None:
    """Where any crosses the WAN, only those that do are drawn, however much the others carry."""
    samples = tcp(("near", LOCAL_S, 10**9), ("far", WAN_S, 10**6))
    assert [curve.label for curve in curves(samples, "Round-trip time")] == ["a1 far → b1:7000"]
    near = tcp(("near", LOCAL_S, 10**9))
    assert [curve.label for curve in curves(near, "Round-trip time")] == ["a1 near → b1:7000"]
    assert connections.remark(PLAN, {"tcp": near}) == "the only one"


def test_a_line_breaks_where_a_connection_rested() -> None:
    """Only what moved is sampled; no line leads across what nobody knows."""
    other = tcp(("busy", WAN_S, 10**6), seconds=30)
    rested = tcp(("rests", WAN_S, 10**9), seconds=30, paused=range(10, 20))
    drawn = curves(pl.concat([rested, other]).sort("t_s"), "Congestion window")
    assert [curve.values.count(None) for curve in drawn] == [1, 0]


def test_nothing_sampled_is_nothing_drawn() -> None:
    """A run without TCP has no such charts."""
    assert connections.charts(PLAN, {"tcp": tcp()}) == ()


def decisions(*rows: dict[str, object]) -> dict[str, pl.DataFrame]:
    return {"decisions": pl.DataFrame(rows, schema=record.TABLES["decisions"])}


def test_every_decision_is_counted_under_its_reason() -> None:
    """Reasons that differ in numbers are one kind, with an example; refusals are routes, too."""
    rows = [
        *(
            {"t_s": t, "kind": "route", "route": "prfaas", "reason": f"{t * 1000:,} tokens > 19,400.5"}
            for t in range(6)
        ),
        {"t_s": 7.0, "kind": "route", "route": "pd", "reason": "short"},
        {"t_s": 8.0, "kind": "route", "route": None, "reason": None},
    ]  # fmt: skip
    shown = Outline(str(reasons.routes(decisions(*rows)))).text
    assert "prfaas… tokens > …0 tokens > 19,400.5675.0 %0.00 s5.00 s" in shown
    assert f"pdshort{DASH}112.5 %7.00 s7.00 s" in shown
    assert f"refused{DASH}{DASH}112.5 %8.00 s8.00 s" in shown


def test_moves_of_the_threshold_are_told_from_stays() -> None:
    """Up, down and as it was, each with its reasons."""
    rows = [
        {"t_s": float(t), "kind": "control", "previous_tokens": 5, "threshold_tokens": to, "reason": "why"}
        for t, to in enumerate((5, 6, 4, 6))
    ]
    shown = Outline(str(reasons.control(decisions(*rows)))).text
    for said in (f"upwhy{DASH}250.0 %", f"downwhy{DASH}125.0 %", f"as it waswhy{DASH}125.0 %"):
        assert said in shown


def test_rare_reasons_are_summed() -> None:
    """A policy with a reason of its own for each request does not fill the page, and loses no decision."""
    rows = [
        {"t_s": 1.0, "kind": "route", "route": "pd", "reason": f"tenant {'x' * index}"} for index in range(25)
    ]
    shown = Outline(str(reasons.routes(decisions(*rows)))).text
    assert "and 5 decisions for 5 rarer reasons" in shown
