"""What the benchmarks make of their samples, against arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.figures import (
    Beside,
    Conditions,
    Figure,
    Reading,
    Target,
    bend_percent,
    figure,
    growth,
    shares,
)
from benchmarks.table import markdown

QUIET, BUSY = Conditions(1.0, 0.02, 30.0), Conditions(3.0, 1.4, 12.0)
DESCRIBED = {
    "machine": {"cores": 2, "cpu": "some cpu", "kernel": "6.1"},
    "versions": {"commit": "c" * 40, "changed_files": 0, "uml_sha256": "d" * 64, "python": "3.11"},
}
START = Figure("start", "s", (9.0, 30.0, 8.0), Target("at most", 10.0), conditions=(QUIET,))
RATE = Figure("payload", "GB/s", (4.0, 6.0, 5.0), Target("at least", 5.0), conditions=(QUIET,))


def test_a_figure_is_the_median_of_its_samples() -> None:
    """One sample that was disturbed does not move it."""
    readings = [Reading({"wall_s": value, "other": 0.0}, QUIET) for value in (9.0, 30.0, 8.0)]
    found = figure("start", "s", readings, "wall_s", target=START.target)
    assert (found.median, found.samples, found.conditions) == (9.0, (9.0, 30.0, 8.0), (QUIET,) * 3)


@pytest.mark.parametrize(
    ("found", "met"),
    [
        (START, True),
        (replace(START, samples=(10.0,)), True),
        (replace(START, samples=(10.1,)), False),
        (RATE, True),
        (replace(RATE, samples=(4.9,)), False),
        (replace(RATE, target=None), None),
    ],
)
def test_a_target_is_a_bound_of_the_median(found: Figure, met: bool | None) -> None:
    """At most and at least, the bound itself included; without a target there is nothing to meet."""
    assert found.met is met


def test_a_ratio_above_one_is_better() -> None:
    """For times the other's over ours, for rates ours over the other's; none when it was skipped."""
    assert START.ratio(Beside("slow", (18.0, 27.0, 12.0))) == 2.0
    assert RATE.ratio(Beside("slow", (2.5,))) == 2.0
    assert RATE.ratio(Beside("absent", skipped="needs root")) is None


def test_one_busy_moment_makes_a_figure_unquiet() -> None:
    """Others' work before any sample is enough, load that may be our own is not."""
    assert START.quiet
    assert not replace(START, conditions=(QUIET, BUSY)).quiet
    assert replace(START, conditions=(Conditions(9.0, 0.1, 30.0),)).quiet


def test_shares_are_of_the_sum_of_the_medians() -> None:
    """Largest first, in seconds and per cent, small parts left out."""
    parts = {"boot": (1.0, 1.0, 9.0), "agents": (3.0, 2.0, 3.0), "little": (0.1, 0.1, 0.1)}
    assert shares(parts) == "agents 3 s (73 %), boot 1 s (24 %)"


@pytest.mark.parametrize("fixed", [0.0, 1000.0])
def test_a_fixed_cost_hides_no_bend(fixed: float) -> None:
    """One more costs 1 in the first step and 1.5 in the last, whatever the boot takes and in between."""
    assert bend_percent((10, 20, 40), (fixed + 5, fixed + 15, fixed + 45)) == pytest.approx(50)
    assert bend_percent((10, 20, 30, 40), (fixed, fixed + 10, fixed + 90, fixed + 95)) == pytest.approx(-50)
    assert bend_percent((1, 2, 4), (fixed, fixed + 1, fixed + 3)) == pytest.approx(0)


def test_what_does_not_rise_is_no_line() -> None:
    """A larger size that costs less was not measured well enough to say anything."""
    assert bend_percent((1, 2, 3), (5.0, 4.0, 3.0)) == math.inf


def test_growth_is_judged_sample_by_sample() -> None:
    """A sample on a machine that is twice as slow bends nothing; too cheap is no line either."""
    keys = ("1", "2", "3")
    costs = ((2.0, 3.0, 4.0), (4.0, 6.0, 8.0), (2.0, 3.0, 4.1))
    readings = [Reading(dict(zip(keys, one, strict=True)), QUIET) for one in costs]
    found = growth("linear", "hosts", (1, 2, 3), readings, keys)
    assert found.samples == pytest.approx((0.0, 0.0, 10.0))
    assert (found.met, found.made_of) == (True, "processor: 1 hosts 2 s, 2 hosts 3 s, 3 hosts 4.1 s")
    assert not replace(found, samples=(-25.0,)).met
    assert not replace(found, samples=(25.0,)).met


def test_the_table_says_what_was_not_met_and_what_was_not_measured() -> None:
    """Verdicts, ratios, skipped comparisons, errors, and a footnote when the machine was not quiet."""
    missed = replace(
        START,
        samples=(20.0,),
        beside=(Beside("stock Mininet", (40.0,)), Beside("in UML", skipped="needs root")),
        made_of="agents 15 s (75 %)",
        conditions=(BUSY,),
    )
    page = markdown([missed, RATE], {"agents": "exit code 2"}, DESCRIBED)
    assert (
        "| start \\* | 20 s | 20 | at most 10 | **no** | stock Mininet: 40, this is 2 times as fast"
        "<br>in UML: not measured, needs root | agents 15 s (75 %) |" in page
    )
    assert "| payload | 5 GB/s | 4 6 5 | at least 5 | yes |  |  |" in page
    assert "not quiet" in page
    assert "kept 0.71 processors busy (at most 1.4)" in page
    assert "12 to 30 million times a second" in page
    assert "No figure from `agents`: exit code 2" in page
    assert "not quiet" not in markdown([RATE], {}, DESCRIBED)
