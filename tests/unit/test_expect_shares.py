"""Judging shares: fairness among tenants, and KV against an oracle."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.expect import oracle
from testbed.expect.shares import jain_index
from testbed.measure import Tables
from tests.unit.synthetic_plan import S, expectation
from tests.unit.test_expect import EMPTY, judged, requests, table
from topologies.two_dc import A_PREFIX

AMOUNTS = st.lists(st.just(0.0) | st.floats(1e-300, 1e9), min_size=1, max_size=20).filter(any)


@given(AMOUNTS, st.floats(1e-3, 1e3))
def test_jain_s_index_lies_between_one_for_all_and_one_for_one(values: list[float], factor: float) -> None:
    """From 1/n to 1, whatever the unit and the order."""
    index = jain_index(values)
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([factor * value for value in reversed(values)]) == pytest.approx(index)


@given(st.integers(1, 20), st.integers(0, 20), st.floats(1e-6, 1e6))
def test_jain_s_index_is_the_share_of_those_who_get_something(some: int, none: int, value: float) -> None:
    """If k of n get the same and the others nothing, the index is k/n."""
    assert jain_index([value] * some + [0.0] * none) == pytest.approx(some / (some + none))


def served(**times_s: Sequence[float | None]) -> dict[str, pl.DataFrame]:
    """Requests of each tenant, one with each time to first token."""
    return requests(
        *(
            {"arrival_s": 1.0, "end_s": 9.0, "tenant": name, "ttft_s": time_s, "state": "completed"}
            for name, given_s in times_s.items()
            for time_s in given_s
        )
    )


@pytest.mark.parametrize(
    ("metric", "limits", "status", "measured"),
    [
        ("ttft_s.mean", {"low": 0.9}, "PASS", 0.9),
        ("ttft_s.mean", {"low": 0.91}, "FAIL", 0.9),
        ("ttft_s.mean", {"high": 2.0}, "PASS", 2.0),
        ("ttft_s.mean", {"high": 1.5}, "FAIL", 2.0),
        ("requests.completed", {"low": 0.9}, "FAIL", 0.8),
        ("requests.failed", {"low": 0.9}, "UNKNOWN", None),
    ],
)
def test_fairness(metric: str, limits: dict[str, float], status: str, measured: float | None) -> None:
    """Over the tenants' values: 1 and 2 s are an index of 9/10 and a ratio of 2; 1 and 3 requests 16/20."""
    wanted = expectation("fairness", metric, tenants=("a", "b"), **limits)
    result = judged(wanted, served(a=[1.0], b=[1.0, 2.0, 3.0]))
    assert (result.status, result.measured, result.unit) == (status, pytest.approx(measured), "ratio")


def test_fairness_sentence() -> None:
    """The finding names those who got most and least."""
    of = served(a=[1.0], b=[2.0], c=[1.5])
    result = judged(expectation("fairness", "ttft_s.mean", low=0.99, tenants=("a", "b", "c")), of)
    assert result.sentence == (
        "ttft_s.mean was 1 s for a and 2 s for b from 0 to 120 s: Jain's index is 0.931"
        " (allowed at least 0.99)"
    )
    result = judged(expectation("fairness", "ttft_s.mean", high=3.0, tenants=("a", "c")), of)
    assert result.sentence == (
        "ttft_s.mean was 1 s for a and 1.5 s for c from 0 to 120 s: 1.5 times as much"
        " (allowed at most 3 times the smallest)"
    )


def test_fairness_to_somebody_who_got_nothing() -> None:
    """A tenant without a request is unknown; one whose request never got there was not served alike."""
    wanted = expectation("fairness", "ttft_s.mean", low=0.1, tenants=("a", "b"))
    assert judged(wanted, served(a=[1.0])).status == "UNKNOWN"
    never = judged(wanted, served(a=[1.0], b=[1.0, None]))
    assert never.status == "FAIL"
    assert "ttft_s.mean of b: 1 of 2 requests from 0 to 120 s never got there" in never.sentence
    ratio = expectation("fairness", "requests.completed", high=2.0, tenants=("a", "b"))
    none = requests(
        {"arrival_s": 1.0, "tenant": "a", "state": "failed"},
        {"arrival_s": 1.0, "tenant": "b", "state": "completed"},
    )
    assert (judged(ratio, none).status, judged(ratio, none).measured) == ("FAIL", None)


