"""What every policy promises, for any view, and what the parts of the policies mean, one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.policies import (
    POLICIES,
)
from agents.policies.view import Config, Request, View
from tests.unit.policy_bench import (
    CONFIG,
    LENGTHS,
    REQUESTS,
    SYSTEM,
    VIEWS,
    run,
    saturated,
    view,
)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=60, deadline=None)
@given(views=st.lists(VIEWS, max_size=8), request_=REQUESTS)
def test_any_view_is_answered_within_bounds_and_the_same_each_time(
    name: str, views: list[View], request_: Request
) -> None:
    """Whatever a policy is shown, its threshold is in range, and the same input gives the same answer."""
    policy = POLICIES[name]
    state = policy.start(CONFIG)
    for each in views:
        decision = policy.route(CONFIG, state, each, request_)
        assert decision == policy.route(CONFIG, state, each, request_)
        assert decision.threshold_tokens == state.threshold_tokens
        after = policy.update(CONFIG, state, each)
        assert after == policy.update(CONFIG, state, each)
        assert 0 <= after.threshold_tokens <= SYSTEM.pd.max_tokens
        assert after.capacity_bps is None or after.capacity_bps > 0
        if after.prefill_instances is not None:
            instances = each.n_p + each.n_d or SYSTEM.n_p + SYSTEM.n_d
            assert state.prefill_instances == after.prefill_instances or (
                0 <= after.prefill_instances <= max(instances - 1, each.n_p)
            )
        state = after


@given(views=st.lists(VIEWS, max_size=5), request_=REQUESTS)
def test_homogeneous_never_offloads(views: list[View], request_: Request) -> None:
    """Every request stays in the PD cluster."""
    policy = POLICIES["homogeneous"]
    state = policy.start(CONFIG)
    for each in views:
        state = policy.update(CONFIG, state, each)
        assert policy.route(CONFIG, state, each, request_).route == "pd"


@given(views=st.lists(VIEWS, max_size=5))
def test_static_threshold_never_moves(views: list[View]) -> None:
    """The state after any number of intervals is the first one."""
    policy = POLICIES["static_threshold"]
    first = state = policy.start(CONFIG)
    for each in views:
        state = policy.update(CONFIG, state, each)
    assert state == first


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"homogeneous", "naive_heterogeneous"}))
def test_a_length_at_the_threshold_stays(name: str) -> None:
    """The paper's rule: up to the threshold to the PD cluster, above it offloaded."""
    policy = POLICIES[name]
    state = policy.start(CONFIG)
    routes = [
        policy.route(CONFIG, state, view(0.0), Request("r", tokens, 1)).route for tokens in (19600, 19601)
    ]
    assert routes == ["pd", "prfaas"]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_an_unknown_parameter_is_refused(name: str) -> None:
    """A parameter that a policy does not have is an error that names it."""
    with pytest.raises(ValueError, match="nonsense"):
        POLICIES[name].start(Config(19600, {"nonsense": 1.0}, LENGTHS, SYSTEM, 2.56))


def test_naive_heterogeneous_offloads_everything_if_it_can() -> None:
    """Every request leaves; without a PrfaaS cluster there is nowhere to go."""
    policy = POLICIES["naive_heterogeneous"]
    state = policy.start(CONFIG)
    assert policy.route(CONFIG, state, view(0.0), Request("r", 1, 1)).route == "prfaas"
    with pytest.raises(ValueError, match="PrfaaS"):
        policy.start(replace(CONFIG, system=replace(SYSTEM, n_prfaas=0)))


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        *(("bandwidth_aware", "quiet_s", value) for value in (0.0, -1.0, float("nan"))),
        ("bandwidth_aware", "raise_per_s", 1.0),
        ("bandwidth_aware", "suspect_share", 1.1),
        ("prfaas", "convert_gain", 0.0),
        ("prfaas", "abundant_below", 0.95),
        ("aimd", "decrease_factor", 1.0),
        ("learned", "last_step", 2.0),
        ("fair_share", "contended_wait_s", 0.0),
        ("compression", "scarce_above", 1.5),
    ],
)
def test_a_parameter_out_of_range_is_refused(name: str, parameter: str, value: float) -> None:
    """The message names the policy and the parameter."""
    with pytest.raises(ValueError, match=f"{name}.*{parameter}"):
        POLICIES[name].start(replace(CONFIG, params={parameter: value}))


def test_low_demand_is_not_low_capacity() -> None:
    """However little is sent, without a standing backlog the link does not bind."""
    assert (
        run([view(i / 4, goodput_bps=1e8, acked_bytes=3_125_000) for i in range(1, 400)]).capacity_bps is None
    )


