"""How long anybody waits: from size and measured goodput, and longer outside than inside."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.config import Timeouts
from agents.timeouts import ladder, patience_s

STEPS = st.tuples(st.integers(10**6, 10**12), st.integers(1, 10**12)).map(lambda pair: (pair[0], sum(pair)))
SIZES = st.integers(0, 1 << 50)
RATES = st.floats(1, 1e12)
NAMES = tuple(Timeouts.__struct_fields__)


@given(STEPS, SIZES, RATES)
def test_patience_lies_between_its_timeout_and_the_next(
    step_ns: tuple[int, int], size: int, rate_bps: float
) -> None:
    """Whatever is to come, at whatever rate; and a rate that was not measured adds nothing."""
    floor_ns, outer_ns = step_ns
    assert floor_ns / 1e9 <= patience_s(floor_ns, outer_ns, size, rate_bps) < outer_ns / 1e9
    assert patience_s(floor_ns, outer_ns, size, 0) == floor_ns / 1e9


@given(STEPS, SIZES, SIZES, RATES, RATES)
def test_patience_grows_with_size_and_falls_with_goodput(
    step_ns: tuple[int, int], one: int, other: int, slow_bps: float, fast_bps: float
) -> None:
    """More to come never makes anybody wait less, nor does a slower path."""
    small, large = sorted((one, other))
    slow_bps, fast_bps = sorted((slow_bps, fast_bps))
    assert patience_s(*step_ns, small, fast_bps) <= patience_s(*step_ns, large, slow_bps)


def test_patience_is_the_timeout_and_twice_the_time_the_bytes_take() -> None:
    """A gigabyte at 10 Gbit/s takes 0.8 s; at 1 Gbit/s 8 s, of which half the way to the next one is left."""
    assert patience_s(20 * 10**9, 30 * 10**9, 1_000_000_000, 10e9) == pytest.approx(21.6)
    assert patience_s(20 * 10**9, 30 * 10**9, 1_000_000_000, 1e9) == pytest.approx(25.0)


@given(st.tuples(*[st.integers(1, 50) for _ in NAMES]))
def test_the_ladder_names_each_step_that_does_not_go_down(values: tuple[int, ...]) -> None:
    """One problem for each timeout that is not longer than the next one; none says that all is well."""
    timeouts = Timeouts(**dict(zip(NAMES, (value * 10**9 for value in values), strict=True)))
    wrong = [
        (outer.removesuffix("_ns"), inner.removesuffix("_ns"))
        for place, (outer, inner) in enumerate(pairwise(NAMES))
        if values[place] <= values[place + 1]
    ]
    problems = ladder(timeouts)
    assert len(problems) == len(wrong)
    for problem, (outer, inner) in zip(problems, wrong, strict=True):
        assert problem.startswith(f"timeouts.{outer} (")
        assert f"is not longer than timeouts.{inner} (" in problem


def test_the_ladder_speaks_as_a_scenario_does() -> None:
    """Names and durations as in the YAML; what is there by default is in order."""
    assert ladder(Timeouts()) == []
    timeouts = msgspec.structs.replace(Timeouts(), transfer_ns=30_500_000_000)
    assert ladder(timeouts) == ["timeouts.lease (20s) is not longer than timeouts.transfer (30.5s)"]
