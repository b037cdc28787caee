"""One pool: what fits, what can be reused, what goes first."""

from __future__ import annotations

import pytest

from agents.cache.pool import BLOCK_TOKENS, HEAP_SLACK, Pool
from agents.kv_layouts import ModelProfile
from agents.profiles import MODELS
from tests.unit.small_caches import FULL, HYBRID, STATE_BLOCKS

SIZES = ("free_blocks", "prefix_blocks", "transfer_blocks")


def pool(model: ModelProfile, blocks: int) -> Pool:
    return Pool(model, blocks * BLOCK_TOKENS)


def sizes(one: Pool) -> tuple[int, ...]:
    """Free, prefix cache, transfer cache."""
    one.check()
    return tuple(getattr(one, name) for name in SIZES)


def serve(
    one: Pool, chain: tuple[int, ...], tokens: int | None = None, *, branch: bool = False
) -> int | None:
    """One request from its start to its end; by default one token longer than its chain."""
    key = ("request", 0)
    tokens = len(chain) * BLOCK_TOKENS + 1 if tokens is None else tokens
    cached = one.reserve(key, chain, tokens, branch=branch)
    one.publish(key)
    one.release(key)
    one.check()
    return cached


def longest(one: Pool, *chain: int) -> int:
    """The longest match of a prompt that goes on behind the chain."""
    return one.match(chain, len(chain) * BLOCK_TOKENS + 1)


def test_blocks_and_states_have_the_models_size() -> None:
    """The internal 1T model: 17,280 bytes a token, and 173.9 MiB of states in 21 blocks (table 5)."""
    one = Pool(MODELS["internal_1t"], 10**12)
    assert one.total_blocks == 10**12 // (512 * 17280)
    assert one.state_blocks == 21


def test_a_model_without_kv_for_each_token_is_refused() -> None:
    """Without full-attention layers there is nothing that a block could hold."""
    with pytest.raises(ValueError, match="linear: no layer keeps KV"):
        Pool(ModelProfile("linear", "made up", HYBRID.layers[1:]), 10**6)
    with pytest.raises(ValueError, match="-1 bytes"):
        Pool(FULL, -1)


def test_full_attention_reuses_any_partial_prefix() -> None:
    """Whatever the prompts have in common is matched, and stored once."""
    one = pool(FULL, 10)
    assert serve(one, (1, 2, 3)) == 0
    assert (longest(one, 1, 2, 9), longest(one, 1, 2, 3, 4), longest(one, 2, 3)) == (2, 3, 0)
    assert serve(one, (1, 2, 9)) == 2
    assert sizes(one) == (6, 4, 0)


def test_a_state_is_reused_at_exactly_its_length() -> None:
    """With linear layers half of a cached prompt is worth nothing, though its blocks are there."""
    one = pool(HYBRID, 20)
    serve(one, (1, 2, 3))
    assert (longest(one, 1, 2), longest(one, 1, 2, 9), longest(one, 1, 2, 3, 4)) == (0, 0, 3)
    assert serve(one, (1, 2)) == 0
    assert (longest(one, 1, 2, 9), longest(one, 1, 2, 3, 4)) == (2, 3)
    assert sizes(one) == (20 - 3 - 2 * STATE_BLOCKS, 3 + 2 * STATE_BLOCKS, 0)


def test_the_third_prompt_behind_one_prefix_reuses_it() -> None:
    """The second one computes the common prefix again, and leaves a state where it branches off."""
    one = pool(HYBRID, 40)
    assert serve(one, (1, 2, 3, 4), branch=True) == 0
    key = ("request", 1)
    assert one.reserve(key, (1, 2, 5, 6), 4 * BLOCK_TOKENS, branch=True) == 0
    assert (one.transfer_blocks, longest(one, 1, 2)) == (2 + 2 * STATE_BLOCKS, 0)
    one.publish(key)
    assert sizes(one) == (40 - 6 - 3 * STATE_BLOCKS, 6 + 3 * STATE_BLOCKS, 0)
    one.release(key)
    assert serve(one, (1, 2, 7), branch=True) == 2
    assert (longest(one, 1, 8), longest(one, 1, 2, 3), longest(one, 1, 2, 5, 6)) == (0, 2, 4)
    assert sizes(one) == (40 - 7 - 4 * STATE_BLOCKS, 7 + 4 * STATE_BLOCKS, 0)


