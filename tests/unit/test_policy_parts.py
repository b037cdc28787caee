"""The parts that policies share, and what is particular to each of them."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.model import best_threshold, capacity
from agents.policies import (
    aimd,
    compression,
    fair_share,
    learned,
    lengths_seen,
    prfaas,
    regimes,
    roles,
)
from agents.policies.view import Answer, Placed, Request, TenantLoad, View
from agents.profiles import COMPRESSIONS
from tests.unit import policy_sim
from tests.unit.policy_bench import (
    CONFIG,
    LENGTHS,
    SYSTEM,
    run,
    saturated,
    view,
)


def placed(each: Request, count: int) -> tuple[Placed, ...]:
    """The same request, placed so many times."""
    return (Placed(each, "pd"),) * count


def test_lengths_without_hits_are_the_profiled_ones() -> None:
    """As long as no cache holds anything, what was placed changes nothing."""
    seen = lengths_seen.Seen(LENGTHS)
    for i in range(1, 20):
        seen = lengths_seen.observe(
            seen, replace(view(float(i)), placed=placed(Request("r", 500, 1), 64)), LENGTHS, "scarce"
        )
    assert seen.lengths is LENGTHS


def test_lengths_with_hits_are_what_is_left_to_compute() -> None:
    """Mixed with the profiled ones at first, then only seen ones; the regime says which prefix counts."""
    hit = Request("r", 30000, 1, cached_prfaas_tokens=20000, cached_pd_tokens=10000)
    few = replace(view(2.0), placed=placed(hit, lengths_seen.WINDOW // 2))
    many = replace(few, t_s=4.0)
    seen = lengths_seen.observe(lengths_seen.Seen(LENGTHS), few, LENGTHS, "scarce")
    assert seen.lengths.tokens.count(20000) == pytest.approx(lengths_seen.WINDOW * (1 / 2 + 1 / 16), abs=1)
    assert len(seen.lengths.tokens) == lengths_seen.WINDOW
    full = lengths_seen.observe(seen, many, LENGTHS, "scarce")
    assert set(full.lengths.tokens) == {20000}
    assert set(lengths_seen.observe(full, view(6.0), LENGTHS, "abundant").lengths.tokens) == {10000}


def test_lengths_are_built_at_most_once_a_second() -> None:
    """What comes within a second waits for the next building."""
    hit = Request("r", 30000, 1, cached_pd_tokens=10000)
    seen = lengths_seen.Seen(LENGTHS)
    built = []
    for i in range(1, 41):
        after = lengths_seen.observe(seen, replace(view(i / 4), placed=placed(hit, 1)), LENGTHS, "scarce")
        built.append(after.lengths is not seen.lengths)
        seen = after
    assert sum(built) == 10


def test_a_regime_that_ended_too_early_is_waited_for_longer() -> None:
    """Scarce above the high mark, abundant after a calm time, and twice as long if scarcity came back."""
    params = {name: param.default for name, param in regimes.PARAMS.items()}
    scarcity = regimes.Scarcity()

    def after(used: float, seconds: float) -> str:
        nonlocal scarcity
        for _ in range(round(4 * seconds)):
            scarcity = regimes.observe(params, scarcity, used, 0.25)
        return scarcity.regime

    assert after(0.5, 9.5) == "scarce"
    assert after(0.5, 1.0) == "abundant"
    assert after(0.8, 5.0) == "abundant"
    assert after(1.5, 5.0) == "scarce"
    assert after(0.8, 100.0) == "scarce"
    assert after(0.5, 15.0) == "scarce"
    assert after(0.5, 10.0) == "abundant"
    assert after(0.5, 100.0) == "abundant"
    assert after(1.5, 5.0) == "scarce"
    assert after(0.5, 13.0) == "abundant"


def test_the_regime_decides_which_prefix_counts() -> None:
    """Scarce: the PD cluster's own; abundant: the longest, which the dispatcher then fetches."""
    request = Request("r", 30000, 1024, cached_prfaas_tokens=20000)
    state = prfaas.start(CONFIG)
    scarce = prfaas.route(CONFIG, state, view(0.0), request)
    abundant = prfaas.route(CONFIG, replace(state, regime="abundant"), view(0.0), request)
    assert (scarce.route, scarce.cache) == ("prfaas", "own")
    assert (abundant.route, abundant.cache) == ("pd", "best")


ROLE_PARAMS = {name: param.default for name, param in roles.PARAMS.items()}
SHORT_OF_PREFILL = roles.Roles(
    prefill_share=1.0, decode_share=0.5, prefill_wait_s=30.0, decode_wait_s=0.0, egress_bps=5e9
)


def decide(watched: roles.Roles, t_s: float = 100.0, converting: int = 0, n_p: int = 3) -> int | None:
    """How many prefill instances are wanted after this decision."""
    system = replace(SYSTEM, n_p=n_p, n_d=8 - n_p)
    at = replace(view(t_s), n_p=n_p, n_d=8 - n_p, converting=converting)
    return roles.decide(
        ROLE_PARAMS, watched, at, system=system, lengths=policy_sim.LENGTHS, ceiling_bps=12e9
    )[0].wanted


