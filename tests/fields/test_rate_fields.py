"""Rate, buffer, queues, token bucket and flow cap against arithmetic."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

import pytest

Results = dict[str, Any]
FLOOD_BYTES = 44 * 1514
BUCKET_BYTES = 2 * 184_000
MS = 1_000_000


def test_a_full_queue_leaves_at_the_rate(rate: Results) -> None:
    """At both rates, within 1 %."""
    for load in rate["rates"]["loads"]:
        (start_ns, start, *_), (end_ns, end, backlog_bytes, _) = load["samples"][1], load["samples"][-1]
        assert backlog_bytes > 0
        assert (end - start) * 8e9 / (end_ns - start_ns) == pytest.approx(load["rate_bps"], rel=0.01)


def test_the_buffer_keeps_its_bytes(rate: Results) -> None:
    """Of a flood as much stays as the buffer holds, to a super-packet."""
    for one in rate["buffers"]["floods"]:
        assert one["buffer_bytes"] - FLOOD_BYTES < one["backlog_bytes"] <= one["buffer_bytes"]


def test_a_budget_lasts_as_long_as_it_should(rate: Results) -> None:
    """What has left is min(rate t, budget + sustained t): at full rate, budget / (1 - sustained / rate).

    A new bucket is full, one that has rested has what came in meanwhile; all within the small bucket.
    """
    for one in rate["token_buckets"]["floods"]:
        start_ns = one["samples"][0][0]
        for at_ns, sent_bytes in one["samples"]:
            seconds = (at_ns - start_ns) / 1e9
            full = one["rate_bps"] / 8 * seconds
            spent = one["budget_bytes"] + one["sustained_bps"] / 8 * seconds
            assert sent_bytes == pytest.approx(min(full, spent), abs=BUCKET_BYTES + FLOOD_BYTES)
        assert one["budget_bytes"] / (1 - one["sustained_bps"] / one["rate_bps"]) < one["samples"][-1][1]


def test_each_flow_has_its_cap(rate: Results) -> None:
    """One flow gets the cap, four get four times that, UDP too, no drops; without a cap: the link."""
    found = rate["flow_caps"]
    for load in found["loads"]:
        expected = load["cap_bps"] * load["flows"] if load["cap_bps"] else 4e9
        assert load["bps"] == pytest.approx(expected, rel=0.02)
        assert load["drops"] == 0
    assert found["datagrams_bps"] == pytest.approx(2 * found["cap_bps"], rel=0.02)


def test_the_first_cap_loses_nothing(rate: Results) -> None:
    """A transfer under which fq is installed sends nothing twice."""
    assert rate["first_cap"]["retrans_bytes"] == 0


def load_of(rate: Results, kind: str, *, ecn: bool = False) -> Results:
    (found,) = [one for one in rate["queues"]["loads"] if (one["kind"], one["ecn"]) == (kind, ecn)]
    return dict(found)


RATE_BPS, ROUND_TRIP_NS = 2e8, 4 * MS


def test_a_newcomer_waits_as_the_queue_has_it(rate: Results) -> None:
    """Behind what waits for tail drop, CoDel and RED; not at all for fq_codel."""
    for kind in ("tail_drop", "codel", "red"):
        load = load_of(rate, kind)
        waited_ns = median(load["newcomers_ns"]) - ROUND_TRIP_NS
        assert waited_ns == pytest.approx(fmean(load["backlogs"]) * 8e9 / RATE_BPS, rel=0.25)
    assert median(load_of(rate, "fq_codel")["newcomers_ns"]) < ROUND_TRIP_NS + MS
    assert median(load_of(rate, "tail_drop")["newcomers_ns"]) > 100 * MS


def test_each_queue_stands_where_it_should(rate: Results) -> None:
    """Tail drop: most of the buffer (4 MB); CoDel near its target (5 ms); RED below max; none runs dry."""
    assert fmean(load_of(rate, "tail_drop")["backlogs"]) > 3_000_000
    for ecn in (False, True):
        for kind in ("codel", "fq_codel"):
            assert fmean(load_of(rate, kind, ecn=ecn)["backlogs"]) * 8e9 / RATE_BPS < 2 * 5 * MS
        assert fmean(load_of(rate, "red", ecn=ecn)["backlogs"]) < 300_000
    for load in rate["queues"]["loads"]:
        assert load["sent_bytes"] * 8 > 0.95 * RATE_BPS * 2


@pytest.mark.parametrize("kind", ["codel", "fq_codel", "red"])
def test_ecn_marks_and_loses_nothing(rate: Results, kind: str) -> None:
    """With ECN the queue marks and TCP backs off without a loss; without it the queue drops."""
    without, marked = load_of(rate, kind), load_of(rate, kind, ecn=True)
    assert without["drops"] > 0
    assert without["marked"] == 0
    assert marked["drops"] == 0
    assert marked["marked"] > 0


def missing(burst: Results) -> list[int]:
    return sorted(set(range(burst["sent"])) - set(burst["numbers"]))


def test_codel_drops_after_target_and_interval(rate: Results) -> None:
    """Datagram k of a burst waits k times its own time: the first to go has waited target + interval."""
    found = rate["codels"]
    for burst in found["bursts"]:
        at_once = 2 * 1514 / 58  # the rate stage's own bucket
        expected = (burst["target_ns"] + burst["interval_ns"]) / found["datagram_ns"] + at_once
        assert missing(burst)[0] == pytest.approx(expected, abs=5)


def averages(burst: Results, frame_bytes: int) -> list[float]:
    """RED's average queue when each datagram of a burst came, from those that were let in before it."""
    shift, average, waiting = burst["average"], 0, -2 * 1514
    arrived, found = set(burst["numbers"]), []
    for number in range(burst["sent"]):
        average += max(waiting, 0) - (average >> shift)
        found.append(average / 2**shift)
        if number in arrived:
            waiting += frame_bytes
    return found


def test_red_drops_between_min_and_max(rate: Results) -> None:
    """Nothing below min, everything above max, and in between as often as the probability makes it.

    RED spaces drops evenly: the gap is uniform up to 1/p (kernel include/net/red.h), so 2 p / (1 + p) of the
    packets go; with so few drops the number is right within a factor of two.
    """
    for burst in rate["reds"]["bursts"]:
        low, high, most = burst["min_bytes"], burst["max_bytes"], burst["probability"]
        gone, expected, early = set(missing(burst)), 0.0, 0
        for number, average in enumerate(averages(burst, rate["reds"]["frame_bytes"])):
            if average < low - 200:
                assert number not in gone
            elif average > high + 200:
                assert number in gone
            elif low < average < high:
                chance = most * (average - low) / (high - low)
                expected += 2 * chance / (1 + chance)
                early += number in gone
        assert expected / 2 < early < 2 * expected