@pytest.mark.parametrize(
    ("model", "chain", "branch", "owned_blocks"),
    [
        (HYBRID, (1, 2, 9), True, 1 + 2 * STATE_BLOCKS),
        (HYBRID, (1, 2, 9), False, 1 + STATE_BLOCKS),
        (HYBRID, (1, 2), True, STATE_BLOCKS),
        (HYBRID, (1, 2, 3, 9), True, 1 + STATE_BLOCKS),
        (HYBRID, (8, 9), True, 2 + STATE_BLOCKS),
        (FULL, (1, 2, 9), True, 1),
    ],
    ids=["branches off", "receives", "ends there", "finds a state", "finds nothing", "needs no states"],
)
def test_what_needs_no_state_at_a_branching_point(
    model: ModelProfile, chain: tuple[int, ...], owned_blocks: int, *, branch: bool
) -> None:
    """Who computes through the end of what is there, and has none there yet and will have none anyway."""
    one = pool(model, 20)
    serve(one, (1, 2, 3), 3 * BLOCK_TOKENS)
    one.reserve(("request", 1), chain, len(chain) * BLOCK_TOKENS, branch=branch)
    assert one.transfer_blocks == owned_blocks
    one.check()


@pytest.mark.parametrize("spare_blocks", [-1, 0, STATE_BLOCKS - 1, STATE_BLOCKS])
def test_a_state_at_a_branching_point_is_kept_if_there_is_room(spare_blocks: int) -> None:
    """It fails no request: one block short of it, it is left out."""
    one = pool(HYBRID, 3 + STATE_BLOCKS + spare_blocks)
    serve(one, (1, 2), 2 * BLOCK_TOKENS)
    cached = serve(one, (1, 3, 4), 3 * BLOCK_TOKENS, branch=True)
    assert cached == (None if spare_blocks < 0 else 0)
    assert longest(one, 1) == (spare_blocks == STATE_BLOCKS)
    assert longest(one, 1, 3, 4) == (0 if spare_blocks < 0 else 3)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 0), (512, 0), (513, 1), (1024, 1), (1025, 2), (9999, 2)])
def test_a_request_computes_at_least_one_token(tokens: int, blocks: int) -> None:
    """The last token of a prompt is never taken from the cache, and no block that is not full."""
    one = pool(FULL, 10)
    serve(one, (1, 2))
    assert one.match((1, 2), tokens) == blocks


def test_a_request_owns_what_it_computes_until_its_end() -> None:
    """Full blocks, snapshot, tail and final state are transfer cache; publishing leaves the last two."""
    one = pool(HYBRID, 20)
    assert one.reserve(("request", 1), (1, 2, 3), 2 * BLOCK_TOKENS + 100) == 0
    assert sizes(one) == (20 - 3 - 2 * STATE_BLOCKS, 0, 3 + 2 * STATE_BLOCKS)
    assert longest(one, 1, 2) == 0
    one.publish(("request", 1))
    assert sizes(one) == (20 - 3 - 2 * STATE_BLOCKS, 2 + STATE_BLOCKS, 1 + STATE_BLOCKS)
    assert longest(one, 1, 2) == 2
    one.release(("request", 1))
    assert sizes(one) == (20 - 2 - STATE_BLOCKS, 2 + STATE_BLOCKS, 0)


def test_a_prompt_that_ends_with_a_block_needs_one_state() -> None:
    """Its final state is the snapshot at its last full block."""
    one = pool(HYBRID, 2 + STATE_BLOCKS)
    assert serve(one, (1, 2), 2 * BLOCK_TOKENS) == 0
    assert sizes(one) == (0, 2 + STATE_BLOCKS, 0)


def test_blocks_without_an_id_are_transfer_cache() -> None:
    """A prompt longer than its chain takes room for all of its KV, and leaves what has a name."""
    one = pool(FULL, 10)
    assert one.reserve(("request", 1), (1, 2), 5 * BLOCK_TOKENS) == 0
    one.publish(("request", 1))
    assert sizes(one) == (5, 2, 3)
    one.release(("request", 1))
    assert sizes(one) == (8, 2, 0)


