"""The search for a boundary, against oracles that know it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sweep.amounts import Kind, kind_of
from testbed.sweep.search import Agree, Boundary, Closeness, Outcome, agreed, bisect


def kind(*written: object) -> Kind:
    found = kind_of(*written)
    assert found is not None
    return found


RATE = kind("1gbit", "2gbit")


def searched(
    oracle: Callable[[float], Outcome], low: float, high: float, close: Closeness, unit: Kind = RATE
) -> tuple[Boundary, list[float]]:
    """What the search comes to, and all that it tried."""
    path = bisect(low, high, close, unit)
    tried: list[float] = []
    values = next(path)
    while True:
        tried += values
        try:
            values = path.send([oracle(value) for value in values])
        except StopIteration as end:
            return end.value, tried


@given(st.floats(2.01e9, 39.9e9), st.booleans(), st.floats(1.001, 1.5))
def test_a_boundary_is_found_as_closely_as_asked(edge: float, rising: bool, ratio: float) -> None:
    """Whichever side holds; between the two values, which are no further apart than the tolerance."""

    def oracle(value: float) -> Outcome:
        return "holds" if (value >= edge) == rising else "fails"

    found, tried = searched(oracle, 2e9, 40e9, Closeness(ratio=ratio))
    assert found.status == "found"
    assert found.holds is not None
    assert found.fails is not None
    low, high = (found.fails, found.holds) if rising else (found.holds, found.fails)
    assert low < edge <= high
    assert high / low <= ratio * 1.0001
    assert len(tried) == len(set(tried)) <= 2 + 14


@given(st.sets(st.integers(0, 63), min_size=1, max_size=60))
def test_what_changes_several_times_gives_one_of_the_changes(holding: set[int]) -> None:
    """Two neighbours of which one holds and the other fails, as long as the ends differ; else no boundary."""
    whole = kind(0, 63)

    def oracle(value: float) -> Outcome:
        return "holds" if value in holding else "fails"

    found, tried = searched(oracle, 0, 63, Closeness(distance=1.0), whole)
    if (0 in holding) == (63 in holding):
        assert (found.status, found.both, tried) == ("none", oracle(0), [0, 63])
        return
    assert found.status == "found"
    assert found.holds is not None
    assert found.fails is not None
    assert oracle(found.holds) == "holds"
    assert oracle(found.fails) == "fails"
    assert abs(found.holds - found.fails) == 1


def test_whole_numbers_end_as_neighbours() -> None:
    """A tolerance finer than one step is no endless search."""
    found, tried = searched(
        lambda value: "holds" if value < 7 else "fails", 1, 20, Closeness(ratio=1.0001), kind(1, 20)
    )
    assert (found.holds, found.fails) == (6, 7)
    assert len(tried) < 10


@pytest.mark.parametrize("at", [2e9, 40e9])
def test_an_end_that_is_unknown_stops_the_search(at: float) -> None:
    """Nothing follows from there."""
    found, tried = searched(lambda value: "unknown" if value == at else "holds", 2e9, 40e9, Closeness(1.05))
    assert (found.status, found.unknown_at, len(tried)) == ("unknown", at, 2)


def test_a_middle_that_is_unknown_stops_the_search() -> None:
    """It could be on either side."""
    answers: dict[float, Outcome] = {1e9: "fails", 4e9: "holds"}
    found, tried = searched(lambda value: answers.get(value, "unknown"), 1e9, 4e9, Closeness(1.05))
    assert (found.status, found.unknown_at) == ("unknown", 2e9)
    assert tried == [1e9, 4e9, 2e9]


@pytest.mark.parametrize(
    ("outcomes", "agree", "together"),
    [
        ("hhh", "all", "holds"),
        ("hfh", "all", "fails"),
        ("huh", "all", "unknown"),
        ("fuu", "all", "fails"),
        ("hhf", "majority", "holds"),
        ("hf", "majority", "fails"),
        ("hff", "majority", "fails"),
        ("hhu", "majority", "holds"),
        ("hfu", "majority", "unknown"),
        ("ffu", "majority", "fails"),
    ],
)
def test_seeds_agree(outcomes: str, agree: Agree, together: Outcome) -> None:
    """All of them, or more than half; unknown only where what is missing could decide."""
    letters: dict[str, Outcome] = {"h": "holds", "f": "fails", "u": "unknown"}
    assert agreed([letters[one] for one in outcomes], agree) == together
