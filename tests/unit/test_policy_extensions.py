"""The policies beyond the paper do what they are for, in the simulator of `policy_sim`."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from agents.model import System, best_threshold
from agents.policies.view import Request
from agents.profiles import COMPRESSIONS
from tests.unit.policy_sim import (
    LENGTHS,
    SYSTEM,
    Setup,
    independent,
    simulate,
    thresholds,
)
from tests.unit.sim_setups import (
    LONG_PROMPT,
    at_link,
    congested,
    constant,
    mean,
    served_share,
    steps,
)


@pytest.mark.parametrize(("gbps", "load"), [(8, 2.2), (5, 1.6), (20, 2.9)])
def test_aimd_finds_a_rate_that_the_link_carries(gbps: float, load: float) -> None:
    """On average within a third of the best threshold, on the safe side; a free link is left alone."""
    done = simulate(replace(at_link("aimd", gbps, load, 400), tenant_bytes=64e6))
    best = best_threshold(SYSTEM, LENGTHS, gbps * 1e9)
    assert 0.95 * best <= mean(thresholds(done, 200)) <= 1.35 * best
    assert served_share(done, 200, load) >= 0.85


def test_aimd_returns() -> None:
    """After the drop everything is admitted again, by and by."""
    done = simulate(replace(congested(1, "aimd"), end_s=200))
    assert max(thresholds(done, 36, 75)) > 22000
    assert done.history[-1].state.capacity_bps is None
    assert thresholds(done)[-1] <= 20500


@pytest.mark.parametrize(
    ("gbps", "load", "start"),
    [(100, 2.9, 60000), (100, 3.4, 4000), (8, 2.2, 19600), (5, 1.6, 100_000)],
)
def test_learned_finds_the_threshold_from_any_start(gbps: float, load: float, start: int) -> None:
    """Near saturation the threshold that is equally good at both sides is the best one, within a quarter."""
    done = simulate(replace(at_link("learned", gbps, load, 1000), threshold=start))
    best = best_threshold(SYSTEM, LENGTHS, gbps * 1e9)
    assert mean(thresholds(done, 600)) == pytest.approx(best, rel=0.25)


def flooded(rng: Random, t_s: float, number: int) -> Request:
    """A tenant with the paper's lengths, and from 30 to 150 s another one with long prompts only."""
    request = replace(independent(rng, t_s, number), tenant="calm")
    if 30 <= t_s < 150 and rng.random() < 0.4:
        return replace(request, input_tokens=LONG_PROMPT, tenant="flood")
    return request


@pytest.mark.parametrize("seed", range(3))
def test_fair_share_protects_a_tenant_from_another(seed: int) -> None:
    """Long prompts of the calm tenant wait far less, its short ones not much longer."""

    def ttft_s(policy: str) -> dict[str, float]:
        done = simulate(
            Setup(
                policy,
                seed=seed,
                rate=partial(steps, before=1.2, within=2.0, low_s=30, high_s=150),
                draw=flooded,
                end_s=180,
            )
        )
        calm = [answer for t_s, answer in done.answers if answer.tenant == "calm" and t_s >= 40]
        return {
            route: mean([answer.ttft_s for answer in calm if answer.route == route])
            for route in ("prfaas", "pd")
        }

    fair, aware = ttft_s("fair_share"), ttft_s("bandwidth_aware")
    assert fair["prfaas"] < 0.8 * aware["prfaas"]
    assert fair["pd"] < aware["pd"] + 2.0


def test_fair_share_lets_a_tenant_alone_use_everything() -> None:
    """Nobody else is there: exactly bandwidth_aware's decisions."""
    alone, aware = (
        simulate(Setup(policy, rate=constant(3.0))) for policy in ("fair_share", "bandwidth_aware")
    )
    assert [each[1].route for each in alone.placed] == [each[1].route for each in aware.placed]


@pytest.mark.parametrize("name", sorted(COMPRESSIONS))
def test_compression_relieves_a_narrow_link_and_ends(name: str) -> None:
    """Compressed while 5 Gbps bind and not otherwise, with few changes; far more is served than without."""
    system: System = replace(SYSTEM, compression=COMPRESSIONS[name])
    setup = Setup(
        "compression",
        capacity_bps=partial(steps, before=100e9, within=5e9, low_s=30, high_s=230),
        rate=constant(2.9),
        system=system,
        end_s=420,
    )
    done, plain = simulate(setup), simulate(replace(setup, policy="bandwidth_aware"))
    regimes = [point.state.regime for point in done.history]
    assert regimes[4 * 29] == "abundant"
    assert regimes[4 * 36] == "scarce"
    assert regimes[4 * 36 : 4 * 230].count("scarce") > 0.9 * 4 * 194
    assert regimes[-1] == "abundant"
    assert sum(at != before for at, before in zip(regimes[1:], regimes, strict=False)) <= 8
    between = [decision.compress for t_s, decision, _ in done.placed if t_s < 29]
    assert not any(between)
    assert mean(thresholds(done, 60, 230)) < 0.85 * mean(thresholds(plain, 60, 230))
    assert done.history[4 * 230].ended > 1.15 * plain.history[4 * 230].ended
