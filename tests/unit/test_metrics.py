"""The vocabulary of expectations: what the metrics of load, cache, link and roles count."""

from __future__ import annotations

import polars as pl
import pytest

from tests.unit.synthetic_plan import S, expectation
from tests.unit.test_expect import EMPTY, judged, requests, table, tables


def test_throughput_counts_what_ended_in_the_window() -> None:
    """By the end of a request, whenever it arrived; nobody ending is 0, nothing recorded is unknown."""
    measured = requests(
        *({"arrival_s": 1.0, "end_s": float(t), "state": "completed"} for t in (9, 10, 12, 19, 20)),
        {"arrival_s": 12.0, "end_s": 13.0, "state": "failed"},
        {"arrival_s": 12.0, "end_s": None, "state": "unfinished"},
    )
    for from_s, to_s, per_s in ((10, 20, 0.3), (0, 120, 5 / 120), (50, 60, 0.0)):
        wanted = expectation("bound", "throughput_per_s", low=0.01, from_ns=from_s * S, to_ns=to_s * S)
        assert judged(wanted, measured).measured == pytest.approx(per_s)
    assert judged(expectation("bound", "throughput_per_s", low=0), EMPTY).status == "UNKNOWN"


def test_the_hit_ratio_is_a_share_of_tokens_that_were_looked_up() -> None:
    """Long prompts count more; a request that was never computed does not count."""
    measured = requests(
        {"arrival_s": 1.0, "input_tokens": 9000, "cached_tokens": 0, "fetched_tokens": 0},
        {"arrival_s": 2.0, "input_tokens": 1000, "cached_tokens": 512, "fetched_tokens": 512},
        {"arrival_s": 3.0, "input_tokens": 99_999, "cached_tokens": None, "fetched_tokens": None},
    )
    assert judged(expectation("bound", "cache.hit_ratio", low=0), measured).measured == 512 / 10_000
    assert judged(expectation("bound", "cache.fetched_tokens.sum", low=0), measured).measured == 512
    never = requests({"arrival_s": 1.0, "input_tokens": 9000})
    assert judged(expectation("bound", "cache.hit_ratio", low=0), never).status == "UNKNOWN"


def test_the_use_of_a_link_is_what_it_carried_of_what_it_could() -> None:
    """Over changes of its rate, by direction; a first sample without a difference does not count."""
    rows: list[dict[str, object]] = [
        {
            "t_s": t / 10, "direction": direction, "rate_bps": 10**9 if t < 600 else 10**8,
            "throughput_bps": share * (10**9 if t < 600 else 10**8) if t else None,
        }
        for t in range(1200)
        for direction, share in (("a_to_b", 0.5 if t < 600 else 1.0), ("b_to_a", 0.01))
    ]  # fmt: skip
    measured = {**EMPTY, "links": table("links", rows)}
    one, other = (
        judged(expectation("bound", f"link.{way}.utilisation", low=0), measured).measured
        for way in ("a_to_b", "b_to_a")
    )
    assert one == pytest.approx((599 * 0.5 + 60 * 1.0) / (599 + 60))
    assert other == pytest.approx(0.01)


def test_bytes_of_cached_prefixes_are_those_that_crossed() -> None:
    """Neither requests' KV nor what stayed within a datacenter; transfers without any make 0."""
    rows: list[dict[str, object]] = [
        {"start_s": 1.0, "use": use, "wan": wan, "size_bytes": size}
        for use, wan, size in (
            ("cache", True, 5),
            ("cache", True, 6),
            ("cache", False, 70),
            ("kv", True, 800),
        )
    ]
    wanted = expectation("bound", "transfers.cache_bytes.sum", low=0)
    for some, total in ((rows, 11), (rows[2:], 0)):
        assert judged(wanted, {**EMPTY, "transfers": table("transfers", some)}).measured == total


def test_roles_are_signals() -> None:
    """An expectation can follow how many instances do prefill."""
    rows: list[dict[str, object]] = [
        {
            "t_s": float(t),
            "kind": "control",
            "threshold_tokens": 1,
            "n_prefill": 3 if t < 40 else 4,
            "n_decode": 5,
        }
        for t in range(120)
    ]
    measured = tables(table("decisions", rows))
    wanted = expectation(
        "reaction", "n_prefill", event="trouble", within_ns=20 * S, level=3.5, crosses="above"
    )
    result = judged(wanted, measured)
    assert (result.status, result.measured) == ("PASS", 10.0)
    assert judged(expectation("bound", "n_decode.min", low=5), measured).status == "PASS"


def failures(**rows: list[dict[str, object]]) -> dict[str, pl.DataFrame]:
    """A run that started, with these rows."""
    events = table("events", [{"t_s": 0.0, "kind": "start", "name": "start"}])
    return {**EMPTY, "events": events, **{name: table(name, given) for name, given in rows.items()}}


