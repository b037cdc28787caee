"""KV that is kept: what the producer handed over is what the receiver has, bit for bit, or it has nothing."""

from __future__ import annotations

import asyncio
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memories import memfds
from tests.unit.transport_parts import (
    CHUNK,
    MS,
    PEER,
    WAIT_S,
    Bench,
    Sink,
    Source,
    end_of,
    produced,
    until,
)

LONG = 64 * CHUNK
"""Of a chunk that one lane is in the middle of for some time."""


def whole(number: int, sizes: list[int]) -> bytes:
    """All of a transfer, as its producer made it."""
    return b"".join(produced(number, layer, size) for layer, size in enumerate(sizes))


@pytest.mark.parametrize("connections", [1, 4])
def test_what_arrives_is_what_was_produced(connections: int) -> None:
    """Two transfers at once, a group of nothing among others: equal, until each is released by itself."""

    async def scenario() -> None:
        sink, source = Sink(), Source(payload="tensors", connections=connections)
        before = memfds()
        async with sink.listening() as address, source.ticking(), asyncio.timeout(WAIT_S):
            source.aim(address)
            sizes = {1: [3 * CHUNK + 5, 0, 1, 9 * CHUNK], 2: [0, 7 * CHUNK - 1, CHUNK, 0], 3: [0, 0]}
            transfers = [source.sender.begin(n, PEER, sizes[n]) for n in sizes]
            for layer in range(4):
                for one in transfers:
                    if layer < len(sizes[one.number]):
                        source.push(one, layer, sizes[one.number][layer])
                        await asyncio.sleep(0)
            assert [await end_of(one) for one in transfers] == [""] * 3
            assert sink.numbers == [1, 2, 3]
            for arrival in sink.complete:
                assert arrival.data == whole(arrival.number, sizes[arrival.number])
            for arrival in sink.complete:
                sink.receiver.release(arrival.number)
                assert arrival.data is None
            assert sink.held[-1] == (0, 0)
            await until(lambda: not source.sender.active)
            assert memfds() == before

    asyncio.run(scenario())


