"""The example scheduler in Lua decides as the policy whose rules it has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agents.model import Lengths
from agents.policies import bandwidth_aware
from agents.policies.failure import PolicyFailure
from agents.policies.http_service import HttpService
from agents.policies.view import Config, View
from tests.unit.lua_scheduler import lua_scheduler
from tests.unit.policy_sim import LENGTHS, Setup, Simulation, simulate

pytestmark = pytest.mark.skipif(shutil.which("lua5.4") is None, reason="no lua5.4: make setup")


@pytest.fixture(scope="module")
def lua() -> Iterator[HttpService]:
    """The service, for all who ask it."""
    with lua_scheduler() as policy:
        yield policy


@pytest.fixture(scope="module")
def narrow() -> Simulation:
    """100 Gbps become 8 for a while, under a load that leaves queues behind."""
    setup = Setup(
        "bandwidth_aware",
        seed=2,
        capacity_bps=lambda t_s: 5e9 if 20 < t_s < 60 else 100e9,
        loss=lambda _t_s: 1e-4,
        rate=lambda _t_s: 3.2,
        end_s=90,
    )
    return simulate(setup)


def differing(lua: HttpService, config: Config, views: list[View]) -> tuple[int, list[float]]:
    """How often the threshold moved, and when an answer of the two was another one."""
    ours, theirs = bandwidth_aware.start(config), lua.start(config)
    moves, different = 0, []
    for view in views:
        after = bandwidth_aware.update(config, ours, view)
        moves += after.threshold_tokens != ours.threshold_tokens
        ours, theirs = after, lua.update(config, theirs, view)
        same = replace(ours, memory=None) == replace(theirs, memory=None)
        for one in view.placed:
            wanted = bandwidth_aware.route(config, ours, view, one.request)
            same = same and lua.route(config, theirs, view, one.request) == wanted
        if not same:
            different.append(view.t_s)
    return moves, different


HEAVY = Lengths.from_quantiles([*LENGTHS.tokens[::8], *[20_000] * 40])
"""No threshold divides what many requests have in common."""


@pytest.mark.parametrize("lengths", [LENGTHS, HEAVY], ids=["spread", "heavy"])
def test_it_gives_the_same_answers(lua: HttpService, narrow: Simulation, lengths: Lengths) -> None:
    """Thresholds, capacities to the last bit, reasons, routes: through congestion and surges of queues."""
    views = [point.view for point in narrow.history]
    moves, different = differing(lua, replace(narrow.config, lengths=lengths), views)
    assert different == []
    assert moves >= 1
    assert any("surge" in point.state.reason for point in narrow.history)


def test_it_remembers_nothing_that_it_is_not_given(lua: HttpService, narrow: Simulation) -> None:
    """The same question, asked again later, gets the same answer: what makes replays possible."""
    config, views = narrow.config, [point.view for point in narrow.history][:200]
    states = [lua.start(config)]
    for view in views:
        states.append(lua.update(config, states[-1], view))
    again = [lua.update(config, state, view) for state, view in zip(states, views, strict=False)]
    assert again == states[1:]


def test_it_refuses_parameters_that_it_does_not_have(lua: HttpService, narrow: Simulation) -> None:
    """In its own words, which become the cause."""
    with pytest.raises(
        PolicyFailure, match=r"^/start: answered status 500 .* takes no parameters, found limit"
    ):
        lua.start(replace(narrow.config, params={"limit": 1.0}))
