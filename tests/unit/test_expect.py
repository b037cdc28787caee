"""Judging: each kind of expectation holds, fails and is unknown where it should."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import audit, expect
from testbed import tables as record
from testbed.expect.shapes import turning_points
from testbed.measure import Tables
from testbed.plan import Expectation, Plan
from testbed.rundir import RunDir
from testbed.verdict import Result
from tests.unit.synthetic_plan import S, expectation, make_plan, with_expectations
from tests.unit.synthetic_run import write_run

PLAN = make_plan(requests=40)
EMPTY = {name: pl.DataFrame(schema=schema) for name, schema in record.TABLES.items()}


def table(name: str, rows: list[dict[str, object]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=record.TABLES[name])


def controls(values: list[tuple[float, int | None]]) -> pl.DataFrame:
    rows: list[dict[str, object]] = [
        {"t_s": t_s, "kind": "control", "threshold_tokens": value} for t_s, value in values
    ]
    return table("decisions", rows)


def every_second(value_at: dict[int, int], until_s: int = 120) -> pl.DataFrame:
    """A threshold sampled every second that takes the given values from the given times on."""
    return controls([(float(t), value_at[max(s for s in value_at if s <= t)]) for t in range(until_s)])


def tables(decisions: pl.DataFrame, event_s: float | None = 30.0) -> dict[str, pl.DataFrame]:
    events: list[dict[str, object]] = [
        {"t_s": t_s, "kind": kind, "name": name, "detail": ""}
        for t_s, kind, name in ((0.0, "start", "start"), (event_s, "event", "trouble"), (120.0, "end", "end"))
        if t_s is not None
    ]
    return {**EMPTY, "decisions": decisions, "events": table("events", events)}


def judged(wanted: Expectation, given_tables: Tables) -> Result:
    return expect.judge(with_expectations(PLAN, wanted), given_tables, []).results[0]


REACTION = expectation(
    "reaction", "threshold_tokens", event="trouble", within_ns=3 * S, level=22_000, crosses="above"
)
RECOVERY = expectation(
    "recovery", "threshold_tokens", event="trouble", within_ns=10 * S, low=18_000, high=21_000
)
STABILITY = expectation("stability", "threshold_tokens", high=2, level=500)


@pytest.mark.parametrize(
    ("value_at", "status", "measured"),
    [
        ({0: 19_000, 32: 24_000}, "PASS", 2.0),
        ({0: 19_000, 33: 22_000}, "PASS", 3.0),
        ({0: 19_000, 34: 24_000}, "FAIL", 4.0),
        ({0: 19_000}, "FAIL", None),
        ({0: 24_000}, "FAIL", None),
        ({0: 24_000, 31: 19_000, 32: 24_000}, "PASS", 2.0),
        ({0: 19_000, 20: 24_000, 29: 19_000}, "FAIL", None),
    ],
)
def test_reaction(value_at: dict[int, int], status: str, measured: float | None) -> None:
    """A reaction is a crossing after the event, in time; standing there already is none."""
    result = judged(REACTION, tables(every_second(value_at)))
    assert (result.status, result.measured) == (status, measured)


def test_reaction_sentence() -> None:
    """The finding reads as a sentence with what was measured and what was allowed."""
    result = judged(REACTION, tables(every_second({0: 19_000, 32: 24_000})))
    assert result.sentence == "threshold_tokens crossed 22,000 tokens after 2 s (allowed 3 s)"
    assert (result.margin, result.unit) == (1.0, "s")


def test_reaction_of_a_signal_without_an_earlier_value() -> None:
    """A belief that is first stated after the event is a reaction to it."""
    rows: list[dict[str, object]] = [
        {"t_s": float(t), "kind": "control", "threshold_tokens": 1, "capacity_bps": 8e9 if t >= 31 else None}
        for t in range(120)
    ]
    wanted = expectation(
        "reaction", "capacity_bps", event="trouble", within_ns=3 * S, level=1e10, crosses="below"
    )
    result = judged(wanted, tables(table("decisions", rows)))
    assert (result.status, result.measured) == ("PASS", 1.0)


@pytest.mark.parametrize(
    ("value_at", "status", "measured"),
    [
        ({0: 24_000, 35: 20_000}, "PASS", 5.0),
        ({0: 24_000, 40: 20_000}, "PASS", 10.0),
        ({0: 24_000, 41: 20_000}, "FAIL", 11.0),
        ({0: 24_000}, "FAIL", None),
        ({0: 24_000, 35: 20_000, 119: 24_000}, "FAIL", None),
        ({0: 24_000, 35: 20_000, 50: 17_999, 52: 20_000}, "FAIL", 22.0),
        ({0: 20_000}, "UNKNOWN", None),
    ],
)
def test_recovery(value_at: dict[int, int], status: str, measured: float | None) -> None:
    """Recovery counts from the event to the sample after which the signal stays in range for good."""
    result = judged(RECOVERY, tables(every_second(value_at)))
    assert (result.status, result.measured) == (status, measured)


@pytest.mark.parametrize(
    ("value_at", "status", "measured"),
    [
        ({0: 19_000, 30: 24_000, 80: 19_000}, "PASS", 1.0),
        ({0: 19_000, 30: 24_000, 31: 19_000, 32: 24_000, 33: 19_000}, "FAIL", 3.0),
        ({0: 19_000, 30: 19_499, 31: 19_000, 32: 19_499, 33: 19_000}, "PASS", 0.0),
        ({0: 19_000}, "PASS", 0.0),
    ],
)
def test_stability(value_at: dict[int, int], status: str, measured: float) -> None:
    """Stability counts turning points and passes over small moves."""
    result = judged(STABILITY, tables(every_second(value_at)))
    assert (result.status, result.measured) == (status, measured)


@pytest.mark.parametrize("wanted", [REACTION, RECOVERY, STABILITY])
def test_signals_that_were_not_measured_are_unknown(wanted: Expectation) -> None:
    """Neither an empty table, nor telemetry that dies, nor one with a hole passes or fails."""
    stopped = every_second({0: 19_000}, until_s=31)
    holed = every_second({0: 19_000}).filter((pl.col("t_s") < 31) | (pl.col("t_s") > 40))
    for decisions in (EMPTY["decisions"], stopped, holed):
        assert judged(wanted, tables(decisions)).status == "UNKNOWN"


@pytest.mark.parametrize("wanted", [REACTION, RECOVERY])
def test_an_event_that_never_came_is_unknown(wanted: Expectation) -> None:
    """What should have followed an event cannot be judged without it."""
    result = judged(wanted, tables(every_second({0: 19_000}), event_s=None))
    assert result.status == "UNKNOWN"
    assert '"trouble" is not in the record' in result.sentence


def requests(*rows: dict[str, object]) -> dict[str, pl.DataFrame]:
    return {**EMPTY, "requests": table("requests", list(rows))}


@pytest.mark.parametrize(
    ("low", "high", "status", "margin"),
    [(None, 2.5, "PASS", 1.0), (None, 1.5, "PASS", 0.0), (None, 1.0, "FAIL", -0.5), (2.0, None, "FAIL", -0.5),
     (1.0, 3.0, "PASS", 0.5)],
)  # fmt: skip
def test_bound(low: float | None, high: float | None, status: str, margin: float) -> None:
    """A bound includes its ends, and the margin is the distance to the nearer one."""
    measured = requests({"arrival_s": 1.0, "ttft_s": 1.0}, {"arrival_s": 2.0, "ttft_s": 2.0})
    result = judged(expectation("bound", "ttft_s.mean", low=low, high=high), measured)
    assert (result.status, result.measured, result.margin) == (status, 1.5, margin)


def test_the_window_includes_its_start_and_not_its_end() -> None:
    """Rows are chosen by arrival in [from, to)."""
    measured = requests(*({"arrival_s": float(t), "state": "failed"} for t in (1, 2, 3)))
    wanted = expectation("bound", "requests.failed", high=9, from_ns=1 * S, to_ns=3 * S)
    assert judged(wanted, measured).measured == 2.0


@pytest.mark.parametrize(
    "metric",
    ["ttft_s.p90", "requests.failed", "requests.completed_ratio", "link.a_to_b.drops", "transfers.failed",
     "threshold_tokens.max", "bulk.steady_goodput_bps", "offloaded.kv_bytes.sum"],
)  # fmt: skip
def test_a_bound_on_nothing_is_unknown(metric: str) -> None:
    """A metric without data never passes, be it a count of 0 or an empty maximum."""
    assert judged(expectation("bound", metric, low=0), EMPTY).status == "UNKNOWN"


def test_counts_of_what_did_not_happen_are_zero() -> None:
    """Where requests were recorded, none offloaded means 0 bytes, not an unknown number."""
    measured = requests({"arrival_s": 1.0, "route": "pd", "kv_bytes": 5, "state": "completed"})
    assert judged(expectation("bound", "offloaded.kv_bytes.sum", high=0), measured).status == "PASS"
    assert judged(expectation("bound", "requests.failed", high=0), measured).status == "PASS"


def test_a_bound_on_one_tenant_looks_at_nobody_else() -> None:
    """Neither at the times of others nor at those of others that never got there."""
    measured = requests(
        {"arrival_s": 1.0, "tenant": "a", "ttft_s": 1.0},
        {"arrival_s": 2.0, "tenant": "b", "ttft_s": 9.0},
        {"arrival_s": 3.0, "tenant": "b", "ttft_s": None},
    )
    of_a, of_b = (
        judged(expectation("bound", "ttft_s.p90", high=5.0, tenant=name), measured) for name in "ab"
    )
    assert (of_a.status, of_a.measured) == ("PASS", 1.0)
    assert of_a.sentence.startswith("ttft_s.p90 of a was 1 s ")
    assert (of_b.status, of_b.measured) == ("FAIL", None)
    assert of_b.sentence.startswith("ttft_s.p90 of b: 1 of 2 requests ")
    whole = judged(expectation("bound", "ttft_s.p90", high=5.0), measured)
    assert "1 of 3 requests" in whole.sentence
    nobody = judged(expectation("bound", "requests.completed_ratio", low=0, tenant="c"), measured)
    assert nobody.status == "UNKNOWN"


def test_lost_link_samples_make_a_bound_unknown() -> None:
    """A mean over a window in which telemetry was lost says nothing about the window."""
    rows: list[dict[str, object]] = [
        {"t_s": t / 10, "direction": "a_to_b", "throughput_bps": 1.0}
        for t in range(1200)
        if t < 300 or t > 600
    ]
    result = judged(
        expectation("bound", "link.a_to_b.throughput_bps.max", high=2),
        {**EMPTY, "links": table("links", rows)},
    )
    assert result.status == "UNKNOWN"
    assert "no samples from 29.9 to" in result.sentence


@pytest.mark.parametrize("sample_s", [0.005, 0.02, 0.05])
def test_steady_goodput_is_that_of_the_second_half(sample_s: float) -> None:
    """A ramp of 0.2 s to 100 Gbps on the wire, with 1 % headers, is steady at 99 Gbps; unknown if shared."""
    ramp_s, delay_s, wire_bytes = 0.2, 0.005, 8.5e9
    done_s = ramp_s / 2 + wire_bytes * 8 / 1e11

    def carried(t_s: float) -> float:
        flat = 1e11 / 8 * (t_s - ramp_s / 2)
        return min(wire_bytes, flat if t_s > ramp_s else 1e11 / 8 * t_s**2 / (2 * ramp_s)) if t_s > 0 else 0.0

    start_s, links = 1.003, []
    for index in range(int(2.5 / sample_s)):
        t_s = index * sample_s
        moved = carried(t_s - start_s) - carried(t_s - sample_s - start_s)
        for direction, share in (("a_to_b", 1.0), ("b_to_a", 0.002)):
            links.append({
                "t_s": t_s, "direction": direction, "delay_s": delay_s,
                "throughput_bps": moved * share * 8 / sample_s if index else None,
            })  # fmt: skip
    bulk = {
        "use": "bulk", "wan": True, "size_bytes": int(wire_bytes * 0.99), "state": "completed",
        "start_s": start_s, "end_s": start_s + done_s + delay_s,
    }  # fmt: skip
    measured = {**EMPTY, "links": table("links", links), "transfers": table("transfers", [bulk])}
    result = judged(expectation("bound", "bulk.steady_goodput_bps", low=96e9), measured)
    assert result.measured == pytest.approx(99e9, rel=0.01)
    beside = {**bulk, "use": "tenant", "start_s": start_s + 0.4, "end_s": None}
    shared = {**measured, "transfers": table("transfers", [bulk, beside])}
    result = judged(expectation("bound", "bulk.steady_goodput_bps", low=96e9), shared)
    assert result.status == "UNKNOWN"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_turning_points_match_their_definition(values: list[int]) -> None:
    """Without a smallest move, turns are the changes of sign of the differences."""
    moves = [after - before for before, after in pairwise(values) if after != before]
    turns = sum((one > 0) != (next_one > 0) for one, next_one in pairwise(moves))
    assert turning_points(values, 0) == turns


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_a_larger_smallest_move_never_finds_more_turns(values: list[int], one: int, other: int) -> None:
    """Ignoring more moves cannot make a signal less stable, nor does its mirror image turn differently."""
    small, large = sorted((one, other))
    assert turning_points(values, large) <= turning_points(values, small)
    mirrored = [-value for value in values]
    assert turning_points(mirrored, small) == turning_points(values, small)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run", PLAN, tcp_lines=64)


def trusted(run: RunDir) -> list[str]:
    tables = record.build(run, PLAN)
    return expect.trust(run, tables, audit.judge(PLAN, tables))


def test_a_good_run_is_trusted(run: RunDir) -> None:
    """A run that ended by itself with all in order gives no reason for distrust."""
    assert trusted(run) == []


def test_a_killed_run_is_not_trusted(tmp_path: Path) -> None:
    """Neither an end nor an outcome: both are reasons."""
    run = write_run(tmp_path / "run", PLAN, tcp_lines=64, finished=False)
    run.outcome.unlink()
    reasons = trusted(run)
    assert [reason.partition(":")[0] for reason in reasons] == [
        "the run did not end by itself",
        "the run left no outcome.json",
    ]


def test_what_a_run_cut_short_did_not_do_is_unknown() -> None:
    """It might have done it; what it did stands."""
    never = expectation("bound", "ttft_s.mean", high=1.0)
    asked = table("requests", [{"arrival_s": 1.0, "ttft_s": 2.0}])
    whole = {**tables(EMPTY["decisions"]), "requests": asked}
    cut = {**whole, "events": whole["events"].filter(pl.col("kind") != "end")}
    plan = with_expectations(PLAN, never)
    assert expect.judge(plan, whole, []).results[0].status == "FAIL"
    (result, *_) = expect.judge(plan, cut, ["the run did not end by itself"]).results
    assert result.status == "UNKNOWN"
    assert result.sentence.endswith("; but the run was cut short")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({"finished": False, "problems": []}, "the run did not finish"),
        ({"finished": True, "problems": ["telemetry was lost"]}, "telemetry was lost"),
        ({"done": 1}, "outcome.json is not readable: KeyError('finished')"),
    ],
)
def test_the_outcome_can_be_a_reason(run: RunDir, outcome: dict[str, object], reason: str) -> None:
    """What `inside` says of itself counts."""
    run.outcome.write_text(json.dumps(outcome))
    assert trusted(run) == [reason]


def test_drops_without_any_loss_asked_are_a_reason(run: RunDir) -> None:
    """Whatever the audit finds missing or too much is a reason, in its own words."""
    tables = record.build(run, PLAN)
    at_90_s = (pl.col("t_s") > 90) & (pl.col("t_s") < 90.05) & (pl.col("direction") == "a_to_b")
    lost = pl.when(at_90_s).then(5).otherwise(pl.col("lost_packets")).alias("lost_packets")
    tables["links"] = tables["links"].with_columns(lost)
    reasons = expect.trust(run, tables, audit.judge(PLAN, tables))
    said = "link a_to_b, loss in the run: 5 of 1121657 where 0 was asked, allowed 0"
    assert reasons == [said]


def test_the_record_decides_and_not_the_plan(run: RunDir) -> None:
    """Judging twice gives the same verdict, and it passes for a scheduler that follows."""
    tables = record.build(run, PLAN)
    first = expect.judge(PLAN, tables, [])
    assert first == expect.judge(PLAN, record.load(run), [])
    assert first.status == "PASS"


def test_the_static_policy_fails(tmp_path: Path) -> None:
    """The control: with a threshold that never moves, the reaction fails."""
    plan: Plan = make_plan("static", requests=40)
    run = write_run(tmp_path / "run", plan, reacts=False, tcp_lines=64)
    verdict = expect.judge(plan, record.build(run, plan), [])
    assert verdict.status == "FAIL"
    assert [result.name for result in verdict.results if result.status == "FAIL"] == [
        "threshold follows the link"
    ]
