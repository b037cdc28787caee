"""A run in Python: what is asked of it is what its record says, and what a scenario would be told."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

from testbed import expect
from testbed import tables as record
from testbed.errors import RunError, ScenarioError
from testbed.testing.looked_at import Run
from tests.unit.synthetic_plan import HEALED_S, TROUBLE_S, make_plan
from tests.unit.synthetic_run import write_run

ROOT = Path(__file__).parents[2]


def made(directory: Path, *, reacts: bool = True, overrides: tuple[str, ...] = ()) -> Run:
    """A recorded run whose scenario has the events of the synthetic plan."""
    plan = make_plan()
    run = write_run(directory, plan, reacts=reacts)
    tables = record.build(run, plan)
    text = (ROOT / "scenarios/congestion.yaml").read_text(encoding="utf-8")
    text = text.replace("event: congestion", "event: trouble").replace("event: restored", "event: healed")
    text = text.replace("after: congestion", "after: trouble").replace("after: restored", "after: healed")
    run.scenario.write_text(text, encoding="utf-8")
    verdict = expect.judge(plan, tables, ())
    return Run(directory, verdict, ROOT / "scenarios/congestion.yaml", overrides)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The scheduler follows the link."""
    return made(tmp_path_factory.mktemp("looked_at") / "run")


@pytest.fixture(scope="module")
def stubborn(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The threshold never moves."""
    return made(tmp_path_factory.mktemp("looked_at") / "run", reacts=False)


def test_tables_are_frames_of_the_record(run: Run) -> None:
    """The tables of the record by name; one that is not there is refused with those that are."""
    assert run.requests.height == 300
    assert run.links.equals(run.table("links"))
    assert set(run.decisions["kind"]) >= {"control"}
    with pytest.raises(ScenarioError, match=r"run.table\('sockets'\): there is no such table\n.*requests"):
        run.table("sockets")


def test_a_metric_is_that_of_the_rows_in_its_window(run: Run) -> None:
    """P90 over requests of [30, 75) is polars' own; without a window it is that of the whole run."""
    inside = run.requests.filter(pl.col("arrival_s").is_between(30, 75, closed="left"))
    expected = inside["ttft_s"].quantile(0.9, interpolation="linear")
    assert run.metric("ttft_s.p90", from_="30s", to="75s") == pytest.approx(expected)
    assert run.metric("requests.completed_ratio") == 1
    assert run.metric("requests.failed") == 0
    whole = run.requests["ttft_s"].quantile(0.9, interpolation="linear")
    assert run.metric("ttft_s.p90") == pytest.approx(whole)


def test_a_request_that_never_got_there_lets_no_upper_bound_hold(run: Run, tmp_path: Path) -> None:
    """A percentile over requests of which one has no first token is infinite, not that of the others."""
    lost = Run(run.directory, run.verdict, run.scenario)
    first = pl.col("id") == 0
    lost.tables["requests"] = run.requests.with_columns(
        ttft_s=pl.when(first).then(None).otherwise(pl.col("ttft_s"))
    )
    assert lost.metric("ttft_s.p90") == math.inf
    assert tmp_path.is_dir()


def test_a_reaction_is_timed_from_its_event(run: Run, stubborn: Run) -> None:
    """The threshold is above 22,000 from 31.25 s on; one that never moves reacts never, not late."""
    took_s = run.reaction("threshold_tokens", after="trouble", crosses="above", level=22_000)
    assert took_s == pytest.approx(31.25 - TROUBLE_S, abs=1e-3)
    assert stubborn.reaction("threshold_tokens", after="trouble", crosses="above", level=22_000) == math.inf


def test_a_recovery_is_timed_to_where_it_stays(run: Run) -> None:
    """Back between 18,000 and 21,000 from 78.5 s on; never within 1,000 and 1,001."""
    took_s = run.recovery("threshold_tokens", after="healed", min=18_000, max=21_000)
    assert took_s == pytest.approx(78.5 - HEALED_S, abs=1e-3)
    assert run.recovery("threshold_tokens", after="healed", min=1_000, max=1_001) == math.inf


def test_what_was_not_measured_is_an_error(run: Run, stubborn: Run) -> None:
    """A signal that never left its range did not recover; a metric without rows has no value."""
    with pytest.raises(RunError, match=r"run.recovery\('threshold_tokens'\): .*never left 18,000 to 21,000"):
        stubborn.recovery("threshold_tokens", after="healed", min=18_000, max=21_000)
    with pytest.raises(RunError, match=r"run.metric\('ttft_s.p90'\): ttft_s.p90 was not measured from 150"):
        run.metric("ttft_s.p90", from_="150s", to="160s")


def test_an_expectation_is_judged_as_in_a_scenario(run: Run, stubborn: Run) -> None:
    """The same mapping, the same sentence with measured value and bound, PASS or FAIL."""
    wanted: dict[str, object] = {"reaction": "threshold_tokens", "after": "trouble", "within": "1s"}
    wanted |= {"crosses": "above", "level": 22_000}
    late = run.expect(wanted)
    assert (late.status, late.sentence) == (
        "FAIL",
        "threshold_tokens crossed 22,000 tokens after 1.25 s (allowed 1 s)",
    )
    assert run.expect({**wanted, "within": "2s"}).status == "PASS"
    assert "never crossed 22,000 tokens" in stubborn.expect(wanted).sentence
    assert run.expect({"stability": "threshold_tokens", "max_direction_changes": 1}).measured == 1


def test_a_wrong_expectation_is_refused_in_the_words_of_scenarios(run: Run) -> None:
    """What is unknown, or in another unit, is named with what may stand there, and no line of the file."""
    with pytest.raises(ScenarioError, match=r"^run.expect: expect.0.after: unknown event drop\n.*: trou"):
        run.expect({"recovery": "threshold_tokens", "after": "drop", "min": 1, "within": "2s"})
    with pytest.raises(ScenarioError, match=r"run.metric: .*unknown metric .ttft.p90.\n.*\n.*did you mean"):
        run.metric("ttft.p90")
    with pytest.raises(ScenarioError, match=r"run.reaction: expect.0.after: unknown event drop"):
        run.reaction("threshold_tokens", after="drop", crosses="above", level=1)


def test_overrides_of_the_run_hold_for_what_is_asked(run: Run) -> None:
    """A run of 100 s has no window up to 250 s, which the scenario as written has not either at 150 s."""
    shorter = Run(run.directory, run.verdict, run.scenario, ("duration=100s", "drain=10s"))
    assert run.expect({"bound": "requests.failed", "max": 0, "to": "150s"}).status == "PASS"
    with pytest.raises(ScenarioError, match="after the run and its drain"):
        shorter.expect({"bound": "requests.failed", "max": 0, "to": "150s"})
