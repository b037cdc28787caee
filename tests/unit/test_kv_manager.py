"""The manager of both clusters' caches: what hits, what is pinned, what is hot."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from agents.cache.kv_manager import (
    HOT_SPAN_REQUESTS,
    Cluster,
    Fetch,
    HotPrefix,
    KvManager,
    Lease,
    Match,
)
from agents.cache.pool import BLOCK_TOKENS
from agents.kv_layouts import ModelProfile
from tests.unit.small_caches import FULL, HYBRID, STATE_BLOCKS, Chain, manager

TRACE = "mooncake_conversation_2000.jsonl"


class Row(msgspec.Struct, frozen=True):
    """What a trace in Mooncake's format says of a prompt."""

    input_length: int
    hash_ids: Chain


def serve(one: KvManager, cluster: Cluster, chain: Chain, tokens: int) -> int:
    """One request from its start to its end; returns the tokens that it took from the cache."""
    lease = one.begin("x", cluster, chain, tokens)
    one.computed("x")
    one.end("x")
    return lease.cached_tokens


def conversations(seed: int, requests: int) -> list[Row]:
    """Turns of conversations, some with a system prompt in common, each longer than the one before."""
    dice = random.Random(seed)
    ids: dict[tuple[int, int], int] = {}
    talks: list[list[int]] = []
    rows = []
    for _ in range(requests):
        if not talks or dice.random() < 0.3:
            system_prompt = dice.randrange(4)
            talks.append([system_prompt] * dice.randrange(2000))
        talk = dice.choice(talks)
        talk += [dice.randrange(10**9)] * dice.choice([1, 100, 512, dice.randrange(1, 5000)])
        if dice.random() < 0.2:
            dice.shuffle(talks)
            talks = talks[:5]
        chain, parent = [], -1
        for start in range(0, len(talk), BLOCK_TOKENS):
            content = hash(tuple(talk[start : start + BLOCK_TOKENS]))
            parent = ids.setdefault((parent, content), len(ids))
            chain.append(parent)
        rows.append(Row(len(talk), tuple(chain)))
    return rows


