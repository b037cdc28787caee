"""What a sweep reads from the records of its runs."""

from __future__ import annotations

import polars as pl
import pytest

from testbed import expect, measure, tables
from testbed.metrics import METRICS
from testbed.sweep import results
from testbed.sweep.amounts import kind_of
from testbed.sweep.outcome import Row
from testbed.sweep.points import Axis
from testbed.sweep.results import Measure, Result
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> measure.Tables:
    plan = make_plan()
    return tables.build(write_run(tmp_path_factory.mktemp("runs") / "run", plan), plan)


def test_a_measure_is_its_metric_over_its_window(record: measure.Tables) -> None:
    """As an expectation would measure it, with its unit."""
    verdict = expect.judge(make_plan(), record, ())
    one = Measure("p90", "ttft_s.p90", (30.0, 75.0))
    expected = measure.value(METRICS["ttft_s.p90"], record, 30.0, 75.0)
    assert expected is not None
    assert results._measured(one, verdict, record) == (expected, "s")


def test_without_a_window_it_is_what_the_expectation_measured(record: measure.Tables) -> None:
    """By its number, whatever it is called."""
    plan = make_plan()
    verdict = expect.judge(plan, record, ())
    for number, each in enumerate(plan.expectations):
        value, unit = results._measured(Measure(each.name, each.metric, None, number), verdict, record)
        assert (value, unit) == (verdict.results[number].measured, verdict.results[number].unit)


def test_a_time_that_some_never_got_to_is_not_measured(record: measure.Tables) -> None:
    """Without them it would look short."""
    cut = pl.when(pl.col("id") == 3).then(None).otherwise(pl.col("ttft_s")).alias("ttft_s")
    damaged = {**record, "requests": record["requests"].with_columns(cut)}
    verdict = expect.judge(make_plan(), record, ())
    one = Measure("p90", "ttft_s.p90", (0.0, 1000.0))
    assert results._measured(one, verdict, damaged) == (None, "s")


def test_quantities_stand_as_text_and_as_numbers() -> None:
    """Plain numbers as numbers, whatever else there is as text."""
    row = Row(
        scenario="x.yaml", seed=1, overrides=(), status="PASS", failed=(), record_digest="d", virtual_s=1.0,
        wall_s=2.0, directory=None, command="c",
    )  # fmt: skip
    axes = (
        Axis("rate", ("1gbit", "500mbit"), kind_of("1gbit", "500mbit")),
        Axis("n", (1, 2.5), kind_of(1, 2.5)),
        Axis("loss", (0, {"model": "random"}), None),
    )
    found = [
        Result(("1gbit", 1, 0), 1, "a", row, {"m": 2.0}),
        Result(("500mbit", 2.5, {"model": "random"}), 1, "b", row, {"m": None}),
    ]
    table = results.frame(axes, found, [Measure("m", "ttft_s.p90")])
    assert table["rate"].to_list() == ["1gbit", "500mbit"]
    assert table["rate.bps"].to_list() == [1e9, 5e8]
    assert table["n"].to_list() == [1.0, 2.5]
    assert table["loss"].to_list() == ["0", '{"model": "random"}']
    assert table["m"].to_list() == [2.0, None]
