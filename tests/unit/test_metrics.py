"""The vocabulary of expectations: what the metrics of load, cache, link and roles count."""

from __future__ import annotations

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