def test_one_sign_alone_is_not_congestion() -> None:
    """Losses without a queue, or a queue without losses, leave the estimate alone."""
    assert run([view(i / 4, retrans_bytes=9000) for i in range(1, 40)]).capacity_bps is None
    assert (
        run([view(i / 4, rtt_s=0.02, backlog_bytes=200_000_000) for i in range(1, 40)]).capacity_bps is None
    )


def test_losses_with_a_queue_lower_the_estimate_once() -> None:
    """Suspicion sets the estimate to a share of what the system sends, and no lower however long it lasts."""
    suspicious = [view(i / 4, goodput_bps=1e9, retrans_bytes=9000, rtt_s=0.02) for i in range(1, 40)]
    assert run(suspicious[:1]).capacity_bps is None
    assert run(suspicious[:2]).capacity_bps == run(suspicious).capacity_bps is not None


def test_a_standing_backlog_makes_goodput_a_sample() -> None:
    """When more stands in the backlog than an interval carries, the estimate settles at the goodput."""
    state = run(
        [
            view(i / 4, goodput_bps=3e9, acked_bytes=93_750_000, backlog_bytes=10**9, rtt_s=0.02)
            for i in range(1, 40)
        ]
    )
    assert state.capacity_bps == pytest.approx(3e9, rel=0.05)
    assert state.threshold_tokens > 30000
    assert "3." in state.reason


def test_goodput_above_the_estimate_raises_it_at_once() -> None:
    """A link that carries more than thought possible in two intervals has recovered; one may be a lump."""
    congested = [
        view(i / 4, goodput_bps=3e9, acked_bytes=93_750_000, backlog_bytes=10**9, rtt_s=0.02)
        for i in range(1, 40)
    ]
    spike = [view(10 + i / 4, goodput_bps=50e9, acked_bytes=1_562_500_000) for i in range(2)]
    assert run([*congested, *spike[:1]]).capacity_bps is not None
    assert run([*congested, *spike]).capacity_bps is None


def test_a_queue_surge_moves_work_to_the_other_side() -> None:
    """A queue beyond 15 s of work moves the threshold a little; the same surge at both sides does not."""
    calm = view(1.0, goodput_bps=1e9)
    start = run([calm]).threshold_tokens
    at_pd, at_both = replace(calm, queue_pd=100), replace(calm, queue_pd=100, queue_prfaas=100)
    assert 0.9 * start < run([replace(at_pd, t_s=2.0)]).threshold_tokens < start
    assert "queue surge" in run([replace(at_pd, t_s=2.0)]).reason
    assert run([replace(at_both, t_s=2.0)]).threshold_tokens == pytest.approx(start, rel=0.01)


def test_an_idle_link_is_trusted_more_slowly() -> None:
    """A quiet interval in which little was sent counts a quarter."""
    congested = [
        view(i / 4, goodput_bps=7e9, acked_bytes=218_750_000, backlog_bytes=10**9, rtt_s=0.02)
        for i in range(1, 40)
    ]
    idle = [view(10 + i / 4, goodput_bps=0.0, acked_bytes=0) for i in range(80)]
    assert run([*congested, *idle[:60]]).capacity_bps == run(congested).capacity_bps
    assert run([*congested, *idle]).capacity_bps != run(congested).capacity_bps


def test_a_quiet_link_is_trusted_again() -> None:
    """Without signs of congestion the estimate rises after `quiet_s`, until the link no longer binds."""
    congested = [
        view(i / 4, goodput_bps=7e9, acked_bytes=218_750_000, backlog_bytes=10**9, rtt_s=0.02)
        for i in range(1, 40)
    ]
    quiet = [view(10 + i / 4, goodput_bps=6e9, acked_bytes=187_500_000) for i in range(40)]
    assert run([*congested, *quiet[:12]]).capacity_bps == run(congested).capacity_bps
    assert run([*congested, *quiet]).capacity_bps is None
    assert run([*congested, *quiet[:12]], {"quiet_s": 1.0}).capacity_bps != run(congested).capacity_bps


def test_one_burst_of_others_does_not_move_a_settled_estimate() -> None:
    """A single sample far off is somebody else's burst; two of them are a change of the link."""
    settled, lower = [*saturated(8e9, 20), *saturated(8.5e9, 1, 20)], saturated(3e9, 1, 21)
    before = run(settled).capacity_bps
    assert run([*settled, *lower[:1]]).capacity_bps == before
    assert before is not None
    assert (run([*settled, *lower[:2]]).capacity_bps or 0.0) < 0.95 * before