def recorded() -> list[Row]:
    """The head of Mooncake's trace of conversations."""
    path = Path(os.environ.get("TESTBED_TRACES", ""), TRACE)
    if not path.is_file():
        pytest.skip(f"needs {TRACE} in TESTBED_TRACES")
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def counted_hits(rows: list[Row], *, exact: bool) -> int:
    """Tokens that an unlimited cache saves, by the ids.

    `exact`: only up to where a prompt's blocks ended, or what followed was not always the same.
    """
    seen: set[int] = set()
    followers: dict[int, set[int]] = {}
    hits = 0
    for row in rows:
        usable = row.hash_ids[: (row.input_length - 1) // BLOCK_TOKENS]
        hits += BLOCK_TOKENS * max((end for end, one in enumerate(usable, 1) if one in seen), default=0)
        full = row.hash_ids[: row.input_length // BLOCK_TOKENS]
        seen.update(full[-1:] if exact else full)
        for block, follower in pairwise(full):
            followers.setdefault(block, set()).add(follower)
            if len(followers[block]) > 1:
                seen.add(block)
    return hits


@pytest.mark.parametrize("source", ["made up", "recorded"])
@pytest.mark.parametrize(("model", "exact"), [(FULL, False), (HYBRID, True)], ids=["full", "hybrid"])
def test_an_unlimited_cache_hits_what_the_ids_say(source: str, model: ModelProfile, *, exact: bool) -> None:
    """Requests one after another reuse any prefix; with linear layers whole ones, and what prompts share."""
    rows = recorded() if source == "recorded" else conversations(seed=1, requests=500)
    one = manager(model)
    hits = sum(serve(one, "pd", row.hash_ids, row.input_length) for row in rows)
    stats = one.stats()["pd"]
    assert 0 < hits == counted_hits(rows, exact=exact) == stats.hit_tokens
    assert (stats.asked_tokens, stats.evicted_blocks) == (sum(row.input_length for row in rows), 0)


@pytest.mark.parametrize("cluster", ["prfaas", "pd"])
def test_the_third_session_behind_one_system_prompt_hits_it(cluster: Cluster) -> None:
    """No prompt ends where the system prompt does: the second one leaves the state, its cluster serves it."""
    one = manager(HYBRID, hot_hits=1)
    found = [
        serve(one, cluster, (1, 2, session, session + 1), 2000)
        + serve(one, cluster, (1, 2, session, session + 1, session + 2), 2500)
        for session in (10, 20, 30)
    ]
    assert found == [3 * BLOCK_TOKENS, 3 * BLOCK_TOKENS, (2 + 3) * BLOCK_TOKENS]
    assert [(hot.source, hot.chain) for hot in one.hot(1)] == [(cluster, (1, 2))]


def test_each_cluster_is_matched_alone() -> None:
    """What one cluster has computed is a miss in the other, until it has been copied there."""
    one = manager(HYBRID)
    serve(one, "prfaas", (1, 2, 3), 1100)
    assert one.match((1, 2, 3), 1100) == Match(prfaas_tokens=1024, pd_tokens=0)
    assert one.store("pd", (1, 2, 3), 1100)
    assert one.match((1, 2, 3), 1100) == Match(prfaas_tokens=1024, pd_tokens=1024)
    assert not one.store("pd", (1, 2, 3), 511)


def test_blocks_without_a_state_need_not_be_sent() -> None:
    """With linear layers what decode received cannot be computed from, but is there for the next turn."""
    one = manager(HYBRID)
    assert one.store("pd", (1, 2), 1100, state=False)
    assert one.stats()["pd"].prefix_blocks == 2
    assert one.match((1, 2, 3), 1600).pd_tokens == 0
    lease = one.begin("x", "prfaas", (1, 2, 3), 1600)
    assert lease == Lease(cached_tokens=0, resident_tokens=1024, stored=True)
    assert one.store("pd", (1, 2), 1100)
    assert one.match((1, 2, 3), 1600).pd_tokens == 1024


def test_what_decode_has_need_not_be_sent() -> None:
    """Blocks in PD are pinned for a prefill in PrfaaS, whether or not it can start behind them."""
    one = manager(HYBRID, prfaas=0, pd=3 + STATE_BLOCKS)
    serve(one, "pd", (1, 2, 3), 3 * BLOCK_TOKENS)
    lease = one.begin("x", "prfaas", (1, 2, 9), 3 * BLOCK_TOKENS)
    assert lease == Lease(cached_tokens=0, resident_tokens=2 * BLOCK_TOKENS, stored=False)
    assert not one.begin("y", "pd", (), 2 * BLOCK_TOKENS).stored
    one.end("x")
    assert one.begin("z", "pd", (), 2 * BLOCK_TOKENS).stored


def test_a_request_begins_once() -> None:
    """A second begin of the same request, or fetch, is a mistake of the caller; after the end it is not."""
    one = manager(FULL)
    one.begin("x", "pd", (1,), 600)
    with pytest.raises(ValueError, match="x has begun"):
        one.begin("x", "prfaas", (1,), 600)
    one.computed("x")
    assert one.fetch_begin("x", "pd", "prfaas", (1,), 512) == Fetch(held_tokens=0, tokens=512)
    with pytest.raises(ValueError, match="x has begun"):
        one.fetch_begin("x", "pd", "prfaas", (1,), 512)
    one.end("x")
    one.fetch_landed("x")
    one.fetch_end("x")
    assert one.begin("x", "prfaas", (1,), 600).cached_tokens == 512


def test_only_what_the_target_lacks_has_to_cross() -> None:
    """Full-attention blocks that are there stay, though without the state they could not be reused."""
    one = manager(HYBRID)
    serve(one, "prfaas", (1, 2, 3), 3 * BLOCK_TOKENS)
    serve(one, "pd", (1, 2, 4), 3 * BLOCK_TOKENS)
    fetch = one.fetch_begin("f", "prfaas", "pd", (1, 2, 3), 3 * BLOCK_TOKENS)
    assert fetch == Fetch(held_tokens=2 * BLOCK_TOKENS, tokens=3 * BLOCK_TOKENS)
    assert one.stats()["pd"].transfer_blocks == 1 + STATE_BLOCKS
    one.fetch_landed("f")
    one.fetch_end("f")
    assert one.begin("x", "pd", (1, 2, 3), 3 * BLOCK_TOKENS + 1).cached_tokens == 3 * BLOCK_TOKENS


def test_the_source_of_a_copy_is_pinned() -> None:
    """A prefix stays where it is while its bytes move."""
    one = manager(HYBRID, prfaas=1 + STATE_BLOCKS)
    serve(one, "prfaas", (1,), BLOCK_TOKENS)
    assert one.fetch_begin("f", "prfaas", "pd", (1,), BLOCK_TOKENS) is not None
    assert not one.begin("x", "prfaas", (2,), BLOCK_TOKENS).stored
    one.end("x")
    one.fetch_landed("f")
    one.fetch_end("f")
    assert one.begin("x", "prfaas", (2,), BLOCK_TOKENS).stored


def test_a_hot_prefix_is_offered_until_it_is_copied() -> None:
    """Enough matches in one cluster of what the other lacks; not while a copy runs, again after it failed."""
    one = manager(FULL)
    chain = (1, 2, 3)
    for _ in range(8):  # the first one finds nothing
        serve(one, "prfaas", chain, 1600)
    assert one.hot(5) == []
    serve(one, "pd", (), 10)  # is no match
    serve(one, "prfaas", (*chain, 4), 1600)
    hot = HotPrefix("prfaas", "pd", chain, 3 * BLOCK_TOKENS)
    assert one.hot(5) == [hot]
    assert one.hot(0) == []
    assert one.fetch_begin("f", "prfaas", "pd", hot.chain, hot.tokens) is not None
    assert one.hot(5) == []
    one.fetch_end("f")
    assert one.hot(5) == [hot]
    assert one.fetch_begin("f", "prfaas", "pd", hot.chain, hot.tokens) is not None
    one.fetch_landed("f")
    one.fetch_end("f")
    assert one.hot(5) == []
    assert one.match(chain, 1600).pd_tokens == 3 * BLOCK_TOKENS


def test_the_hottest_comes_first_and_blocks_cross_once() -> None:
    """A prefix and its continuation are not copied at the same time."""
    one = manager(FULL, hot_hits=2)
    for chain, times in (((1, 2, 3), 3), ((1, 2), 4), ((7,), 5)):
        assert one.store("prfaas", chain, len(chain) * BLOCK_TOKENS)
        for _ in range(times):
            serve(one, "pd", (*chain, 99), len(chain) * BLOCK_TOKENS + 1)
            one._pools["pd"] = manager(FULL)._pools["pd"]  # which keeps nothing
    assert [(hot.chain, hot.source) for hot in one.hot(5)] == [((7,), "prfaas"), ((1, 2), "prfaas")]


def test_what_does_not_fit_is_not_offered() -> None:
    """A cluster without a cache, or with one that is too small, never gets a copy."""
    one = manager(FULL, pd=0, hot_hits=1)
    serve(one, "prfaas", (1, 2), 1500)
    serve(one, "prfaas", (1, 2), 1500)
    assert one.hot(5) == []
    assert one.fetch_begin("f", "prfaas", "pd", (1, 2), 1024) is None
    assert not one.begin("x", "pd", (1, 2), 1500).stored


def test_a_prefix_cools_down() -> None:
    """Only the latest requests count, and nothing is remembered of the others."""
    one = manager(FULL, hot_hits=2)
    for _ in range(3):
        serve(one, "prfaas", (1,), 600)
    assert len(one.hot(5)) == 1
    for _ in range(HOT_SPAN_REQUESTS):
        serve(one, "prfaas", (), 600)
    assert one.hot(5) == []
    assert one._hits == {}
    assert len(one._span) == HOT_SPAN_REQUESTS
