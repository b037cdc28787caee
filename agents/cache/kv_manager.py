"""The global KV manager (arXiv 2604.15039): what both clusters' pools hold, and what is worth copying.

It lives in the router's process, as Mooncake's master does, and only keeps the books: who moves bytes, and
when, is the caller's business. The life of a request, and of a copy of a prefix into the other cluster:

    begin -> computed -> end         end at any moment is an abort: what is not yet prefix cache is dropped
    fetch_begin -> fetch_landed -> fetch_end     a request that needs the copy begins between the last two
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from agents.cache.pool import BLOCK_TOKENS, Key, Pool
from agents.profiles import ModelProfile

Cluster = Literal["prfaas", "pd"]
Id = int | str

OTHER: Final[dict[Cluster, Cluster]] = {"prfaas": "pd", "pd": "prfaas"}
HOT_SPAN_REQUESTS: Final = 512
"""Over how many of the latest requests the matches of a prefix are counted."""


class Match(msgspec.Struct, frozen=True):
    """Tokens of a prompt that each cluster has in its prefix cache and could start from."""

    prfaas_tokens: int
    pd_tokens: int


class Lease(msgspec.Struct, frozen=True):
    """What a request got when it was placed.

    `cached_tokens`: the prefill starts behind them. `resident_tokens`: their KV is in the PD cluster, where
    decode runs, so that only what follows (and the state) has to be sent there; for a prefill in PD the same
    as `cached_tokens`. `stored`: False where the pool had no room: the request holds nothing there and
    computes everything.
    """

    cached_tokens: int
    resident_tokens: int
    stored: bool


class Fetch(msgspec.Struct, frozen=True):
    """A copy under way: tokens `held_tokens` to `tokens` have to cross, and the state if there is one."""

    held_tokens: int
    tokens: int


class HotPrefix(msgspec.Struct, frozen=True):
    """A prefix worth copying: `chain` are the ids of all its blocks, `tokens` are in them."""

    source: Cluster
    target: Cluster
    chain: tuple[int, ...]
    tokens: int


class CacheStats(msgspec.Struct, frozen=True):
    """One cluster's cache: its blocks now; what requests begun here asked for and found; evictions."""

    total_blocks: int
    free_blocks: int
    prefix_blocks: int
    transfer_blocks: int
    asked_tokens: int
    hit_tokens: int
    evicted_blocks: int


class _Hits(msgspec.Struct):
    """How often one boundary was the longest match, and where it is: behind `blocks` blocks of `chain`."""

    chain: Sequence[int]
    blocks: int
    count: int = 0


