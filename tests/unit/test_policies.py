"""What every policy promises, for any view, and what the signals of bandwidth_aware mean."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.model import Lengths, System
from agents.policies import POLICIES, bandwidth_aware
from agents.policies.view import Config, Egress, Request, State, View
from agents.profiles import MODELS, PROFILES

SYSTEM = System(
    PROFILES["h200"], PROFILES["h20"], MODELS["internal_1t"], n_prfaas=4, n_p=3, n_d=5, output_tokens=1024
)
LENGTHS = Lengths.from_quantiles([1500, 4000, 8000, 12000, 20000, 30000, 45000, 90000])
CONFIG = Config(19600, {}, LENGTHS, SYSTEM, 2.56)

SIZES = st.integers(0, 10**12)
DEPTHS = st.integers(0, 10**6)
EGRESS = st.builds(
    Egress,
    goodput_bps=st.floats(0, 1e12),
    backlog_bytes=SIZES,
    retrans_bytes=SIZES,
    acked_bytes=SIZES,
    rtt_s=st.floats(0, 100),
    min_rtt_s=st.floats(0, 100),
)
VIEWS = st.builds(View, st.floats(0, 1e9), EGRESS, DEPTHS, DEPTHS, DEPTHS, DEPTHS, DEPTHS, DEPTHS)
REQUESTS = st.builds(Request, st.text(max_size=3), st.integers(1, 131072), st.integers(1, 4096))


def view(t_s: float, **egress: float) -> View:
    """A view with a calm link and empty queues, except for what is given."""
    calm = Egress(8e9, 0, 0, 250_000_000, 0.01, 0.01)
    return View(t_s, replace(calm, **egress), 0, 0, 0, 0, 0, 0)  # type: ignore[arg-type]


def run(views: list[View], params: dict[str, float] | None = None) -> State:
    """The state of bandwidth_aware after these control intervals."""
    config = Config(19600, params or {}, LENGTHS, SYSTEM, 2.56)
    state = bandwidth_aware.start(config)
    for each in views:
        state = bandwidth_aware.update(config, state, each)
    return state


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


@pytest.mark.parametrize("name", ["static_threshold", "bandwidth_aware"])
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


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_parameter_that_is_not_above_0_is_refused(value: float) -> None:
    """Every parameter of bandwidth_aware is a positive number."""
    with pytest.raises(ValueError, match="quiet_s"):
        bandwidth_aware.start(Config(19600, {"quiet_s": value}, LENGTHS, SYSTEM, 2.56))


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
