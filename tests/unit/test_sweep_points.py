"""Which points a sweep has: quantities between two ends, grids, samples, and how they are written."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import ScenarioError
from testbed.scenario.source import parse_value
from testbed.sweep.amounts import Kind, between, kind_of
from testbed.sweep.points import Axis, as_text, grid, overrides, sample


def kind(*written: object) -> Kind:
    found = kind_of(*written)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("low", "high", "steps", "log", "expected"),
    [
        (1, 10, 4, False, [1, 4, 7, 10]),
        (1.0, 2.0, 3, False, [1.0, 1.5, 2.0]),
        ("500mbit", "2gbit", 3, True, ["500mbit", "1gbit", "2gbit"]),
        ("0ms", "10ms", 3, False, ["0ns", "5ms", "10ms"]),
        ("1MB", "4MB", 3, True, ["1MB", "2MB", "4MB"]),
        ("1/s", "2/s", 3, False, ["1/s", "1.5/s", "2/s"]),
        ("1%", "3%", 3, False, ["1%", "2%", "3%"]),
    ],
)
def test_steps_lie_between_their_ends(
    low: Any, high: Any, steps: int, log: bool, expected: list[object]
) -> None:
    """Equally far apart, or equally many times; whole ends give whole numbers."""
    unit = kind(low, high)
    assert between(unit, unit.parse(low), unit.parse(high), steps, log=log) == expected


@pytest.mark.parametrize("ends", [("1gbit", 2), ("1gbit", "1s"), ("a", "b"), (True, False), ([1], [2])])
def test_ends_of_two_kinds_have_nothing_between_them(ends: tuple[object, object]) -> None:
    """A rate and a number, a rate and a time, words, yes and no, lists."""
    assert kind_of(*ends) is None


def test_more_steps_than_numbers_are_refused() -> None:
    """Two of them would be the same point."""
    with pytest.raises(ScenarioError, match="5 steps from 1 to 3 are not all different"):
        between(kind(1, 3), 1, 3, 5, log=False)


@given(st.integers(10**3, 10**11), st.floats(1.01, 1000.0), st.integers(2, 9))
def test_logarithmic_steps_are_equally_many_times_apart(low: int, times: float, steps: int) -> None:
    """But for the six digits that are written, and all of them are quantities again."""
    unit = kind("1gbit", "2gbit")
    high = round(low * times)
    written = between(unit, low, high, steps, log=True)
    values = [unit.parse(one) for one in written]
    ratios = [after / before for before, after in pairwise(values)]
    assert all(math.isclose(ratio, (high / low) ** (1 / (steps - 1)), rel_tol=2e-3) for ratio in ratios)


AXES = (Axis("a", (1, 2, 3)), Axis("b", ("x", "y")), Axis("c", (0.5,)))


def test_a_grid_has_every_combination_once() -> None:
    """The last parameter fastest."""
    assert grid(AXES) == [(a, b, 0.5) for a in (1, 2, 3) for b in ("x", "y")]
    assert overrides(AXES, (1, "y", 0.5)) == ("a=1", "b=y", "c=0.5")


@given(st.integers(1, 6), st.integers(0, 10**6))
def test_a_sample_is_of_the_grid_and_repeats(count: int, seed: int) -> None:
    """No point twice, and the same ones with the same seed."""
    points = sample(AXES, count, seed)
    assert len(set(points)) == count
    assert set(points) <= set(grid(AXES))
    assert points == sample(AXES, count, seed)


@given(st.integers(1, 30), st.integers(0, 10**6), st.booleans())
def test_a_sample_of_a_range_lies_in_it(count: int, seed: int, log: bool) -> None:
    """Written as a quantity of its unit, with both ends as limits."""
    rate = kind("1gbit", "8gbit")
    points = sample((Axis("r", (), rate, 1e9, 8e9, log), *AXES), count, seed)
    assert len({repr(point) for point in points}) == count
    assert all(1e9 <= rate.parse(point[0]) <= 8e9 for point in points)


def test_a_used_up_range_ends_the_sample() -> None:
    """Three whole numbers are three points, however many are asked for."""
    assert len(sample((Axis("n", (), kind(1, 3), 1, 3),), 50, 1)) == 3


@given(
    st.one_of(
        st.text(max_size=20),
        st.integers(-(10**12), 10**12),
        st.booleans(),
        st.none(),
        st.sampled_from(["1", "true", "8gbit", "1e-3", "null", "a: b", "[x]", "x #y", "007", "{", "-"]),
        st.dictionaries(
            st.from_regex("[a-z]{1,5}", fullmatch=True), st.integers(0, 9), min_size=1, max_size=3
        ),
        st.lists(st.integers(0, 9), max_size=3),
    ).filter(lambda value: "\x85" not in repr(value))
)
def test_what_is_written_is_read_again(value: object) -> None:
    """A value comes out of `--set` as it stood in the sweep file."""
    try:
        assert parse_value("--set", as_text(value)) == value
    except ScenarioError:
        # Some characters are not allowed in YAML at all, so no file can hold them.
        assert isinstance(value, str)
        assert not value.isprintable()
