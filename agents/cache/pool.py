"""One cluster's pool of equal KV blocks, after the paper's hybrid prefix cache pool (arXiv 2604.15039).

A prompt is a *chain* of block ids, one for each 512 tokens; an id names the whole prefix up to and with its
block, as in Mooncake's traces, so that all prefixes form a tree. Two kinds of things are kept:

- full-attention KV: one block for each full block of the prompt, shared by all prefixes that go through it;
- for a model with linear or window layers, snapshots of their state, each a group of blocks. A snapshot
  stands at the end of one prefix and serves exactly that length.

A snapshot is large, so it is kept only where it is likely to be used again, as in Marconi (MLSys 2025, arXiv
2411.19379): at the last full block of a prompt, where the next turn of a conversation goes on, and where a
prompt branches off from what is here. Without the latter, prompts that have just a system prompt in common
would never reuse it, for none of them ends there.

Every block is free, or prefix cache (it stays until it is evicted), or transfer cache (it belongs to a
request or a copy until that ends). A *lease* is what one request or copy holds: it pins nodes of the tree and
owns transfer cache. What is pinned is never evicted.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from agents.profiles import ModelProfile

BLOCK_TOKENS: Final = 512
"""Tokens in a block, as in Mooncake's traces."""
HEAP_SLACK: Final = 64

Key = tuple[str, int | str]
"""Whose a lease is: what kind of thing holds it, and its number or name."""


class _Node:
    """A block of prefix cache, and the state at the end of its prefix if there is one.

    `pins` counts the leases whose path goes through here, so a node has at least as many as each of its
    children. `used` and `state_used` are turns of the pool's clock; `state_used` is 0 without a state.
    """

    __slots__ = ("children", "id", "parent", "pins", "state_pins", "state_used", "used")

    def __init__(self, block: int, parent: "_Node | None") -> None:
        self.id = block
        self.parent = parent
        self.children = 0
        self.pins = 0
        self.used = 0
        self.state_used = 0
        self.state_pins = 0


class _Lease:
    """What one request or copy holds.

    `end`: the last node of its path, all of which it pins. `states`: the nodes whose state it pins.
    `missing`: ids of the full blocks that it computes or receives; it owns a block for each of them,
    `branch_blocks` for the state in front of the first one, at `end`, `snapshot_blocks` for the state behind
    the last one, and `rest_blocks` that will never be prefix cache.
    """

    __slots__ = ("branch_blocks", "end", "missing", "rest_blocks", "snapshot_blocks", "states")

    def __init__(self, path: list[_Node], states: list[_Node]) -> None:
        self.end = path[-1] if path else None
        self.states = states
        self.missing: Sequence[int] = ()
        self.branch_blocks = 0
        self.snapshot_blocks = 0
        self.rest_blocks = 0

    @property
    def owned_blocks(self) -> int:
        return len(self.missing) + self.branch_blocks + self.snapshot_blocks + self.rest_blocks


