"""What systems in the field do wrong with KV, one flaw at a time: each does what it says, and no more."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from agents.config import Flaw
from tests.unit.transport_parts import (
    CHUNK,
    MS,
    PEER,
    WAIT_S,
    Bench,
    Sink,
    Source,
    end_of,
    started_receiver,
    until,
)


def test_no_resume_fails_what_a_broken_lane_carried() -> None:
    """A broken connection ends the transfers it carried, on both sides, and no others."""

    async def scenario() -> None:
        async with Bench(connections=1, flaws=("no_resume",)) as bench:
            transfer = await bench.source.send(1, [100 * CHUNK])
            later = bench.sender.begin(2, PEER, [CHUNK])
            await until(lambda: bench.proxy.passed_bytes > 10 * CHUNK and later.granted)
            bench.proxy.cut()
            assert await end_of(transfer) == "connection to decode broke"
            bench.sender.push(later, 0, CHUNK)
            assert await end_of(later) == ""
            assert bench.sink.dropped == [(1, "its sender gave it up")]
            assert bench.sink.numbers == [2]

    asyncio.run(scenario())


def test_fail_open_takes_damaged_chunks() -> None:
    """A damaged chunk is taken as it is, and counted as such."""

    async def scenario() -> None:
        async with Bench(sink={"flaws": ("fail_open",)}, payload="verified") as bench:
            bench.sender.corrupt(2)
            assert await end_of(await bench.source.send(1, [8 * CHUNK])) == ""
            (arrival,) = bench.sink.complete
            assert (arrival.checksum_errors, arrival.damaged_chunks, arrival.received_chunks) == (0, 2, 8)

    asyncio.run(scenario())


def test_no_lease_keeps_room_for_what_failed() -> None:
    """The room of a transfer that was given up stays taken; that of a complete one does not."""

    async def scenario() -> None:
        async with Bench(sink={"flaws": ("no_lease",)}) as bench:
            transfer = bench.sender.begin(1, PEER, [4 * CHUNK])
            await until(lambda: transfer.granted)
            bench.sender.drop(1, "cancelled")
            await until(lambda: bool(bench.sink.dropped))
            assert bench.sink.held[-1] == (4 * CHUNK, 1)
            assert await end_of(await bench.source.send(2, [CHUNK])) == ""
            bench.receiver.drop(2, "cancelled")
            assert bench.sink.held[-1] == (4 * CHUNK, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("flaw", ["wait_for_tcp", "no_timeouts"])
def test_a_lane_that_stands_still_is_left_to_tcp(flaw: Flaw) -> None:
    """Nothing moves for long: no connection is replaced, and the transfer goes on where it was."""

    async def scenario() -> None:
        async with Bench(connections=2, flaws=(flaw,)) as bench:
            transfer = await bench.source.send(1, [100 * CHUNK])
            await until(lambda: bench.proxy.passed_bytes > 10 * CHUNK)
            bench.proxy.flow.clear()
            await asyncio.sleep(1)
            bench.proxy.flow.set()
            assert await end_of(transfer) == ""
            assert (bench.causes(), transfer.resent_bytes) == ([], 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("flaw", "ends"), [(None, True), ("no_lease", False), ("no_timeouts", False)])
def test_the_lease_of_a_transfer_without_room_runs_out(flaw: Flaw | None, ends: bool) -> None:
    """Waiting for room is not moving: the source gives up after its lease and says so, or never."""

    async def scenario() -> None:
        flaws = (flaw,) if flaw else ()
        async with Bench(sink={"pool_bytes": 4 * CHUNK}, lease_ns=300 * MS, flaws=flaws) as bench:
            assert await end_of(await bench.source.send(1, [4 * CHUNK])) == ""
            waiting = await bench.source.send(2, [CHUNK])
            computed = bench.sender.begin(3, PEER, [CHUNK])
            if not ends:
                await asyncio.sleep(0.7)
                assert not waiting.over.done()
            else:
                assert (await end_of(waiting)).startswith("lease ran out: nothing moved for 0.")
                await until(lambda: bench.sink.dropped == [(2, "its sender gave it up")])
            assert not computed.over.done()  # its producer is waited for, not the receiver
            assert bench.sink.held[-1] == (4 * CHUNK, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(("flaws", "stalls"), [((), True), (("no_timeouts",), False)])
def test_a_receiver_says_what_nothing_comes_of(flaws: tuple[Flaw, ...], stalls: bool) -> None:
    """A granted transfer of a sender of whom nothing comes is stalled after its patience, and not before."""

    async def scenario() -> None:
        wait_ns = 200 * MS
        async with Bench(sink={"decode_wait_ns": wait_ns, "flaws": flaws}) as bench:
            transfer = bench.sender.begin(1, PEER, [2 * CHUNK, CHUNK])
            bench.sender.push(transfer, 0, 2 * CHUNK)
            await until(lambda: transfer.acked_bytes == 2 * CHUNK)
            moved_ns = bench.receiver._arrivals[1].moved_ns
            for look_ns in range(moved_ns, moved_ns + wait_ns + 1, 100 * MS):
                assert bench.receiver.stalled(look_ns) == []
            late_ns = moved_ns + wait_ns + MS
            assert bench.receiver.stalled(late_ns) == [], "the chunk came since anybody looked"
            for look_ns in range(late_ns, late_ns + wait_ns + 1, 100 * MS):
                assert bench.receiver.stalled(look_ns) == []
            stalled = bench.receiver.stalled(late_ns + wait_ns + MS)
            assert [arrival.received_bytes for arrival in stalled] == [2 * CHUNK] * stalls

    asyncio.run(scenario())


def test_a_frozen_receiver_does_not_count_as_moving() -> None:
    """Its kernel takes copy after copy of the same chunks: the lease runs out all the same."""

    async def scenario() -> None:
        source = Source(lease_ns=1500 * MS, decode_wait_ns=1600 * MS)
        with started_receiver(0) as (process, port):
            source.aim(("127.0.0.1", port))
            async with source.ticking(), asyncio.timeout(WAIT_S):
                transfer = source.sender.begin(1, PEER, [40 * CHUNK])
                await until(lambda: transfer.granted)
                process.send_signal(signal.SIGSTOP)
                source.sender.push(transfer, 0, 40 * CHUNK)
                cause = await end_of(transfer)
                assert cause.startswith("lease ran out: nothing moved for 1.")
                replaced = sum("stood still" in one[3] for one in source.connections)
                assert 4 <= replaced <= 16  # four lanes: after 0.15 s, then 0.3 s, 0.6 s, 1.2 s

    asyncio.run(scenario())


def test_who_has_not_looked_blames_nobody() -> None:
    """A program that was frozen itself finds leases and patience overrun: it counts them from now on."""

    async def scenario() -> None:
        source, sink = Source(lease_ns=300 * MS), Sink(pool_bytes=CHUNK, decode_wait_ns=300 * MS)
        async with sink.listening() as address, asyncio.timeout(WAIT_S):
            source.aim(address)
            half = source.sender.begin(1, PEER, [CHUNK // 2, CHUNK // 2])
            source.sender.push(half, 0, CHUNK // 2)
            waiting = await source.send(2, [CHUNK])
            await until(lambda: half.acked_bytes > 0)
            begun_ns = time.monotonic_ns()
            for look_ns in range(begun_ns, begun_ns + 300 * MS, 100 * MS):
                source.sender.tick(look_ns)
                assert sink.receiver.stalled(look_ns) == []
            woken_ns = begun_ns + 5000 * MS
            source.sender.tick(woken_ns)
            assert sink.receiver.stalled(woken_ns) == []
            assert not waiting.over.done()
            stalled = []
            for look_ns in range(woken_ns + 100 * MS, woken_ns + 1100 * MS, 100 * MS):
                source.sender.tick(look_ns)
                stalled += sink.receiver.stalled(look_ns)
            assert {arrival.number for arrival in stalled} == {1}
            assert (await end_of(waiting)).startswith("lease ran out")
            source.break_off()

    asyncio.run(scenario())
