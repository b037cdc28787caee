"""KV over connections that break, stand still and damage what they carry."""

from __future__ import annotations

import asyncio

import pytest

from agents.config import Payload
from agents.transport.frames import PAYLOADS
from tests.unit.transport_parts import (
    CHUNK,
    MS,
    PEER,
    WAIT_S,
    Bench,
    Source,
    descriptors,
    end_of,
    started_receiver,
    until,
)


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_broken_lane_is_resumed(kind: Payload) -> None:
    """Connections cut in the middle: the rest comes over new ones, each chunk counts once."""

    async def scenario() -> None:
        async with Bench(payload=kind) as bench:
            transfer = await bench.source.send(1, [100 * CHUNK, 28 * CHUNK])
            for part in (20, 40, 80):
                await until(lambda part=part: bench.proxy.passed_bytes > part * CHUNK)  # type: ignore[misc]
                bench.proxy.cut(2)
            assert await end_of(transfer) == ""
            (arrival,) = bench.sink.complete
            assert (arrival.received_chunks, arrival.received_bytes) == (128, 128 * CHUNK)
            assert 0 < transfer.resent_bytes < 128 * CHUNK
            assert transfer.acked_bytes == transfer.produced_bytes == 128 * CHUNK
            assert max(one[2] for one in bench.source.connections) == 4
            assert len(bench.causes()) == 6

    asyncio.run(scenario())