ORACLE = expectation("oracle", "kv_goodput_bps", low=0.9)
RATE_BPS = 8_000_000


def carrying(
    share: float,
    *,
    until_s: int = 100,
    loss_ratio: float = 0.0,
    still: range = range(0),
    prefilled_s: float = 10.0,
    arrived_s: float = 80.0,
) -> dict[str, pl.DataFrame]:
    """One KV transfer over a link of 8 Mbps, and connections that get a share of it, but for some seconds."""
    links: list[dict[str, object]] = [
        {
            "t_s": t / 10,
            "direction": "a_to_b",
            "rate_bps": RATE_BPS,
            "loss_ratio": loss_ratio,
            "throughput_bps": 1.0,
        }
        for t in range(1200)
    ]
    moving = [t for t in range(until_s) if t not in still]
    sockets: list[dict[str, object]] = [
        {
            "t_s": float(t), "host": host, "local": local, "remote": "10.2.0.4:7001", "use": "kv",
            "bytes_acked": round(place * part * RATE_BPS / 8),
        }
        for place, t in enumerate(moving)
        for host, local, part in (("a1", "10.1.0.1:9", share), ("b1", "10.2.0.1:9", 5.0))
    ]  # fmt: skip
    transfer = {
        "use": "kv", "wan": True, "start_s": 0.0, "sink_end_s": arrived_s,
        "hidden_ratio": prefilled_s / arrived_s,
    }  # fmt: skip
    return {
        **EMPTY, "links": table("links", links), "tcp": table("tcp", sockets),
        "transfers": table("transfers", [transfer]),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "status", "measured"),
    [
        (carrying(0.95), "PASS", 0.95),
        (carrying(0.5), "FAIL", 0.5),
        (carrying(0.475, loss_ratio=0.5), "PASS", 0.95),
        (carrying(1.0, still=range(20, 55)), "FAIL", 0.5),
        (carrying(1.0, until_s=46), "FAIL", 0.5),
        (carrying(1.0, arrived_s=10.9), "UNKNOWN", None),
        ({**carrying(1.0), "transfers": EMPTY["transfers"]}, "UNKNOWN", None),
        ({**carrying(1.0), "tcp": EMPTY["tcp"]}, "UNKNOWN", None),
        ({**carrying(1.0), "links": EMPTY["links"]}, "UNKNOWN", None),
    ],
    ids=[
        "full",
        "half",
        "lossy",
        "stands still",
        "stops",
        "never waits",
        "no kv",
        "no connections",
        "no link",
    ],
)
def test_oracle(tables: Tables, status: str, measured: float | None) -> None:
    """What crossed against what could have, while KV waited; stillness counts, KV of DC B does not."""
    result = judged(ORACLE, tables)
    assert (result.status, result.unit) == (status, "ratio")
    assert result.measured == (None if measured is None else pytest.approx(measured, rel=0.002))


def test_oracle_sentence() -> None:
    """How much, in which time, and of what."""
    assert judged(ORACLE, carrying(0.5)).sentence == (
        "35 MB of KV crossed in the 70 s from 0 to 120 s in which KV waited for the link alone: 50 % of the"
        " possible (allowed at least 90 %)"
    )


def test_a_link_without_samples_is_unknown() -> None:
    """Nobody knows what it could have carried."""
    whole = carrying(1.0)
    holed = whole["links"].filter((pl.col("t_s") < 30) | (pl.col("t_s") > 40))
    result = judged(ORACLE, {**whole, "links": holed})
    assert (result.status, result.sentence) == ("UNKNOWN", "the link has no samples from 29.9 to 40.1 s")


def test_the_oracle_looks_at_the_window_alone() -> None:
    """What is carried before it and after does not count."""
    wanted = expectation("oracle", "kv_goodput_bps", low=0.9, from_ns=20 * S, to_ns=30 * S)
    result = judged(wanted, carrying(1.0, still=range(50, 70)))
    assert result.measured == pytest.approx(1.0)
    assert "in the 10 s from 20 to 30 s" in result.sentence


def test_the_oracle_knows_the_addresses_of_dc_a() -> None:
    """Those of the topology."""
    assert f"{A_PREFIX}." == oracle.A_NETWORK
