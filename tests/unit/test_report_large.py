"""A page of many requests: it stays small, shows what matters, and says what it leaves out."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.report import page, signals, waterfall
from testbed.report.svg import PLOT_WIDTH, Chart, Curve, Shape, TimeAxis
from testbed.report.thinning import MOST_POINTS, thinned
from testbed.rundir import RunDir
from testbed.verdict import conclude
from tests.unit.large_record import large_plan, large_record

AXIS = TimeAxis(0.0, 100.0)
MANY = 100_000


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    return large_record(MANY)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, pl.DataFrame]) -> str:
    run = RunDir(tmp_path_factory.mktemp("run"))
    return page.write(run, large_plan(), tables, conclude((), ()), {}, findings=()).read_text()


def test_a_page_of_very_many_requests_stays_under_its_limit(text: str) -> None:
    """100,000 requests, 120 connections and ten minutes of samples fit into five megabytes."""
    assert len(text.encode()) < 5_000_000
    assert re.search(rf"The page holds 3,\d\d\d of {MANY:,} requests", text)
    assert f"{MANY:,}, of which many share a dot" in text


def test_no_path_and_no_cursor_has_more_points_than_can_be_seen(text: str) -> None:
    """Two points for each column of pixels: of lines, of steps with their corners, and of the cursor."""
    for drawn in re.findall(r'<path d="([^"]*)" class="line', text):
        assert len(re.findall(r"[ML]", drawn)) <= 6 * PLOT_WIDTH
    found = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text)
    assert found is not None
    series = json.loads(found[1])["series"]
    assert len(series) > 10
    assert all(len(one["t"]) == len(one["v"]) <= 3 * PLOT_WIDTH for one in series.values())


def lines(values: list[float | None], shape: Shape) -> Curve:
    times_s = [100.0 * index / len(values) for index in range(len(values))]
    return Curve("x", "blue", shape, times_s, values)


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 9)), min_size=1, max_size=40),
    st.sampled_from(["line", "area", "step"]),
    st.integers(1, 400),
)
def test_thinning_keeps_what_is_seen(pattern: list[float | None], shape: Shape, repeat: int) -> None:
    """Extremes and order stay, nothing is invented, and what a step holds at the end of a column stays."""
    curve = lines((pattern * repeat)[: 3 * MOST_POINTS], shape)
    kept = thinned(Chart("t", "u", 100, (curve,)), AXIS).curves[0]
    before = dict(zip(curve.times_s, curve.values, strict=True))
    assert list(kept.times_s) == sorted(kept.times_s)
    assert all(before[t_s] == value for t_s, value in zip(kept.times_s, kept.values, strict=True))
    assert len(kept.times_s) <= max(MOST_POINTS, 4 * PLOT_WIDTH)
    there = [value for value in curve.values if value is not None]
    left = [value for value in kept.values if value is not None]
    assert [min(there, default=0), max(there, default=0)] == [min(left, default=0), max(left, default=0)]
    if shape == "step":
        assert kept.times_s[-1] == curve.times_s[-1]


def test_requests_that_matter_are_held_whatever_their_number(tables: dict[str, pl.DataFrame]) -> None:
    """All that failed, were tried again or were slowest; the others evenly over time."""
    axis = signals.time_axis(large_plan(), tables)
    held = waterfall.chosen(tables, axis)
    assert held.height <= waterfall.MOST_REQUESTS
    assert held.height > 0.9 * waterfall.MOST_REQUESTS
    assert held["id"].is_unique().all()
    requests = tables["requests"]
    special = pl.concat([
        requests.filter((pl.col("state") != "completed") | pl.col("retried")),
        requests.sort("ttft_s", descending=True).head(waterfall.MOST_SLOW),
    ])  # fmt: skip
    assert set(special["id"]) <= set(held["id"])
    counts = held.group_by((pl.col("sent_s") // 60).alias("minute")).len().filter(pl.col("minute") < 9)["len"]
    assert counts.max() <= 1.2 * counts.min()  # type: ignore[operator]


def test_requests_beyond_every_limit_are_still_chosen_over_the_whole_run() -> None:
    """Where everything fails, a part of it is held, from the first to the last minute."""
    tables = large_record(20_000, sockets=1, sample_s=1.0)
    tables["requests"] = tables["requests"].with_columns(pl.lit("failed").alias("state"))
    held = waterfall.chosen(tables, signals.time_axis(large_plan(), tables))
    assert held.height <= waterfall.MOST_REQUESTS
    assert set(range(9)) <= set((held["sent_s"] // 60).cast(pl.Int64))


@pytest.mark.parametrize("count", [1, 300, 9_000])
def test_what_is_encoded_can_be_read_again(count: int) -> None:
    """Moments to the unit, transfers at their request; all arrivals and ends where requests are left out."""
    tables = large_record(count, sockets=1, sample_s=1.0)
    axis = signals.time_axis(large_plan(), tables)
    data = json.loads(json.dumps(waterfall.encoded(tables, axis)))
    held = waterfall.chosen(tables, axis)
    sent_s = [ticks * data["unit"] for ticks in accumulate(data["sent"])]
    assert sent_s == pytest.approx(held["sent_s"].to_list(), abs=data["unit"])
    ends_s = [at_s + ticks * data["unit"] for at_s, ticks in zip(sent_s, data["done"], strict=True)]
    assert ends_s == pytest.approx(held["end_s"].to_list(), abs=2 * data["unit"])
    assert [data["names"][one] for one in data["prefill"]] == held["prefill"].to_list()
    assert list(accumulate(data["transfers"][0])) == list(range(held.height))
    assert ("all" in data) == (count > waterfall.MOST_REQUESTS)
    if "all" in data:
        assert len(data["all"]["sent"]) == len(data["all"]["ended"]) == count


def test_a_request_without_a_place_in_time_is_left_out(tmp_path: Path) -> None:
    """What was never sent has no row, and a run in which nothing was sent has no waterfall."""
    tables = large_record(3, sockets=1, sample_s=1.0)
    unsent = pl.lit(None).cast(pl.Float64).alias("sent_s")
    tables["requests"] = tables["requests"].with_columns(unsent)
    assert waterfall.section(tables, AXIS) is None
    text = page.write(RunDir(tmp_path), large_plan(), tables, conclude((), ()), {}, findings=()).read_text()
    assert 'id="waterfall"' not in text