def test_roles_change_when_model_and_queues_agree() -> None:
    """One step towards the best split; not against the queues, not while converting, not too early."""
    assert decide(SHORT_OF_PREFILL) == 4
    assert decide(replace(SHORT_OF_PREFILL, prefill_share=0.7, prefill_wait_s=1.0)) is None
    assert decide(replace(SHORT_OF_PREFILL, decode_share=0.99)) is None
    old_queue = roles.Roles(prefill_share=1.0, prefill_wait_s=50.0, decode_share=1.0, egress_bps=12e9)
    assert decide(replace(old_queue, decode_wait_s=20.0), n_p=5) is None
    assert decide(replace(old_queue, decode_wait_s=60.0), n_p=5) == 4
    assert decide(SHORT_OF_PREFILL, converting=1) is None
    assert decide(SHORT_OF_PREFILL, t_s=29.0) is None
    assert decide(replace(SHORT_OF_PREFILL, egress_bps=12e9)) is None


def test_a_conversion_is_not_taken_back_soon() -> None:
    """The other direction has to wait `reverse_wait_s`."""
    freed = roles.Roles(
        prefill_share=0.6, decode_share=1.0, decode_wait_s=20.0, egress_bps=12e9, step=1, turned_s=50.0
    )
    assert decide(freed, t_s=100.0, n_p=5) is None
    assert decide(freed, t_s=171.0, n_p=5) == 4


def test_roles_keep_one_instance_of_each_kind() -> None:
    """However decode begs, the last prefill instance stays."""
    begging = roles.Roles(decode_share=1.0, decode_wait_s=500.0, egress_bps=12e9)
    system = replace(SYSTEM, n_p=1, n_d=1, output_tokens=100_000)
    at = replace(view(100.0), n_p=1, n_d=1)
    decided = roles.decide(ROLE_PARAMS, begging, at, system=system, lengths=LENGTHS, ceiling_bps=12e9)
    assert decided[0].wanted is None


def test_kv_on_its_way_is_no_decode_load() -> None:
    """A request whose KV still crosses the link takes no slot."""
    at = replace(
        view(10.0, backlog_bytes=round(SYSTEM.kv_bits(30000) / 8 * 50)), queue_decode=60, n_p=3, n_d=5
    )
    now = replace(capacity(SYSTEM, LENGTHS, 19600, None), mean_long_tokens=30000.0)
    seen = roles.observe(
        ROLE_PARAMS, roles.Roles(since_s=9.75), at, system=SYSTEM, now=now, egress_bps=1e9, elapsed_s=0.25
    )
    assert seen.decode_share == pytest.approx(0.1, abs=0.01)


def test_aimd_decreases_by_a_factor_and_increases_by_a_sum() -> None:
    """Congestion that stays costs a factor once; calm intervals add the same rate each."""
    config = replace(
        CONFIG, params={"congested_intervals": 2.0, "decrease_wait_s": 5.0, "drain_wait_max_s": 1.0}
    )
    state = aimd.start(config)
    ceiling = capacity(SYSTEM, LENGTHS, best_threshold(SYSTEM, LENGTHS, None), None).egress_bps
    states = []
    for each in [*saturated(5e9, 3), *(view(2.75 + i / 4) for i in range(1, 9))]:
        state = aimd.update(config, state, each)
        states.append(state.capacity_bps)
    assert states[0] is None
    assert states[10] == pytest.approx(0.8 * ceiling)
    assert states[11:] == [pytest.approx((0.8 + 0.005 * i) * ceiling) for i in range(1, 9)]


def test_learned_moves_towards_the_cheaper_side_within_bounds() -> None:
    """Dearer answers from the PrfaaS cluster raise the threshold, by no more than the first step allows."""

    def after(prfaas_s: float, pd_s: float) -> int:
        answers = (Answer("prfaas", 25000, prfaas_s, "t"), Answer("pd", 15000, pd_s, "t")) * 4
        return learned.update(
            CONFIG, learned.start(CONFIG), replace(view(50.0), answered=answers)
        ).threshold_tokens

    assert after(5.0, 3.0) == pytest.approx(19600, abs=1)
    assert 19600 < after(6.0, 3.0) < after(1000.0, 3.0) < 19600 * 2
    assert after(3.0, 1000.0) < 19600