class Pool:
    """The blocks of one cluster; every method is deterministic and takes time linear in its chain.

    Least recently used goes first, of leaves of the tree (with their state) and of states, unless pinned. An
    id that turns up behind another block than the one it was stored behind contradicts its chain: whatever
    follows is a miss, and is not stored.

    Raises:
        ValueError: the model's KV does not grow with the prompt, so that there are no blocks to keep, or
            `capacity_bytes` is negative.
    """

    def __init__(self, model: ModelProfile, capacity_bytes: int) -> None:
        self.block_bytes = BLOCK_TOKENS * model.bytes_per_token
        if self.block_bytes <= 0:
            raise ValueError(f"{model.name}: no layer keeps KV for each token, so there are no prefix blocks")
        if capacity_bytes < 0:
            raise ValueError(f"a prefix cache of {capacity_bytes} bytes")
        self.total_blocks = capacity_bytes // self.block_bytes
        self.state_blocks = -(-model.fixed_bytes // self.block_bytes)
        self.transfer_blocks = 0
        self.evicted_blocks = 0
        self._nodes: dict[int, _Node] = {}
        self._states = 0
        self._locked_blocks = 0
        self._leases: dict[Key, _Lease] = {}
        self._turn = 0
        # (when last used, 0 for a leaf or 1 for a state, id): all that may be evicted, and stale entries
        self._evictable: list[tuple[int, int, int]] = []

    @property
    def prefix_blocks(self) -> int:
        """Blocks of prefix cache, states included."""
        return len(self._nodes) + self._states * self.state_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self.total_blocks - self.prefix_blocks - self.transfer_blocks

    def match(self, chain: Sequence[int], tokens: int) -> int:
        """Blocks of cache that a prompt of `tokens` tokens can start from; nothing is touched.

        At least one token is left to compute. With states it is the longest boundary that has one.
        """
        path = self._path(chain, max(tokens - 1, 0) // BLOCK_TOKENS)
        return self._reusable(path)

    def held(self, chain: Sequence[int], blocks: int) -> int:
        """How many of the chain's first `blocks` blocks are here, whether or not there is a state."""
        return len(self._path(chain, blocks))

    def serves(self, chain: Sequence[int], blocks: int) -> bool:
        """Whether just the chain's first `blocks` blocks, at least one, can be reused (with their state)."""
        path = self._path(chain, blocks)
        return len(path) == blocks and self._reusable(path) == blocks

    def has(self, key: Key) -> bool:
        """Whether this key has a lease here."""
        return key in self._leases

    def reserve(
        self, key: Key, chain: Sequence[int], tokens: int, *, snapshot: bool = True, branch: bool = False
    ) -> int | None:
        """Lease everything that a prompt of `tokens` tokens needs; returns the blocks that it can start from.

        Whatever is cached of it is pinned. The rest is taken as transfer cache: its other full blocks, the
        tail that fills no block or has no id, the state at the last full block, and the state behind the
        tail. None, and nothing is held or evicted, where there is no room beside what it would pin; `key`
        must have no lease. Without `snapshot` there will be no state at the last full block.

        `branch`: the owner computes all that it cannot start from. Where more blocks of the prompt are here
        than that, but not its last full block, it comes through the end of what is here anyway and keeps the
        state there, too: one more group of transfer cache. If there is room just for the rest, it does not.
        """
        blocks = min(len(chain), tokens // BLOCK_TOKENS)
        path = self._path(chain, blocks)
        cached = self._reusable(path[: max(tokens - 1, 0) // BLOCK_TOKENS])
        ends = {cached, blocks} - {0} if self.state_blocks else set()
        states = [path[end - 1] for end in sorted(ends) if end <= len(path) and path[end - 1].state_used]
        lease = _Lease(path, states)
        lease.missing = tuple(chain[len(path) : blocks])
        if snapshot and blocks and not (len(path) == blocks and path[-1].state_used):
            lease.snapshot_blocks = self.state_blocks
        tail_blocks = -(-(tokens - blocks * BLOCK_TOKENS) // BLOCK_TOKENS)
        lease.rest_blocks = tail_blocks + self.state_blocks if tail_blocks else 0
        self._hold(key, lease)
        room_blocks = self.free_blocks + self.prefix_blocks - self._locked_blocks
        if lease.owned_blocks > room_blocks:
            lease.missing, lease.snapshot_blocks, lease.rest_blocks = (), 0, 0
            self.release(key)
            return None
        branches = branch and 0 < len(path) < blocks and not path[-1].state_used
        if branches and lease.owned_blocks + self.state_blocks <= room_blocks:
            lease.branch_blocks = self.state_blocks
        self._evict(lease.owned_blocks)
        self.transfer_blocks += lease.owned_blocks
        self._touch(lease, states)
        return cached

    def states_to_come(self, key: Key) -> tuple[int, ...]:
        """Behind how many blocks of its prompt the owner of a lease leaves a state; none without a lease."""
        lease = self._leases.get(key)
        if lease is None:
            return ()
        held = sum(1 for _ in _up(lease.end))
        branch = (held,) if lease.branch_blocks else ()
        return (*branch, held + len(lease.missing)) if lease.snapshot_blocks else branch

    def pin(self, key: Key, chain: Sequence[int], blocks: int) -> int:
        """Lease what is here of the chain's first blocks, and the state at its end; returns how many."""
        path = self._path(chain, blocks)
        lease = _Lease(path, [path[-1]] if path and path[-1].state_used else [])
        self._hold(key, lease)
        self._touch(lease, lease.states)
        return len(path)

    def publish(self, key: Key) -> None:
        """What the lease's owner has computed, or received, becomes prefix cache, pinned until the release.

        A block, or a state, that somebody else published in the meantime is dropped. What a contradiction
        keeps out of the tree stays transfer cache; it never concerns the state at a branching point, for all
        of its prefix was pinned. Nothing happens without a lease, or the second time.
        """
        lease = self._leases.get(key)
        if lease is None or not (lease.missing or lease.snapshot_blocks):
            return
        self.transfer_blocks -= lease.owned_blocks
        states = [lease.end] if lease.branch_blocks and lease.end is not None else []
        entered = 0
        for block in lease.missing:
            node = self._nodes.get(block)
            if node is None:
                node = self._nodes[block] = _Node(block, lease.end)
                if lease.end is not None:
                    lease.end.children += 1
            elif node.parent is not lease.end:
                break
            self._locked_blocks += not node.pins
            node.pins += 1
            lease.end = node
            entered += 1
        lease.rest_blocks += len(lease.missing) - entered
        if lease.snapshot_blocks and lease.end is not None and entered == len(lease.missing):
            states.append(lease.end)
        else:
            lease.rest_blocks += lease.snapshot_blocks
        for node in states:
            self._states += not node.state_used
            self._pin_state(node)
        lease.missing, lease.branch_blocks, lease.snapshot_blocks = (), 0, 0
        lease.states += states
        self.transfer_blocks += lease.rest_blocks
        # not the state that it started from: the next turn of a conversation starts from a new one
        self._touch(lease, states)

    def release(self, key: Key) -> None:
        """End a lease: its transfer cache is free again, its pins are gone. Nothing happens without one."""
        lease = self._leases.pop(key, None)
        if lease is None:
            return
        self.transfer_blocks -= lease.owned_blocks
        for node in lease.states:
            node.state_pins -= 1
            if not node.state_pins:
                self._locked_blocks -= self.state_blocks
                self._offer((node.state_used, 1, node.id))
        for node in _up(lease.end):
            node.pins -= 1
            self._locked_blocks -= not node.pins
        self._offer_leaf(lease.end)

    def _path(self, chain: Sequence[int], blocks: int) -> list[_Node]:
        """The nodes of the chain's first blocks, as far as they are here."""
        path: list[_Node] = []
        parent = None
        for block in chain[:blocks]:
            node = self._nodes.get(block)
            if node is None or node.parent is not parent:
                break
            path.append(node)
            parent = node
        return path

    def _reusable(self, path: list[_Node]) -> int:
        if not self.state_blocks:
            return len(path)
        return next((end for end in range(len(path), 0, -1) if path[end - 1].state_used), 0)

    def _hold(self, key: Key, lease: _Lease) -> None:
        assert key not in self._leases
        self._leases[key] = lease
        for node in _up(lease.end):
            self._locked_blocks += not node.pins
            node.pins += 1
        for node in lease.states:
            self._pin_state(node)

    def _pin_state(self, node: _Node) -> None:
        if not node.state_pins:
            self._locked_blocks += self.state_blocks
        node.state_pins += 1

    def _touch(self, lease: _Lease, states: list[_Node]) -> None:
        """The lease's path, and of its states these, are used now."""
        self._turn += 1
        for node in _up(lease.end):
            node.used = self._turn
        for node in states:
            node.state_used = self._turn

    def _offer_leaf(self, node: _Node | None) -> None:
        if node is not None and not node.children and not node.pins:
            self._offer((node.used, 0, node.id))

    def _offer(self, entry: tuple[int, int, int]) -> None:
        """Something may be evicted from now on; stale entries are swept once they prevail."""
        heappush(self._evictable, entry)
        if len(self._evictable) > 2 * (len(self._nodes) + self._states) + HEAP_SLACK:
            self._evictable = [each for each in dict.fromkeys(self._evictable) if self._is_due(each)]
            heapify(self._evictable)

    def _is_due(self, entry: tuple[int, int, int]) -> bool:
        """Whether what this entry stands for is still there, unpinned, and has not been used since."""
        used, is_state, block = entry
        node = self._nodes.get(block)
        if node is None:
            return False
        if is_state:
            return node.state_used == used and not node.state_pins
        return node.used == used and not node.pins and not node.children

    def _evict(self, wanted_blocks: int) -> None:
        """Make that many blocks free; the caller knows that it can be done."""
        while self.free_blocks < wanted_blocks:
            entry = heappop(self._evictable)
            if not self._is_due(entry):
                continue
            before_blocks = self.free_blocks
            node = self._nodes[entry[2]]
            if node.state_used:
                node.state_used = 0
                self._states -= 1
            if not entry[1]:
                del self._nodes[node.id]
                if node.parent is not None:
                    node.parent.children -= 1
                self._offer_leaf(node.parent)
            self.evicted_blocks += self.free_blocks - before_blocks

    def check(self) -> None:
        """Assert everything that holds between two calls: for tests."""
        nodes, leases = self._nodes, list(self._leases.values())
        pins = Counter(node for lease in leases for node in _up(lease.end))
        state_pins = Counter(node for lease in leases for node in lease.states)
        children = Counter(node.parent for node in nodes.values())
        due = {entry for entry in self._evictable if self._is_due(entry)}
        assert 0 <= self.free_blocks <= self.total_blocks
        assert self.transfer_blocks == sum(lease.owned_blocks for lease in leases)
        assert self._states == sum(node.state_used > 0 for node in nodes.values())
        assert self._states == 0 or self.state_blocks
        assert all(nodes.get(node.id) is node for node in (*pins, *state_pins))
        for block, node in nodes.items():
            assert node.id == block
            assert node.parent is None or nodes.get(node.parent.id) is node.parent
            assert (node.children, node.pins, node.state_pins) == (
                children[node],
                pins[node],
                state_pins[node],
            )
            assert node.pins or not node.state_pins
            assert node.state_used or not node.state_pins
            assert node.state_used <= node.used <= self._turn
            assert node.pins or node.children or (node.used, 0, block) in due
            assert node.state_pins or not node.state_used or (node.state_used, 1, block) in due
        assert self._locked_blocks == len(pins) + len(state_pins) * self.state_blocks
        assert len(self._evictable) <= 2 * (len(nodes) + self._states) + HEAP_SLACK


def _up(node: _Node | None) -> Iterator[_Node]:
    """A node and everything above it."""
    while node is not None:
        yield node
        node = node.parent
