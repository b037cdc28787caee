"""Memory for KV: never more than there is, in the order of asking, and at the end nothing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.transport.pool import Pool, TooLargeError

SIZES = st.lists(st.integers(0, 100), min_size=1, max_size=20)


@given(SIZES, st.data())
def test_everybody_is_served_once_in_the_order_of_asking(sizes: list[int], data: st.DataObject) -> None:
    """Whoever gives back, and when: room goes to those who wait, first come first served, never too much."""
    changes: list[tuple[int, int]] = []
    pool = Pool(100, lambda held_bytes, count: changes.append((held_bytes, count)))
    served: list[int] = []
    for number, size in enumerate(sizes):
        pool.ask(number, size, lambda has, number=number: served.append(number) if has else None)  # type: ignore[misc]
    holding = set(served)
    while holding:
        gone = data.draw(st.sampled_from(sorted(holding)))
        before = len(served)
        assert pool.give_back(gone) == sizes[gone]
        assert pool.give_back(gone) == 0
        holding = (holding - {gone}) | set(served[before:])
        assert pool.held_bytes == sum(sizes[number] for number in holding)
        assert pool.count == len(holding)
    assert served == list(range(len(sizes)))
    assert all(held_bytes <= 100 for held_bytes, _ in changes)
    assert changes[-1] == (0, 0)
    assert len(changes) == 2 * len(sizes)


def test_taking_does_not_overtake() -> None:
    """A small one that would fit does not go before a large one that waits."""
    pool = Pool(10)
    assert pool.take(1, 6)
    assert pool.take(1, 6)
    assert pool.held_bytes == 6
    told: list[bool] = []
    pool.ask(2, 8, told.append)
    assert not pool.take(3, 1)
    pool.give_back(1)
    assert told == [True]
    assert pool.take(3, 1)
    assert (pool.held(2), pool.held(3), pool.held(1)) == (8, 1, None)


def test_what_can_never_fit_is_said_at_once() -> None:
    """Nobody waits for more than the whole pool."""
    with pytest.raises(TooLargeError, match="11 bytes do not fit in 10"):
        Pool(10).ask(1, 11, lambda _has: None)


def test_waiting_ends_with_room_or_without() -> None:
    """Who waits gets room, or learns that it was given back, or is cancelled and forgotten."""

    async def scenario() -> None:
        pool = Pool(10)
        assert await pool.wait(1, 10)
        waits = [asyncio.create_task(pool.wait(number, 5)) for number in (2, 3, 4, 5)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.sleep(0)
        assert pool.give_back(3) == 0
        assert not await waits[1]
        pool.give_back(1)
        assert await asyncio.gather(*waits[2:]) == [True, True]
        assert (pool.held_bytes, pool.count) == (10, 2)
        assert waits[0].cancelled()

    asyncio.run(scenario())


def test_a_shut_pool_gives_nothing() -> None:
    """Whatever room there is, it is given once the pool is open again."""
    pool, told = Pool(10), list[bool]()
    pool.shut(True)
    assert not pool.take(1, 1)
    pool.ask(2, 1, told.append)
    assert told == []
    pool.shut(False)
    assert told == [True]
