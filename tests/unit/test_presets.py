"""Noise and presets: what a direction is all run long."""

from __future__ import annotations

from math import isclose

import pytest

from testbed.plan import (
    DIRECTIONS,
)
from testbed.scenario.presets import presets
from tests.unit.link_plans import MS, S, changes, planned


def test_noise_moves_the_rate_around_whatever_holds() -> None:
    """Noise multiplies the rate of a step, a buffer in time follows the rate without it."""
    plan = planned(
        "link.a_to_b.noise={cv: 10%, every: 1s}", "timeline=[{at: 10s, link: a_to_b, set: {rate: 1gbit}}]"
    )
    early = [change.state for change in changes(plan) if change.t_ns < 10 * S]
    late = [change.state for change in changes(plan) if change.t_ns >= 10 * S]
    assert [len({state.rate_bps for state in states}) for states in (early, late)] == [10, 10]
    assert all(7 * 10**9 <= state.rate_bps <= 13 * 10**9 for state in early)
    assert all(7 * 10**8 <= state.rate_bps <= 13 * 10**8 for state in late)
    assert {state.buffer_bytes for state in early} == {12_500_000}


def test_noise_of_an_entry_ends() -> None:
    """Before and after an entry of noise the rate is that of the direction."""
    plan = planned("timeline=[{at: 1s, link: a_to_b, noise: {cv: 5%, every: 100ms}, until: 2s}]")
    inside = [change.state.rate_bps for change in changes(plan) if S <= change.t_ns < 2 * S]
    assert (len(set(inside)), changes(plan)[-1].t_ns) == (10, 2 * S)
    assert {changes(plan)[0].state.rate_bps, changes(plan)[-1].state.rate_bps} == {10**10}


def test_noise_of_one_direction_is_not_that_of_the_other() -> None:
    """Each direction and each seed has dice of its own, and always the same."""
    words = [f"link.{direction}.noise={{cv: 10%, every: 1s}}" for direction in DIRECTIONS]
    plan = planned(*words)
    there, back = ([change.state.rate_bps for change in changes(plan, each)] for each in DIRECTIONS)
    assert there != back
    assert planned(*words) == plan
    assert changes(planned(*words, seed=2)) != changes(plan)


@pytest.mark.parametrize("name", presets())
def test_presets_make_a_plan(name: str) -> None:
    """Every preset is a whole direction that resolves as it stands."""
    plan = planned(f"link.a_to_b={{preset: {name}}}", f"link.b_to_a={{preset: {name}}}")
    assert plan.link["a_to_b"] == plan.link["b_to_a"]


def test_presets_are_those_of_the_measurements() -> None:
    """Round trip (ms) and mean loss of each preset are the measured ones."""
    losses = {
        "near-region-100g": 1e-7,
        "continental-100g": 1e-6,
        "transatlantic-100g": 1e-6,
        "cross-cloud": 1e-5,
    }
    trips = {}
    for name in presets():
        state = planned(f"link.a_to_b={{preset: {name}}}").link["a_to_b"]
        trips[name] = 2 * state.delay_ns / MS
        loss = state.loss
        share = 0.0 if loss is None else loss.ratio or loss.p / (loss.p + loss.r)
        assert isclose(share, losses.get(name, 0.0), rel_tol=1e-5), name
    assert trips == {
        "metro-100g": 3, "near-region-100g": 11.5, "continental-100g": 68, "transatlantic-100g": 85,
        "cross-cloud": 30, "maintenance": 11.5, "token-bucket": 11.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "low_over_median"),
    [("continental-100g", 0.89), ("transatlantic-100g", 0.73), ("cross-cloud", 0.35)],
)
def test_presets_spread_as_measured(name: str, low_over_median: float) -> None:
    """The 5th percentile of the noisy rate over its median is the measured figure, within 2 %."""
    plan = planned(f"link.a_to_b={{preset: {name}}}", "duration=1000s", "link.a_to_b.token_bucket=none")
    drawn = sorted(change.state.rate_bps for change in changes(plan))
    assert abs(drawn[len(drawn) // 20] / drawn[len(drawn) // 2] - low_over_median) < 0.02


def test_keys_beside_a_preset_override_it() -> None:
    """A preset fills in what is not written."""
    plan = planned("link.a_to_b={preset: near-region-100g, rate: 40gbit, jitter: 0ms, noise: none}")
    state = plan.link["a_to_b"]
    assert (state.rate_bps, state.jitter_ns, state.delay_ns) == (40 * 10**9, 0, 5_750_000)
    assert len(changes(plan)) == 1


def test_the_maintenance_of_both_directions_is_one() -> None:
    """Two directions with the same drawn outage go down and come up together."""
    plan = planned("link.a_to_b={preset: maintenance}", "link.b_to_a={preset: maintenance}", "duration=60s")
    one, other = ([change.t_ns for change in changes(plan, each)] for each in DIRECTIONS)
    assert one == other
    assert len(one) == 3
    assert [event.name for event in plan.events] == ["outage", "outage", "outage.end", "outage.end"]