class KvManager:
    """A pool for each cluster, of `capacity_bytes` at scale 1 (0: no cache there).

    A chain may be longer than the prompt's full blocks; what is beyond them is not looked at. Prompts have at
    least one token. A prefix is hot from `hot_hits` matches on.

    Raises:
        ValueError: as `Pool`.
    """

    def __init__(
        self, model: ModelProfile, capacity_bytes: Mapping[Cluster, int], *, hot_hits: int = 8
    ) -> None:
        self._pools: dict[Cluster, Pool] = {
            cluster: Pool(model, capacity_bytes[cluster]) for cluster in OTHER
        }
        self._asked_tokens: dict[Cluster, int] = dict.fromkeys(OTHER, 0)
        self._hit_tokens: dict[Cluster, int] = dict.fromkeys(OTHER, 0)
        self._hot_hits = hot_hits
        self._hits: dict[tuple[Cluster, int], _Hits] = {}
        self._span: deque[list[tuple[Cluster, int]]] = deque()
        # copies under way: the target, and the first block that crosses
        self._fetches: dict[Id, tuple[Cluster, int]] = {}

    def match(self, chain: Sequence[int], tokens: int) -> Match:
        """What a prompt of `tokens` tokens could reuse; does not count as a use."""
        return Match(
            prfaas_tokens=BLOCK_TOKENS * self._pools["prfaas"].match(chain, tokens),
            pd_tokens=BLOCK_TOKENS * self._pools["pd"].match(chain, tokens),
        )

    def begin(self, request: Id, cluster: Cluster, chain: Sequence[int], tokens: int) -> Lease:
        """A request is placed: pins what it reuses, takes blocks for the rest. Ends with `end` in any case.

        With linear layers it will leave a state at its last full block and, if there is room, another one
        where it branches off from what this cluster has and cannot start from (`Pool.reserve`).

        Raises:
            ValueError: this request has begun and not ended.
        """
        key = ("request", request)
        if any(pool.has(key) for pool in self._pools.values()):
            raise ValueError(f"request {request} has begun already")
        self._count_matches(chain, tokens)
        cached_blocks = self._pools[cluster].reserve(key, chain, tokens, branch=True)
        cached_tokens = BLOCK_TOKENS * (cached_blocks or 0)
        resident_tokens = cached_tokens
        if cluster != "pd":
            resident_tokens = BLOCK_TOKENS * self._pools["pd"].pin(key, chain, tokens // BLOCK_TOKENS)
        self._asked_tokens[cluster] += tokens
        self._hit_tokens[cluster] += cached_tokens
        return Lease(cached_tokens, resident_tokens, stored=cached_blocks is not None)

    def states_to_come(self, request: Id, cluster: Cluster) -> tuple[int, ...]:
        """Behind how many of its prompt's first tokens a request that has begun leaves states."""
        blocks = self._pools[cluster].states_to_come(("request", request))
        return tuple(BLOCK_TOKENS * each for each in blocks)

    def computed(self, request: Id) -> None:
        """Its prefill is done: full blocks and the states that it left become prefix cache, for all to match.

        The tail and the final state stay transfer cache. Nothing happens for a request that holds nothing.
        """
        for pool in self._pools.values():
            pool.publish(("request", request))

    def end(self, request: Id) -> None:
        """Its KV has arrived, or it failed: drops transfer cache and pins. May come more than once."""
        for pool in self._pools.values():
            pool.release(("request", request))

    def store(self, cluster: Cluster, chain: Sequence[int], tokens: int, *, state: bool = True) -> bool:
        """The full blocks of a prompt of `tokens` tokens came to `cluster`: they become prefix cache there.

        `state` says whether the state at the last full block came, too. The final state that follows every
        prefill is another one, unless the prompt ends with a block. With linear layers and no state nothing
        can be computed from these blocks, but they need not be sent again. False where there is no full
        block or no room.
        """
        pool, blocks = self._pools[cluster], min(len(chain), tokens // BLOCK_TOKENS)
        key: Key = ("store", 0)
        if blocks == 0 or pool.reserve(key, chain, blocks * BLOCK_TOKENS, snapshot=state) is None:
            return False
        pool.publish(key)
        pool.release(key)
        return pool.held(chain, blocks) == blocks

    def fetch_begin(
        self, fetch: Id, source: Cluster, target: Cluster, chain: Sequence[int], tokens: int
    ) -> Fetch | None:
        """Copy a prefix of `tokens` tokens, full blocks: pins it in `source`, takes blocks in `target`.

        For a request, `tokens` is what `match` says of the source. None, and nothing is held, where the
        source cannot serve just that prefix, the target can already, or the target has no room.

        Raises:
            ValueError: this fetch has begun and not ended.
        """
        if fetch in self._fetches:
            raise ValueError(f"fetch {fetch} has begun already")
        blocks = min(len(chain), tokens // BLOCK_TOKENS)
        first = self._first_to_cross(source, target, chain, blocks)
        if first is None:
            return None
        key = ("fetch", fetch)
        held_blocks = self._pools[target].held(chain, blocks)
        if self._pools[target].reserve(key, chain, blocks * BLOCK_TOKENS) is None:
            return None
        self._pools[source].pin(key, chain, blocks)
        self._fetches[fetch] = (target, first)
        return Fetch(BLOCK_TOKENS * held_blocks, BLOCK_TOKENS * blocks)

    def fetch_landed(self, fetch: Id) -> None:
        """All of it arrived: it becomes prefix cache, pinned until `fetch_end`.

        A request that waited for it begins in between, so that nobody takes its room. Nothing happens for a
        fetch that has ended.
        """
        for pool in self._pools.values():
            pool.publish(("fetch", fetch))

    def fetch_end(self, fetch: Id) -> None:
        """The pins go, and what arrived if not all of it did. May come more than once."""
        for pool in self._pools.values():
            pool.release(("fetch", fetch))
        self._fetches.pop(fetch, None)

    def hot(self, limit: int) -> list[HotPrefix]:
        """Up to `limit` prefixes that one cluster matches often and the other cannot serve, hottest first.

        Each is worth one `fetch_begin`. A prefix whose blocks are crossing, or will with one earlier in the
        list, is left out until they have.
        """
        crossing = set(self._fetches.values())
        found: list[HotPrefix] = []
        often = [(-hits.count, key) for key, hits in self._hits.items() if hits.count >= self._hot_hits]
        for _, key in sorted(often):
            if len(found) >= limit:
                break
            source, hits = key[0], self._hits[key]
            target = OTHER[source]
            first = self._first_to_cross(source, target, hits.chain, hits.blocks)
            if first is not None and (target, first) not in crossing:
                crossing.add((target, first))
                chain = tuple(hits.chain[: hits.blocks])
                found.append(HotPrefix(source, target, chain, BLOCK_TOKENS * hits.blocks))
        return found

    def stats(self) -> dict[Cluster, CacheStats]:
        """Both caches now, for the metrics and the record."""
        return {
            cluster: CacheStats(
                total_blocks=pool.total_blocks,
                free_blocks=pool.free_blocks,
                prefix_blocks=pool.prefix_blocks,
                transfer_blocks=pool.transfer_blocks,
                asked_tokens=self._asked_tokens[cluster],
                hit_tokens=self._hit_tokens[cluster],
                evicted_blocks=pool.evicted_blocks,
            )
            for cluster, pool in self._pools.items()
        }

    def _first_to_cross(
        self, source: Cluster, target: Cluster, chain: Sequence[int], blocks: int
    ) -> int | None:
        """The first block that the target lacks (the last one, if only its state); None: nothing to copy.

        In a tree of prefixes two copies have blocks in common exactly when this is the same.
        """
        pool = self._pools[target]
        if not 0 < blocks <= pool.total_blocks - pool.state_blocks:
            return None
        if pool.serves(chain, blocks) or not self._pools[source].serves(chain, blocks):
            return None
        return chain[min(pool.held(chain, blocks), blocks - 1)]

    def _count_matches(self, chain: Sequence[int], tokens: int) -> None:
        """Note which boundary each cluster matches, and forget the request that falls out of the span."""
        keys: list[tuple[Cluster, int]] = []
        for cluster, pool in self._pools.items():
            blocks = pool.match(chain, tokens)
            if blocks:
                keys.append((cluster, chain[blocks - 1]))
                self._hits.setdefault(keys[-1], _Hits(chain, blocks)).count += 1
        self._span.append(keys)
        if len(self._span) > HOT_SPAN_REQUESTS:
            for key in self._span.popleft():
                self._hits[key].count -= 1
                if not self._hits[key].count:
                    del self._hits[key]
