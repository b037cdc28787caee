"""Who waits for whom on slow paths: lanes among moving ones, transfers behind others, busy producers."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from tests.unit.transport_parts import CHUNK, MS, PEER, WAIT_S, Bench, Proxy, Sink, Source, end_of, until


def test_a_lane_that_stands_still_while_others_move_is_left_to_tcp() -> None:
    """Where something moves there is a path: the lane has half a lease, not the short timeout."""

    async def scenario() -> None:
        source = Source(connections=1, transfer_ns=500 * MS, lease_ns=60_000 * MS, decode_wait_ns=90_000 * MS)
        async with AsyncExitStack() as stack, asyncio.timeout(WAIT_S):
            proxies = {}
            for peer in ("still", "moving"):
                address = await stack.enter_async_context(Sink().listening())
                proxies[peer] = Proxy(address)
                source.aim(await stack.enter_async_context(proxies[peer].listening()), peer)
            await stack.enter_async_context(source.ticking())
            stuck = await source.send(1, [200 * CHUNK], "still")
            await until(lambda: proxies["still"].passed_bytes > 2 * CHUNK)
            proxies["still"].flow.clear()
            until_ns = time.monotonic_ns() + 2000 * MS
            number = 2
            while time.monotonic_ns() < until_ns:
                assert await end_of(await source.send(number, [4 * CHUNK], "moving")) == ""
                number += 1
            assert [one for one in source.connections if "stood still" in one[3]] == []
            proxies["still"].flow.set()
            assert await end_of(stuck) == ""
            assert stuck.resent_bytes == 0

    asyncio.run(scenario())


def test_a_transfer_waits_for_room_as_long_as_others_give_theirs_back() -> None:
    """A queue for a pool that moves is progress; the lease does not run out in it."""

    async def scenario() -> None:
        settings = {"lease_ns": 1500 * MS, "decode_wait_ns": 1600 * MS}
        async with Bench(sink={"pool_bytes": CHUNK}, **settings) as bench:
            transfers = [await bench.source.send(number, [CHUNK]) for number in range(6)]
            for number in range(6):
                await until(lambda number=number: len(bench.sink.complete) > number)
                await asyncio.sleep(0.5)
                bench.receiver.release(bench.sink.complete[number].number)
            assert [await end_of(one) for one in transfers] == [""] * 6

    asyncio.run(scenario())


def test_a_receiver_hears_of_a_producer_that_is_busy() -> None:
    """Nothing was produced yet, and nothing stalls: the source says that it is there."""

    async def scenario() -> None:
        wait = {"decode_wait_ns": 400 * MS}
        async with Bench(sink=wait, lease_ns=300 * MS, **wait) as bench:
            transfer = bench.sender.begin(1, PEER, [CHUNK])
            await until(lambda: transfer.granted)
            for _ in range(12):
                await asyncio.sleep(0.1)
                assert bench.receiver.stalled(time.monotonic_ns()) == []
            bench.sender.push(transfer, 0, CHUNK)
            assert await end_of(transfer) == ""

    asyncio.run(scenario())