def test_a_lane_that_stands_still_is_replaced() -> None:
    """A path that carries nothing any more: reset within the timeout, and the transfer resumes elsewhere."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with Bench(connections=2) as bench:
            transfer = await bench.source.send(1, [200 * CHUNK])
            await until(lambda: bench.proxy.passed_bytes > 20 * CHUNK)
            bench.proxy.flow.clear()
            frozen_s = loop.time()
            await until(lambda: len(bench.causes()) == 2)
            assert 0.1 < loop.time() - frozen_s < 3
            assert all(cause.startswith("stood still for") for cause in bench.causes())
            await asyncio.sleep(0.1)
            bench.proxy.flow.set()
            assert await end_of(transfer) == ""
            assert [arrival.received_chunks for arrival in bench.sink.complete] == [200]
            assert transfer.resent_bytes > 0

    asyncio.run(scenario())


def test_a_lane_on_a_slow_path_is_left_alone() -> None:
    """A path that carries a little all the time stands on its first connections, whatever a chunk takes."""

    async def scenario() -> None:
        async with Bench(connections=1, transfer_ns=500 * MS) as bench:
            transfer = await bench.source.send(1, [60 * CHUNK])
            for _ in range(40):
                bench.proxy.flow.set()
                await asyncio.sleep(0.002)
                bench.proxy.flow.clear()
                await asyncio.sleep(0.03)
                if transfer.over.done():
                    break
            bench.proxy.flow.set()
            assert await end_of(transfer) == ""
            assert (bench.causes(), transfer.resent_bytes) == ([], 0)

    asyncio.run(scenario())


def test_a_completion_that_was_lost_is_asked_for_again() -> None:
    """No answer comes back, then the connections go: the transfer completes, once on either side."""

    async def scenario() -> None:
        async with Bench(lease_ns=10_000 * MS) as bench:
            await bench.sender.connect(PEER)
            transfer = bench.sender.begin(1, PEER, [4 * CHUNK])
            await until(lambda: transfer.granted)
            bench.proxy.answers = False
            bench.sender.push(transfer, 0, 4 * CHUNK)
            await until(lambda: bench.sink.numbers == [1])
            bench.proxy.answers = True
            bench.proxy.cut()
            assert await end_of(transfer) == ""
            assert (bench.sink.numbers, bench.sink.dropped) == ([1], [])

    asyncio.run(scenario())


def test_a_damaged_chunk_is_sent_again() -> None:
    """A bit turned over: refused, sent once more, complete with every chunk intact."""

    async def scenario() -> None:
        async with Bench(payload="verified") as bench:
            bench.sender.corrupt(2)
            transfer = await bench.source.send(1, [8 * CHUNK])
            assert await end_of(transfer) == ""
            (arrival,) = bench.sink.complete
            assert (arrival.checksum_errors, arrival.damaged_chunks, arrival.received_chunks) == (2, 0, 8)
            assert transfer.resent_bytes == 2 * CHUNK

    asyncio.run(scenario())


def test_a_chunk_damaged_three_times_fails_its_transfer() -> None:
    """Refused for good, with the cause on both sides and nothing held; the next transfer is not harmed."""

    async def scenario() -> None:
        async with Bench(payload="verified", connections=1) as bench:
            bench.sender.corrupt(3)
            assert (
                await end_of(await bench.source.send(1, [CHUNK]))
                == "decode refused it: a chunk was damaged again and again"
            )
            assert bench.sink.dropped == [(1, "a chunk arrived with a wrong checksum 3 times")]
            assert bench.sink.held[-1] == (0, 0)
            assert await end_of(await bench.source.send(2, [CHUNK])) == ""
            assert bench.sink.numbers == [2]

    asyncio.run(scenario())


def test_a_full_pool_grants_later() -> None:
    """Nothing of a transfer without room is sent, until there is room; what was set aside goes at once."""

    async def scenario() -> None:
        async with Bench(sink={"pool_bytes": 10 * CHUNK}) as bench:
            assert await bench.receiver.reserve(3, 4 * CHUNK)
            first = await bench.source.send(1, [6 * CHUNK])
            assert await end_of(first) == ""
            passed = bench.proxy.passed_bytes
            second = await bench.source.send(2, [6 * CHUNK])
            await asyncio.sleep(0.1)
            assert not second.granted
            assert bench.proxy.passed_bytes - passed < 1000
            assert await end_of(await bench.source.send(3, [4 * CHUNK])) == ""
            bench.receiver.fill(True)
            bench.receiver.release(1)
            await asyncio.sleep(0.05)
            assert not second.granted
            bench.receiver.fill(False)
            assert await end_of(second) == ""
            too_large = await end_of(await bench.source.send(4, [11 * CHUNK]))
            assert too_large == "decode refused it: it is larger than the pool"
            for number in (2, 3):
                bench.receiver.release(number)
            assert bench.sink.held[-1] == (0, 0)
            assert max(held_bytes for held_bytes, _ in bench.sink.held) == 10 * CHUNK

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_a_transfer_dropped_on_one_side_is_dropped_on_the_other(who: str) -> None:
    """With chunks under way: both know, nothing is held, what still comes counts for nothing."""

    async def scenario() -> None:
        async with Bench() as bench:
            transfer = await bench.source.send(1, [100 * CHUNK])
            waiting = bench.sender.begin(2, PEER, [CHUNK])
            await until(lambda: bench.proxy.passed_bytes > 10 * CHUNK and waiting.granted)
            for number in (1, 2):
                if who == "sender":
                    bench.sender.drop(number, "cancelled")
                else:
                    bench.receiver.drop(number, "cancelled")
                    bench.receiver.drop(number, "again")
            wanted = "cancelled" if who == "sender" else "decode has given it up"
            assert [await end_of(transfer), await end_of(waiting)] == [wanted] * 2
            await until(lambda: len(bench.sink.dropped) == 2)
            cause = "its sender gave it up" if who == "sender" else "cancelled"
            assert sorted(bench.sink.dropped) == [(1, cause), (2, cause)]
            assert bench.sink.held[-1] == (0, 0)
            bench.sender.push(waiting, 0, CHUNK)
            await until(lambda: not bench.sender.active)
            assert await end_of(await bench.source.send(3, [CHUNK])) == ""
            assert bench.sink.numbers == [3]
            assert all(not lane.carries for lane in bench.sender._peers[PEER].lanes)

    asyncio.run(scenario())


def test_a_dropped_transfer_is_told_once_the_receiver_is_back() -> None:
    """The word that a transfer was given up survives the connection it was lost with."""

    async def scenario() -> None:
        async with Bench() as bench:
            transfer = bench.sender.begin(1, PEER, [CHUNK])
            await until(lambda: transfer.granted)
            bench.proxy.flow.clear()
            bench.sender.drop(1, "cancelled")
            await asyncio.sleep(0.05)
            bench.proxy.cut()
            bench.proxy.flow.set()
            await until(lambda: bench.sink.dropped == [(1, "its sender gave it up")])

    asyncio.run(scenario())


def test_a_receiver_that_was_restarted_knows_nothing_of_a_transfer() -> None:
    """Killed in the middle, another in its place: the transfer fails with its cause, the next one arrives."""

    async def scenario() -> None:
        source = Source()
        with started_receiver(0) as (first, port):
            source.aim(("127.0.0.1", port))
            async with source.ticking(), asyncio.timeout(WAIT_S):
                transfer = source.sender.begin(1, PEER, [256 * CHUNK, CHUNK])
                source.sender.push(transfer, 0, 256 * CHUNK)
                await until(lambda: transfer.acked_bytes > 0)
                first.kill()
                first.wait()
                await asyncio.sleep(0.2)
                assert not transfer.over.done()
                with started_receiver(port):
                    assert await end_of(transfer) == "decode does not know it any more"
                    assert await end_of(await source.send(2, [CHUNK])) == ""

    asyncio.run(scenario())


def test_a_receiver_that_stays_away_costs_the_lease_and_no_sockets() -> None:
    """Nobody listens: tried with back-off, one socket a lane, until the lease runs out; then left alone."""

    async def scenario() -> None:
        async with Bench(lease_ns=600 * MS) as bench:
            bench.source.aim(("127.0.0.1", 1), "away")
            before = descriptors()
            transfer = await bench.source.send(1, [CHUNK], "away")
            sockets = 0
            while not transfer.over.done():
                sockets = max(sockets, descriptors() - before)
                await asyncio.sleep(0.01)
            cause = await end_of(transfer)
            assert cause.startswith("lease ran out: nothing moved for 0.6 s (")
            assert "refused" in cause
            assert sockets <= 4
            assert bench.source.connections == [("away", False, 0, "Connection refused")]
            await until(lambda: not bench.sender.active)
            assert all(lane.state == "closed" for lane in bench.sender._peers["away"].lanes)

    asyncio.run(scenario())