def test_the_least_recently_used_leaf_goes_first() -> None:
    """Prefixes are eaten from their ends, those of longest ago first; a match alone is no use."""
    one = pool(FULL, 6)
    serve(one, (1, 2, 3), 3 * BLOCK_TOKENS)
    serve(one, (1, 5), 2 * BLOCK_TOKENS)
    serve(one, (7, 8), 2 * BLOCK_TOKENS)
    assert serve(one, (1, 5), 2 * BLOCK_TOKENS) == 1
    longest(one, 1, 2, 3)
    assert serve(one, (20, 21, 22), 3 * BLOCK_TOKENS) == 0
    assert [longest(one, *chain) for chain in ((1, 2, 3), (1, 5), (7, 8), (20, 21, 22))] == [1, 2, 1, 3]
    assert one.evicted_blocks == 3


def test_an_old_state_goes_before_the_blocks_under_it() -> None:
    """The snapshot of an earlier turn is evicted while a later turn keeps its blocks in use."""
    one = pool(HYBRID, 5 + 2 * STATE_BLOCKS)
    serve(one, (1, 2), 2 * BLOCK_TOKENS)
    serve(one, (1, 2, 3, 4), 4 * BLOCK_TOKENS)
    assert (longest(one, 1, 2), longest(one, 1, 2, 3, 4)) == (2, 4)
    assert serve(one, (), 1) == 0  # a tail and a state: one block was free
    assert (longest(one, 1, 2), longest(one, 1, 2, 3, 4)) == (0, 4)
    assert one.evicted_blocks == STATE_BLOCKS


def test_a_leaf_goes_with_its_state() -> None:
    """Nothing points at blocks that are gone: the whole group is freed at once."""
    one = pool(HYBRID, 6 + 2 * STATE_BLOCKS)
    serve(one, (1, 2), 2 * BLOCK_TOKENS)
    assert serve(one, (5, 6, 7, 8), 4 * BLOCK_TOKENS) == 0
    assert sizes(one) == (0, 6 + 2 * STATE_BLOCKS, 0)
    assert serve(one, (5, 9), 2 * BLOCK_TOKENS) == 0
    assert (longest(one, 1, 2), one.held((1, 2), 2)) == (0, 1)
    assert (longest(one, 5, 6, 7, 8), longest(one, 5, 9)) == (4, 2)


def test_a_request_without_room_holds_nothing() -> None:
    """What is pinned or owned stays, nothing is evicted in vain, and the request is told."""
    one = pool(FULL, 6)
    serve(one, (1, 2), 2 * BLOCK_TOKENS)
    assert one.reserve(("request", 1), (3, 4, 5), 3 * BLOCK_TOKENS) == 0
    assert one.reserve(("request", 2), (1,), BLOCK_TOKENS + 1) == 1
    before = sizes(one)
    assert before == (0, 2, 4)
    assert one.reserve(("request", 3), (8, 9), 2 * BLOCK_TOKENS) is None
    assert not one.has(("request", 3))
    assert (sizes(one), one.evicted_blocks, longest(one, 1, 2)) == (before, 0, 2)
    assert one.reserve(("request", 3), (8,), BLOCK_TOKENS) == 0
    assert (longest(one, 1, 2), one.evicted_blocks) == (1, 1)


def test_the_states_of_a_request_are_pinned() -> None:
    """The one that it starts from, and the one at its end, which takes no room if it was there already."""
    one = pool(HYBRID, 5 + 2 * STATE_BLOCKS)  # one is free: a state and its block need two more
    for blocks in (2, 4):
        serve(one, (1, 2, 3, 4)[:blocks], blocks * BLOCK_TOKENS)
    assert one.reserve(("request", 1), (1, 2, 3, 4), 4 * BLOCK_TOKENS) == 2
    assert one.transfer_blocks == 0
    assert one.reserve(("copy", 1), (7,), BLOCK_TOKENS) is None
    one.release(("request", 1))
    assert one.reserve(("copy", 1), (7,), BLOCK_TOKENS) == 0


def test_a_request_does_not_evict_what_it_starts_from() -> None:
    """Its prefix is pinned before room is made for the rest, even if nothing was used longer ago."""
    one = pool(HYBRID, 3 + 2 * STATE_BLOCKS)
    serve(one, (1, 2), 2 * BLOCK_TOKENS)
    serve(one, (7,), BLOCK_TOKENS)
    assert serve(one, (1, 2, 3), 3 * BLOCK_TOKENS) == 2
    assert (longest(one, 1, 2), longest(one, 7)) == (2, 0)


