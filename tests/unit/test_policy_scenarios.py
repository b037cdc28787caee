"""Every policy does what it is for, in the simulator of `policy_sim`."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from agents.model import Lengths, best_allocation, best_threshold, capacity
from agents.policies.view import Request
from tests.unit.policy_sim import (
    LENGTHS,
    SYSTEM,
    Setup,
    independent,
    paper_length,
    simulate,
    stratified,
    thresholds,
    turns,
)
from tests.unit.sim_setups import (
    at_link,
    congested,
    constant,
    roles_of,
    served_share,
    steps,
)


@pytest.mark.parametrize("seed", range(10))
def test_follows_a_drop_to_8_gbps_and_back(seed: int) -> None:
    """Above 22,000 within 3 s of the drop, near the best for 8 Gbps, back within 10 s, with few turns."""
    done = simulate(congested(seed))
    assert set(thresholds(done, 2, 30)) == {19600}
    assert max(thresholds(done, 30, 33)) > 22000
    settled = sorted(thresholds(done, 36, 75))
    # after a lull the link is probed, in less than a tenth of the time
    assert settled[len(settled) // 10] >= 23500
    assert settled[-1] <= 27000
    assert all(19000 <= threshold <= 20500 for threshold in thresholds(done, 85, 120))
    assert turns(thresholds(done)) <= 6


@pytest.mark.parametrize("seed", range(3))
def test_prfaas_follows_a_short_drop_without_touching_the_roles(seed: int) -> None:
    """At a load that the present roles carry only the threshold moves."""
    done = simulate(replace(congested(seed, "prfaas"), rate=constant(1.8)))
    assert max(thresholds(done, 30, 33)) > 21000
    assert all(19000 <= threshold <= 20500 for threshold in thresholds(done, 85, 120))
    assert roles_of(done) == []


@pytest.mark.parametrize("seed", range(4))
def test_follows_the_drop_without_random_loss(seed: int) -> None:
    """What overflows the buffer is loss enough."""
    done = simulate(replace(congested(seed), loss=constant(0.0)))
    assert max(thresholds(done, 30, 33)) > 22000
    assert max(thresholds(done, 36, 75)) <= 27000
    assert turns(thresholds(done)) <= 6


@pytest.mark.parametrize("seed", range(4))
def test_random_loss_on_a_healthy_link_changes_nothing(seed: int) -> None:
    """A link that loses one packet in 100,000 and carries everything does not bind."""
    done = simulate(Setup("bandwidth_aware", seed=seed, loss=constant(1e-5)))
    assert set(thresholds(done, 2)) == {19600}


@pytest.mark.parametrize("seed", range(4))
def test_an_outage_keeps_long_prompts_at_home_and_ends(seed: int) -> None:
    """A dead link drives the threshold far up within 4 s; it is back within 10 s of the link."""
    outage = partial(steps, before=100e9, within=0.0, low_s=30, high_s=50)
    done = simulate(Setup("bandwidth_aware", seed=seed, capacity_bps=outage))
    assert min(thresholds(done, 34, 50)) > 60000
    assert all(19000 <= threshold <= 20500 for threshold in thresholds(done, 60))


def test_a_second_drop_is_followed() -> None:
    """From 8 to 2 Gbps the threshold follows to the region of the best one, 51,200, within 6 s."""
    done = simulate(
        Setup(
            "bandwidth_aware",
            capacity_bps=lambda t_s: 100e9 if t_s < 20 else 8e9 if t_s < 60 else 2e9,
        )
    )
    assert 44000 <= thresholds(done, 66, 67)[0] <= 62000


def test_a_ramp_is_followed() -> None:
    """From 12 to 3 Gbps within two minutes, in the end in overload: never far from the best threshold."""
    done = simulate(
        Setup(
            "bandwidth_aware",
            capacity_bps=lambda t_s: (12 - 9 * min(t_s / 120, 1)) * 1e9,
            draw=stratified(),
            end_s=160,
            tenant_bytes=0.0,
        )
    )
    for point in done.history[160:]:
        best = best_threshold(SYSTEM, LENGTHS, (12 - 9 * min(point.t_s / 120, 1)) * 1e9)
        assert point.state.threshold_tokens == pytest.approx(best, rel=0.15)
    assert turns(thresholds(done, 30)) <= 6


@pytest.mark.parametrize("policy", ["bandwidth_aware", "prfaas"])
@pytest.mark.parametrize("period_s", [5, 20, 60])
def test_an_oscillating_link_turns_the_threshold_once_each_way(policy: str, period_s: int) -> None:
    """Half of each period at 5 Gbps: the threshold goes up once and back once, and no more."""
    end_s = 300.0
    done = simulate(
        Setup(policy, capacity_bps=lambda t_s: 5e9 if t_s / period_s % 1 < 0.5 else 100e9, end_s=end_s)
    )
    assert turns(thresholds(done)) <= 2 * end_s / period_s + 2
    assert len(roles_of(done)) <= 3


def test_bursts_of_arrivals_on_a_healthy_link_change_nothing() -> None:
    """Ten seconds at three times the load, every minute: queues, and no reason to think less of the link."""
    done = simulate(Setup("bandwidth_aware", rate=lambda t_s: 5.0 if t_s % 60 < 10 else 1.6, end_s=240))
    assert all(18500 <= threshold <= 21500 for threshold in thresholds(done, 2))
    assert all(point.state.capacity_bps is None for point in done.history)


def test_overload_on_a_healthy_link_moves_little() -> None:
    """A surge at both sides is no reason to push everything to one of them."""
    done = simulate(Setup("bandwidth_aware", rate=constant(4.0)))
    assert all(18500 <= threshold <= 21000 for threshold in thresholds(done, 2))
    assert turns(thresholds(done)) <= 2


@pytest.mark.parametrize("name", ["homogeneous", "naive_heterogeneous", "static_threshold"])
def test_other_policies_ignore_the_link(name: str) -> None:
    """The controls: the same trouble, and a threshold that stays where it was."""
    assert len(set(thresholds(simulate(congested(1, name))))) == 1


@pytest.mark.parametrize(
    ("gbps", "best"), [(12, 19600), (10, 21600), (8, 24400), (5, 31400), (2, 51200), (1, 70000)]
)
def test_short_loop_meets_the_oracle(gbps: float, best: int) -> None:
    """In overload nine tenths of all thresholds are within 10 % of the best; 95 % of what can be is served.

    The others are probes: at 1 Gbps a request takes ten seconds, and arrivals leave gaps.
    """
    load = capacity(SYSTEM, LENGTHS, best, gbps * 1e9).lambda_max * 1.07
    done = simulate(at_link("bandwidth_aware", gbps, load, 360))
    near = [abs(threshold - best) <= 0.1 * best for threshold in thresholds(done, 60)]
    assert sum(near) >= 0.9 * len(near)
    possible = capacity(SYSTEM, LENGTHS, best, gbps * 1e9, "mean_of_times").lambda_max
    assert served_share(done, 90, possible) >= 0.95


@pytest.mark.parametrize(
    ("gbps", "best", "n_p"),
    [
        (20, 19600, 3),
        (12, 19500, 3),
        (10, 25000, 4),
        (8, 28500, 4),
        (5, 41500, 5),
        (2, 65000, 5),
        (1, 97000, 6),
    ],
)
def test_long_loop_meets_the_oracle(gbps: float, best: int, n_p: int) -> None:
    """Roles and threshold settle at the best ones of all, and 95 % of what is possible is served."""
    load = best_allocation(SYSTEM, LENGTHS, gbps * 1e9).lambda_max * 1.07
    done = simulate(at_link("prfaas", gbps, load, 600))
    assert roles_of(done) == list(range(4, n_p + 1))
    assert all(threshold == pytest.approx(best, rel=0.1) for threshold in thresholds(done, 300))
    possible = best_allocation(SYSTEM, LENGTHS, gbps * 1e9, "mean_of_times").lambda_max
    assert served_share(done, 300, possible) >= 0.95


@pytest.mark.parametrize(("gbps", "load", "n_p"), [(5, 2.1, 5), (8, 2.4, 4), (10, 2.8, 4)])
def test_roles_do_not_swing_below_overload(gbps: float, load: float, n_p: int) -> None:
    """At a load that the best roles carry they are found once, although the estimate rises in every lull."""
    done = simulate(Setup("prfaas", capacity_bps=constant(gbps * 1e9), rate=constant(load), end_s=700))
    assert roles_of(done) == list(range(4, n_p + 1))
    assert served_share(done, 300, load) >= 0.95


def test_roles_go_back_when_the_link_returns() -> None:
    """Prefill is strengthened while 5 Gbps bind, and decode again when it holds everything up."""
    done = simulate(
        Setup(
            "prfaas",
            capacity_bps=partial(steps, before=100e9, within=5e9, low_s=60, high_s=360),
            rate=constant(2.9),
            end_s=700,
        )
    )
    assert roles_of(done) == [4, 5, 4]
    assert any(point.state.reason.endswith(", 5 prefill instances") for point in done.history)
    assert "prefill has" in next(p.state.reason for p in done.history if p.state.prefill_instances == 4)
    assert served_share(done, 550, 2.9) >= 0.95


def test_roles_follow_what_requests_ask_for() -> None:
    """Long answers make decode the narrow side, short ones prefill; the roles go there, and back."""

    def draw(rng: Random, t_s: float, number: int) -> Request:
        return replace(independent(rng, t_s, number), output_tokens=2048 if t_s < 240 else 512)

    done = simulate(Setup("prfaas", rate=lambda t_s: 2.25 if t_s < 240 else 3.3, draw=draw, end_s=700))
    first = [point.state.prefill_instances or 3 for point in done.history if point.t_s < 240]
    assert first[-1] in {1, 2}
    assert sorted(first, reverse=True) == first
    assert done.history[-1].view.n_p >= 4
    assert done.history[-1].view.n_d >= 1


def with_prefixes(rng: Random, t_s: float, number: int) -> Request:
    """Every other prompt has half of its tokens cached, in PrfaaS if it is long, otherwise in PD."""
    request = independent(rng, t_s, number)
    half = request.input_tokens // 2 if number % 2 else 0
    if request.input_tokens > 19600:
        return replace(request, cached_prfaas_tokens=half)
    return replace(request, cached_pd_tokens=half)


def test_regimes_follow_the_link() -> None:
    """Hot prefixes: fetched from anywhere while the link has room, each cluster's own while it has none."""
    done = simulate(
        Setup(
            "prfaas",
            capacity_bps=partial(steps, before=100e9, within=3e9, low_s=60, high_s=180),
            draw=with_prefixes,
            end_s=300,
        )
    )
    seen = [point.state.regime for point in done.history]
    changes = [at for at, before in zip(seen[1:], seen, strict=False) if at != before]
    assert set(seen[4 * 40 : 4 * 59]) == {"abundant"}
    assert set(seen[4 * 75 : 4 * 180]) == {"scarce"}
    assert set(seen[4 * 260 :]) == {"abundant"}
    assert len(changes) <= 5
    caches = {decision.cache for t_s, decision, _ in done.placed if 75 < t_s < 180}
    assert caches == {"own"}


def test_the_threshold_is_searched_on_what_the_cache_leaves() -> None:
    """With hits the threshold is the best one for lengths after prefix matching, not for the profiled."""

    def draw(rng: Random, t_s: float, number: int) -> Request:
        request = independent(rng, t_s, number)
        return replace(request, cached_pd_tokens=request.input_tokens * 3 // 4 if number % 2 else 0)

    done = simulate(Setup("bandwidth_aware", draw=draw, end_s=300))
    quantiles = [paper_length((i + 0.5) / 256) for i in range(256)]
    hits = [
        (tokens - tokens * 3 // 4, tokens) for tokens in quantiles
    ]  # the PrfaaS cluster has nothing of them
    left = Lengths.from_pairs([*((tokens, tokens) for tokens in quantiles), *hits])
    best = best_threshold(SYSTEM, left, None)
    assert best < 14000
    assert thresholds(done)[-1] == pytest.approx(best, rel=0.15)
