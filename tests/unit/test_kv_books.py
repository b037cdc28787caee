"""The manager of both clusters' caches: any order of events keeps its books straight."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agents.cache.kv_manager import OTHER, Cluster, Lease
from agents.cache.pool import BLOCK_TOKENS
from agents.kv_layouts import ModelProfile
from tests.unit.small_caches import FULL, HYBRID, STATE_BLOCKS, Chain, manager


def prefix_id(branches: Chain) -> int:
    """An id for the prefix with these branches, each 0 to 2: the same for the same prefix, of any length."""
    number = 1
    for branch in branches:
        number = 3 * number + branch
    return number


CHAINS = st.lists(st.integers(0, 2), max_size=5).map(
    lambda branches: tuple(prefix_id((*branches[:end],)) for end in range(1, len(branches) + 1))
)
ANY_CHAINS = st.one_of(CHAINS, st.lists(st.integers(3, 15), max_size=4).map(tuple))
CLUSTERS = st.sampled_from(sorted(OTHER))
EXTRA_TOKENS = st.integers(-BLOCK_TOKENS, 2 * BLOCK_TOKENS)


class Books(RuleBasedStateMachine):
    """Requests, copies and stores in any order, in caches that are much too small; every chain is true.

    `known`: prefixes that were ever published in a cluster. With linear layers they, and those where a
    request branched off, are all that may be matched; without them what they begin with may be, too.
    """

    chains = CHAINS

    @initialize(model=st.sampled_from([FULL, HYBRID]), prfaas=st.integers(0, 14), pd=st.integers(0, 14))
    def start(self, model: ModelProfile, prfaas: int, pd: int) -> None:
        self.model = model
        self.blocks: dict[Cluster, int] = {"prfaas": prfaas, "pd": pd}
        self.kv = manager(model, prfaas, pd, hot_hits=2)
        self.known: dict[Cluster, set[Chain]] = {"prfaas": set(), "pd": set()}
        self.requests: dict[int, tuple[Cluster, Chain, Lease]] = {}
        self.branches: dict[int, Chain] = {}
        self.coming: dict[int, set[Chain]] = {}
        self.fetches: dict[int, tuple[Cluster, Cluster, Chain]] = {}
        self.next = 0

    def published(self, cluster: Cluster, chain: Chain) -> None:
        """What was computed, or has arrived, can be reused now."""
        ends = [len(chain)] if self.model is HYBRID else range(1, len(chain) + 1)
        self.known[cluster] |= {chain[:end] for end in ends}
        assert self.serves(cluster, chain)

    def may_match(self, cluster: Cluster, chain: Chain) -> bool:
        return chain in self.known[cluster]

    def serves(self, cluster: Cluster, chain: Chain) -> bool:
        return chain == () or self.kv._pools[cluster].serves(chain, len(chain))

    def states(self, cluster: Cluster) -> set[int]:
        """The blocks behind which a cluster has a state."""
        return {block for block, node in self.kv._pools[cluster]._nodes.items() if node.state_used}

    def branching_point(self, cluster: Cluster, full: Chain) -> Chain:
        """The prefix behind which a prompt with these full blocks is to keep a state; () if it is not."""
        held = full[: self.kv._pools[cluster].held(full, len(full))]
        return () if held == full or self.serves(cluster, held) else held

    def owned_blocks(self, cluster: Cluster, full: Chain, tokens: int) -> int:
        """What a request has to take, but for a state where it branches off."""
        held = self.kv._pools[cluster].held(full, len(full))
        rest_tokens = tokens - len(full) * BLOCK_TOKENS
        states = (not self.serves(cluster, full)) + (rest_tokens > 0) if self.model is HYBRID else 0
        return len(full) - held + -(-rest_tokens // BLOCK_TOKENS) + STATE_BLOCKS * states

    def needed_blocks(self, chain: Chain, tokens: int) -> int:
        """For a request, with the state that it may start from."""
        named = min(len(chain), tokens // BLOCK_TOKENS)
        states = 0 if self.model is FULL else 1 + (named > 0) + (tokens > named * BLOCK_TOKENS)
        return -(-tokens // BLOCK_TOKENS) + STATE_BLOCKS * states

    @rule(data=st.data(), cluster=CLUSTERS, extra=EXTRA_TOKENS)
    def begin(self, data: st.DataObject, cluster: Cluster, extra: int) -> None:
        chain = data.draw(self.chains)
        tokens = max(1, len(chain) * BLOCK_TOKENS + extra)
        before, match = self.kv.stats(), self.kv.match(chain, tokens)
        alone = not self.requests and not self.fetches
        full = chain[: tokens // BLOCK_TOKENS]
        branch = self.branching_point(cluster, full)
        owned_blocks = self.owned_blocks(cluster, full, tokens)
        needed_blocks = self.needed_blocks(chain, tokens)
        lease = self.kv.begin(self.next, cluster, chain, tokens)
        self.requests[self.next] = (cluster, full, lease)
        self.coming[self.next] = {
            full[:end]
            for end in (each // BLOCK_TOKENS for each in self.kv.states_to_come(self.next, cluster))
        }
        taken_blocks = self.kv.stats()[cluster].transfer_blocks - before[cluster].transfer_blocks
        if branch and taken_blocks == owned_blocks + STATE_BLOCKS:
            self.branches[self.next] = branch
        elif lease.stored:
            assert taken_blocks == owned_blocks
            assert not branch or not alone or needed_blocks + STATE_BLOCKS > self.blocks[cluster]
        self.next += 1
        matched: dict[Cluster, int] = {"prfaas": match.prfaas_tokens, "pd": match.pd_tokens}
        for where, cached_tokens in matched.items():
            assert cached_tokens < tokens
            assert cached_tokens == 0 or self.may_match(where, chain[: cached_tokens // BLOCK_TOKENS])
        if lease.stored:
            assert lease.cached_tokens == matched[cluster]
        else:
            assert lease.cached_tokens == 0
            assert self.kv.stats()[cluster].transfer_blocks == before[cluster].transfer_blocks
            assert self.kv.stats()[cluster].evicted_blocks == before[cluster].evicted_blocks
            assert not alone or needed_blocks > self.blocks[cluster]

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 50))
    def computed(self, which: int) -> None:
        number = sorted(self.requests)[which % len(self.requests)]
        cluster, chain, lease = self.requests[number]
        before = self.states(cluster)
        self.kv.computed(number)
        named = {full[-1] for full in self.coming[number]}
        assert self.states(cluster) <= before | named, "a state that nobody was asked to leave"
        assert lease.stored or not named
        if lease.stored:
            self.published(cluster, chain)
        if number in self.branches:
            self.known[cluster].add(self.branches[number])
            assert self.serves(cluster, self.branches[number])

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 50))
    def end(self, which: int) -> None:
        """Before or after `computed`: the KV has arrived, or the request failed."""
        number = sorted(self.requests)[which % len(self.requests)]
        del self.requests[number]
        self.kv.end(number)
        before = self.kv.stats()
        self.kv.end(number)
        self.kv.computed(number)
        assert self.kv.stats() == before

    @rule(data=st.data(), cluster=CLUSTERS, extra=EXTRA_TOKENS, state=st.booleans())
    def store(self, data: st.DataObject, cluster: Cluster, extra: int, *, state: bool) -> None:
        chain = data.draw(self.chains)
        tokens = max(1, len(chain) * BLOCK_TOKENS + extra)
        full = chain[: tokens // BLOCK_TOKENS]
        if self.kv.store(cluster, chain, tokens, state=state):
            assert self.kv._pools[cluster].held(full, len(full)) == len(full)
            if state or self.model is FULL:
                self.published(cluster, full)

    @rule(data=st.data(), source=CLUSTERS)
    def fetch_begin(self, data: st.DataObject, source: Cluster) -> None:
        """As a request does: the longest prefix that the source has."""
        chain = data.draw(self.chains)
        match = self.kv.match(chain, len(chain) * BLOCK_TOKENS + 1)
        there, here = match.prfaas_tokens, match.pd_tokens
        if source == "pd":
            there, here = here, there
        fetch = self.kv.fetch_begin(self.next, source, OTHER[source], chain, there)
        if fetch is not None:
            assert fetch.held_tokens <= fetch.tokens == there
            assert fetch.held_tokens >= min(here, there)
            self.fetches[self.next] = (source, OTHER[source], chain[: there // BLOCK_TOKENS])
        self.next += 1

    @rule()
    def fetch_hot(self) -> None:
        """What is hot is copied once."""
        for one in self.kv.hot(2):
            assert self.serves(one.source, one.chain)
            assert not self.serves(one.target, one.chain)
            assert one.tokens == len(one.chain) * BLOCK_TOKENS
            if self.kv.fetch_begin(self.next, one.source, one.target, one.chain, one.tokens) is not None:
                self.fetches[self.next] = (one.source, one.target, one.chain)
                assert one not in self.kv.hot(10)
            self.next += 1

    @precondition(lambda self: self.fetches)
    @rule(which=st.integers(0, 50), done=st.booleans())
    def fetch_end(self, which: int, *, done: bool) -> None:
        number = sorted(self.fetches)[which % len(self.fetches)]
        _, target, chain = self.fetches.pop(number)
        if done:
            self.kv.fetch_landed(number)
            self.kv.fetch_end(number)
            self.published(target, chain)
        else:
            self.kv.fetch_end(number)
        before = self.kv.stats()
        self.kv.fetch_landed(number)
        self.kv.fetch_end(number)
        assert self.kv.stats() == before

    @invariant()
    def books_are_straight(self) -> None:
        for cluster, stats in self.kv.stats().items():
            self.kv._pools[cluster].check()
            assert stats.total_blocks == self.blocks[cluster]
            assert stats.free_blocks + stats.prefix_blocks + stats.transfer_blocks == stats.total_blocks
            assert min(stats.free_blocks, stats.prefix_blocks, stats.transfer_blocks) >= 0

    @invariant()
    def pins_hold(self) -> None:
        """What a request or a copy relies on is there as long as it runs."""
        for cluster, chain, lease in self.requests.values():
            assert self.serves(cluster, chain[: lease.cached_tokens // BLOCK_TOKENS])
            blocks = lease.resident_tokens // BLOCK_TOKENS
            assert self.kv._pools["pd"].held(chain, blocks) == blocks
        for source, _, chain in self.fetches.values():
            assert self.serves(source, chain)

    def teardown(self) -> None:
        """When all has ended every block is free or prefix cache, and the next request can have it."""
        if not hasattr(self, "kv"):
            return
        for number in self.requests:
            self.kv.end(number)
        for number in self.fetches:
            self.kv.fetch_end(number)
        for cluster, blocks in self.blocks.items():
            self.kv._pools[cluster].check()
            assert self.kv.stats()[cluster].transfer_blocks == 0
            tail_blocks = blocks - self.kv._pools[cluster].state_blocks
            if tail_blocks > 0:
                assert self.kv.begin("all", cluster, (), tail_blocks * BLOCK_TOKENS).stored
                assert self.kv.stats()[cluster].transfer_blocks == blocks
                self.kv.end("all")


class WrongBooks(Books):
    """The same when chains contradict each other: what cannot be stored is missing, but nothing breaks."""

    chains = ANY_CHAINS

    def published(self, cluster: Cluster, chain: Chain) -> None:
        """Some of it may be missing."""

    def may_match(self, cluster: Cluster, chain: Chain) -> bool:
        """What came before a contradiction is there, too."""
        return self.serves(cluster, chain)


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
WrongBooks.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase
TestWrongBooks = WrongBooks.TestCase