def test_a_pin_counts_as_a_use() -> None:
    """What was copied from lately stays longer than what was computed before."""
    one = pool(FULL, 2)
    serve(one, (1,), BLOCK_TOKENS)
    serve(one, (2,), BLOCK_TOKENS)
    assert one.pin(("copy", 1), (1,), 1) == 1
    one.release(("copy", 1))
    serve(one, (3,), BLOCK_TOKENS)
    assert (longest(one, 1), longest(one, 2)) == (1, 0)


def test_the_second_of_two_equal_blocks_is_dropped() -> None:
    """Two requests that compute the same at once both own it; when both have published there is one."""
    one = pool(HYBRID, 20)
    for number in (1, 2):
        assert one.reserve(("request", number), (1, 2), 2 * BLOCK_TOKENS) == 0
    assert sizes(one) == (20 - 2 * (2 + STATE_BLOCKS), 0, 2 * (2 + STATE_BLOCKS))
    for number in (1, 2):
        one.publish(("request", number))
    assert sizes(one) == (20 - 2 - STATE_BLOCKS, 2 + STATE_BLOCKS, 0)
    one.release(("request", 1))
    assert one.reserve(("request", 3), (), 17 * BLOCK_TOKENS) is None  # the other one still pins it


def test_the_second_of_two_equal_states_is_dropped() -> None:
    """Two requests that branch off at once both own a state; one is left, and pinned by both."""
    one = pool(HYBRID, 20)
    serve(one, (1, 2), 2 * BLOCK_TOKENS)
    for number in (3, 4):
        assert one.reserve(("request", number), (1, number), 2 * BLOCK_TOKENS, branch=True) == 0
    assert sizes(one) == (20 - 4 - 5 * STATE_BLOCKS, 2 + STATE_BLOCKS, 2 + 4 * STATE_BLOCKS)
    for number in (3, 4):
        one.publish(("request", number))
    assert sizes(one) == (20 - 4 - 4 * STATE_BLOCKS, 4 + 4 * STATE_BLOCKS, 0)
    one.release(("request", 3))
    assert serve(one, (), (20 - 2 - 3 * STATE_BLOCKS) * BLOCK_TOKENS) == 0  # all but 1, 4 and their states
    assert (longest(one, 1), longest(one, 1, 3), longest(one, 1, 4)) == (1, 1, 2)


def test_a_branching_point_in_front_of_a_contradiction_has_its_state() -> None:
    """All that is in front of it is true; what is behind it is not stored."""
    one = pool(HYBRID, 30)
    serve(one, (1, 2, 3))
    serve(one, (5, 6))
    assert serve(one, (1, 2, 6), branch=True) == 0
    assert (longest(one, 1, 2, 6), one.held((1, 2, 6), 3)) == (2, 2)
    assert sizes(one) == (30 - 5 - 3 * STATE_BLOCKS, 5 + 3 * STATE_BLOCKS, 0)


def test_a_contradiction_is_a_miss_from_there_on() -> None:
    """An id behind another block than before, or twice in a chain, is neither matched nor stored."""
    one = pool(HYBRID, 30)
    serve(one, (1, 2, 3))
    assert longest(one, 1, 3) == longest(one, 2, 3) == 0
    assert serve(one, (7, 2, 3)) == 0
    assert (longest(one, 7), longest(one, 7, 2, 3), longest(one, 1, 2, 3)) == (0, 0, 3)
    assert one.reserve(("request", 1), (8, 9, 8), 3 * BLOCK_TOKENS) == 0
    one.publish(("request", 1))
    assert (longest(one, 8, 9, 8), one.held((8, 9, 8), 3)) == (0, 2)
    one.check()
    assert one.transfer_blocks == 1 + STATE_BLOCKS  # still being sent
    one.release(("request", 1))
    assert one.transfer_blocks == 0


def test_a_lease_ends_once() -> None:
    """Publishing or releasing again, or what nobody leased, changes nothing."""
    one = pool(HYBRID, 20)
    serve(one, (1, 2))
    before = sizes(one)
    one.publish(("request", 0))
    one.release(("request", 0))
    assert sizes(one) == before


def test_what_remembers_the_order_of_use_stays_small() -> None:
    """A prefix that is used again and again does not fill memory with its past."""
    one = pool(HYBRID, 20)
    for _ in range(5 * HEAP_SLACK):
        serve(one, (1, 2))
    assert len(one._evictable) <= 2 * (2 + 1) + HEAP_SLACK