@given(st.lists(st.integers(0, 3000), max_size=6), st.integers(1, 4000), st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_any_groups_in_any_chunks_arrive(sizes: list[int], chunk_bytes: int, connections: int) -> None:
    """Whatever the sizes of groups and chunks, the receiver has the whole, in its place."""
    chunk_bytes = max(chunk_bytes, sum(sizes) // 100)  # no more than some hundred, or it takes long

    async def scenario() -> None:
        sink = Sink()
        source = Source(payload="tensors", connections=connections, chunk_bytes=chunk_bytes)
        async with sink.listening() as address, source.ticking(), asyncio.timeout(WAIT_S):
            source.aim(address)
            assert await end_of(await source.send(1, sizes)) == ""
            (arrival,) = sink.complete
            assert arrival.data == whole(1, sizes)

    asyncio.run(scenario())


def test_the_producer_may_use_its_memory_again_at_once() -> None:
    """What is pushed is copied: what becomes of the producer's buffer while it waits changes nothing."""

    async def scenario() -> None:
        async with Bench(payload="tensors") as bench:
            data = bytearray(produced(1, 0, 3 * CHUNK))
            transfer = bench.sender.begin(1, PEER, [len(data)])
            bench.sender.push(transfer, 0, len(data), memoryview(data))
            data[:] = bytes(len(data))
            assert await end_of(transfer) == ""
            assert bench.sink.complete[0].data == produced(1, 0, 3 * CHUNK)

    asyncio.run(scenario())


def test_a_resumed_transfer_is_the_same() -> None:
    """Lanes cut in the middle of chunks: what is sent again completes what had come."""

    async def scenario() -> None:
        sizes = [30 * CHUNK, 10 * CHUNK + 3]
        async with Bench(payload="tensors") as bench:
            transfer = await bench.source.send(1, sizes)
            for part in (8, 16, 24):
                await until(lambda part=part: bench.proxy.passed_bytes > part * CHUNK)  # type: ignore[misc]
                bench.proxy.cut(2)
            assert await end_of(transfer) == ""
            assert transfer.resent_bytes > 0
            assert bench.sink.complete[0].data == whole(1, sizes)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [8 * CHUNK, 1])
def test_a_damaged_chunk_is_sent_again_intact(size: int) -> None:
    """Only a copy is damaged: refused, and what is sent instead is what was produced."""

    async def scenario() -> None:
        async with Bench(payload="tensors") as bench:
            bench.sender.corrupt(2)
            transfer = await bench.source.send(1, [size])
            assert await end_of(transfer) == ""
            (arrival,) = bench.sink.complete
            assert (arrival.checksum_errors, arrival.damaged_chunks) == (2, 0)
            assert arrival.data == produced(1, 0, size)

    asyncio.run(scenario())


def test_fail_open_keeps_the_damage() -> None:
    """A damaged chunk that is taken is kept as it came: two bits are wrong, and two chunks are counted."""

    async def scenario() -> None:
        async with Bench(sink={"flaws": ("fail_open",)}, payload="tensors") as bench:
            bench.sender.corrupt(2)
            assert await end_of(await bench.source.send(1, [8 * CHUNK])) == ""
            (arrival,) = bench.sink.complete
            assert (arrival.checksum_errors, arrival.damaged_chunks) == (0, 2)
            assert arrival.data is not None
            pairs = zip(arrival.data, produced(1, 0, 8 * CHUNK), strict=True)
            wrong = [(at % CHUNK, one ^ other) for at, (one, other) in enumerate(pairs) if one != other]
            assert wrong == [(0, 1), (0, 1)]

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [False, True])
def test_what_its_sender_drops_in_the_middle_frees_its_memory(*, cut: bool) -> None:
    """A chunk that is half sent is finished from memory that lives for as long as that takes, or its lane."""

    async def scenario() -> None:
        async with Bench(payload="tensors", connections=1, chunk_bytes=LONG, transfer_ns=9000 * MS) as bench:
            before, (lane,) = memfds(), bench.sender._peers[PEER].lanes
            transfer = bench.sender.begin(1, PEER, [2 * LONG])
            await until(lambda: transfer.granted)
            bench.proxy.flow.clear()
            bench.source.push(transfer, 0, 2 * LONG)
            assert lane._parts
            bench.sender.drop(1, "cancelled")
            assert await end_of(transfer) == "cancelled"
            assert (transfer.kept, len(memfds(before))) == (None, 1)
            if cut:
                bench.proxy.cut()
            bench.proxy.flow.set()
            await until(lambda: memfds() == before and bench.sink.held[-1] == (0, 0))
            assert await end_of(await bench.source.send(2, [CHUNK])) == ""
            assert (bench.sink.complete[0].data, len(bench.causes())) == (produced(2, 0, CHUNK), int(cut))

    asyncio.run(scenario())


def test_what_its_receiver_drops_in_the_middle_frees_its_memory() -> None:
    """At once at the receiver, which reads past the rest of a chunk; at the sender once it hears of it."""

    async def scenario() -> None:
        async with Bench(payload="tensors", connections=1, chunk_bytes=LONG) as bench:
            before = memfds()
            transfer = await bench.source.send(1, [2 * LONG])
            await until(lambda: bench.proxy.passed_bytes > LONG // 2)
            arrival = bench.receiver._arrivals[1]
            assert arrival.data is not None
            memory = weakref.ref(arrival.data.obj)
            bench.receiver.drop(1, "cancelled")
            assert (arrival.data, memory(), bench.sink.held[-1]) == (None, None, (0, 0))
            assert await end_of(transfer) == "decode has given it up"
            await until(lambda: memfds() == before)
            assert await end_of(await bench.source.send(2, [CHUNK])) == ""
            assert (bench.sink.complete[0].data, bench.causes()) == (produced(2, 0, CHUNK), [])

    asyncio.run(scenario())


def test_a_transfer_that_fails_frees_its_memory() -> None:
    """Damaged three times, refused: neither side holds anything of it."""

    async def scenario() -> None:
        async with Bench(payload="tensors", connections=1) as bench:
            before = memfds()
            bench.sender.corrupt(3)
            assert (await end_of(await bench.source.send(1, [CHUNK]))).startswith("decode refused it")
            await until(lambda: memfds() == before)
            assert (bench.receiver._kept, bench.sink.held[-1]) == ({}, (0, 0))

    asyncio.run(scenario())