def test_learned_looks_only_near_the_threshold_and_at_later_requests() -> None:
    """Answers to far lengths, or to requests placed before the last step, say nothing."""
    far = (Answer("prfaas", 100_000, 50.0, "t"), Answer("pd", 500, 1.0, "t")) * 4
    near = (Answer("prfaas", 25000, 50.0, "t"), Answer("pd", 15000, 1.0, "t")) * 4
    first = learned.update(CONFIG, learned.start(CONFIG), replace(view(50.0), answered=near))
    assert (
        learned.update(CONFIG, first, replace(view(60.0), answered=far)).threshold_tokens
        == first.threshold_tokens
    )
    old = replace(view(60.0), answered=near[:1] * 4 + near[1:2] * 4)
    assert learned.update(CONFIG, first, old).threshold_tokens == first.threshold_tokens


def test_learned_tries_a_side_that_gets_nothing() -> None:
    """A threshold above all lengths would stay for ever; where something went, its answers are waited for."""
    answers = (Answer("pd", 90000, 20.0, "t"),) * 64
    start = learned.start(replace(CONFIG, threshold_tokens=131072))
    at = replace(view(50.0), answered=answers, placed=placed(Request("r", 90000, 1), 1))
    assert learned.update(CONFIG, start, at).threshold_tokens < 100_000
    tried = replace(at, placed=(*at.placed, Placed(Request("r", 90000, 1), "prfaas")))
    assert learned.update(CONFIG, start, tried).threshold_tokens == 131072


@given(works=st.lists(st.floats(0.1, 1e3), min_size=1, max_size=6), budget=st.floats(1, 1e3))
def test_a_fair_share_leaves_the_budget_to_all(works: list[float], budget: float) -> None:
    """Within the budget there is no limit; beyond it somebody is above the share, and the budget is used."""
    share = fair_share.fair_share_s(works, budget)
    if sum(works) <= budget * (1 - 1e-9):
        assert share == inf
    elif sum(works) > budget * (1 + 1e-9):
        assert sum(min(work, share) for work in works) >= budget * (1 - 1e-9)
        assert share >= budget / len(works) * (1 - 1e-9)
        assert max(works) >= share * (1 - 1e-9)


def test_fair_share_keeps_only_who_has_too_much_and_only_where_there_is_room() -> None:
    """The flooding tenant stays in PD while an instance is idle there; the other one leaves, as always."""
    state = fair_share.start(CONFIG)
    busy = replace(view(1.0), tenants=(TenantLoad("a", 20, 100.0), TenantLoad("b", 1, 3.0)), n_p=3)

    def routed(tenant: str, at: View) -> str:
        return fair_share.route(CONFIG, state, at, Request("r", 50000, 1, tenant=tenant)).route

    assert (routed("a", busy), routed("b", busy), routed("new", busy)) == ("pd", "prfaas", "prfaas")
    assert routed("a", replace(busy, queue_pd=3)) == "prfaas"
    assert routed("a", replace(busy, tenants=busy.tenants[:1])) == "prfaas"
    assert routed("a", replace(busy, tenants=(TenantLoad("a", 2, 10.0), TenantLoad("b", 1, 3.0)))) == "prfaas"


def test_compression_needs_a_profile() -> None:
    """Without one there is nothing to compress with."""
    with pytest.raises(ValueError, match="compression profile"):
        compression.start(replace(CONFIG, system=replace(SYSTEM, compression=None)))


def test_compressed_clusters_send_less_and_compute_longer() -> None:
    """The system that the search sees has the compressed size and the time that compressing takes."""
    small = compression.compressed(SYSTEM)
    assert small.kv_bits(30000) == pytest.approx(SYSTEM.kv_bits(30000) / COMPRESSIONS["cachegen"].ratio)
    extra = SYSTEM.model.kv_bytes(32768) / COMPRESSIONS["cachegen"].compress_bytes_per_s
    assert small.prfaas.prefill_s(32768) == pytest.approx(SYSTEM.prfaas.prefill_s(32768) + extra)


def test_only_offloaded_requests_are_compressed_and_only_in_scarcity() -> None:
    """Nothing else crosses the link."""
    state = compression.start(CONFIG)
    scarce = replace(state, regime="scarce")
    long, short = Request("r", 50000, 1), Request("r", 500, 1)
    assert not compression.route(CONFIG, state, view(0.0), long).compress
    assert compression.route(CONFIG, scarce, view(0.0), long).compress
    assert not compression.route(CONFIG, scarce, view(0.0), short).compress


def test_a_long_congestion_is_not_held_against_a_healthy_link() -> None:
    """A minute of pressed intervals, then less demand: within 10 s the link is free, and stays so."""
    congested = [
        view(
            i / 4,
            goodput_bps=5e9,
            acked_bytes=156_000_000,
            backlog_bytes=2 * 10**9,
            retrans_bytes=3 * 10**6,
            rtt_s=0.022,
        )
        for i in range(1, 240)
    ]
    calm = [
        view(60 + i / 4, goodput_bps=6e9, acked_bytes=187_500_000, backlog_bytes=10**6) for i in range(120)
    ]
    free = [run([*congested, *calm[:count]]).capacity_bps is None for count in (40, 60, 80, 100, 120)]
    assert run(congested).capacity_bps is not None
    assert free == [True] * 5