def measured(metric: str, run: dict[str, pl.DataFrame], from_s: float = 0, to_s: float = 120) -> float | None:
    wanted = expectation("bound", metric, low=0, from_ns=round(from_s * S), to_ns=round(to_s * S))
    return judged(wanted, run).measured


def test_requests_tried_again_are_counted_by_where() -> None:
    """A defect counts only where it reached somebody."""
    run = failures(
        requests=[
            {"arrival_s": 1.0, "state": "completed", "recomputed": True, "retried": False, "damaged": True},
            {"arrival_s": 2.0, "state": "failed", "recomputed": True, "retried": True, "damaged": True},
            {"arrival_s": 3.0, "state": "completed", "served_twice": True, "ttft_over_prefill": 3.0},
            {"arrival_s": 4.0, "state": "completed", "ttft_over_prefill": 1.0},
            {"arrival_s": 5.0, "state": "failed", "cut_off": True},
        ]
    )
    expected = {
        "requests.recomputed": 2.0, "requests.retried": 1.0, "requests.retried_ratio": 0.2,
        "requests.damaged": 1.0, "requests.served_twice": 1.0, "ttft_over_prefill.p50": 2.0,
        "ttft_over_prefill.max": 3.0, "requests.cut_off": 1.0, "requests.cut_off_ratio": 0.2,
    }  # fmt: skip
    assert expected == {metric: measured(metric, run) for metric in expected}


def test_bytes_of_kv_are_summed_by_fate() -> None:
    """Where no transfer failed, no end of one waited for the other; where there is none, nobody knows."""
    one = {"start_s": 1.0, "use": "kv", "wan": True, "resumed": True, "resent_bytes": 5, "hidden_ratio": 0.5}
    two = {
        "start_s": 2.0, "use": "kv", "wan": True, "resumed": False, "dropped_bytes": 7, "legs_apart_s": 2.0,
        "hidden_ratio": 1.0,
    }  # fmt: skip
    run = failures(transfers=[one, two, {"start_s": 2.0, "use": "kv", "wan": False, "hidden_ratio": 0.0}])
    expected = {
        "transfers.resumed": 1.0, "transfers.resent_bytes.sum": 5.0, "transfers.dropped_bytes.sum": 7.0,
        "transfers.superseded_bytes.sum": 0.0, "transfers.legs_apart_s.max": 2.0,
        "transfers.hidden_share": 0.75,
    }  # fmt: skip
    assert expected == {metric: measured(metric, run) for metric in expected}
    assert measured("transfers.legs_apart_s.max", failures(transfers=[one])) == 0.0
    assert measured("transfers.legs_apart_s.max", failures()) is None


def test_what_pools_hold_counts_until_it_changes() -> None:
    """A pool that did not move in the window held what it held before; the end is that of the run."""
    rows: list[dict[str, object]] = [
        {"t_s": t_s, "instance": instance, "pool": pool, "held_bytes": held}
        for t_s, instance, pool, held in (
            (1.0, "p", "send", 10), (2.0, "q", "send", 7), (3.0, "d", "receive", 4), (20.0, "p", "send", 1),
        )
    ]  # fmt: skip
    sockets: list[dict[str, object]] = [{"t_s": 1.0, "instance": "p", "sockets": 8}]
    run = failures(pools=rows, connections=sockets)
    for from_s, to_s, send in ((0, 120, 10), (10, 15, 10), (30, 40, 7), (0, 1, None)):
        assert measured("pools.send_bytes.max", run, from_s, to_s) == send
        assert measured("pools.end_bytes", run, from_s, to_s) == 12
    assert measured("pools.receive_bytes.max", run) == 4
    assert measured("sockets.kv.max", run, 50, 60) == 8
    assert measured("sockets.kv.max", failures()) is None, "nobody noted a connection"


def test_nobody_given_up_is_zero() -> None:
    """In a run that began; the router notes nothing else."""
    rows: list[dict[str, object]] = [
        {"t_s": 3.0, "instance": "p", "up": False, "down_s": 2.5},
        {"t_s": 5.5, "instance": "p", "up": True, "down_s": None},
    ]
    for metric, value in (("health.down.count", 1.0), ("health.down_s.max", 2.5)):
        assert measured(metric, failures(health=rows)) == value
        assert measured(metric, failures()) == 0.0
        assert measured(metric, EMPTY) is None


def test_offloading_that_returns_is_a_reaction() -> None:
    """Arrivals per second that went to DC A, each second known at its end."""
    rows: list[dict[str, object]] = [
        {"arrival_s": t / 2, "route": "pd" if 20 <= t / 2 < 31 else "prfaas"} for t in range(100)
    ]
    wanted = expectation(
        "reaction", "offload_rate_per_s", event="trouble", within_ns=3 * S, level=0.5, crosses="above"
    )
    run = {**tables(EMPTY["decisions"]), "requests": table("requests", rows)}
    result = judged(wanted, run)
    assert (result.status, result.measured) == ("PASS", 2.0)
    assert judged(wanted, tables(EMPTY["decisions"])).status == "UNKNOWN"
