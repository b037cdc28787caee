"""Chunks that wait for a lane: in what order they go, and what a receiver makes of any order."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import AsyncExitStack
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.transport import frames
from agents.transport.frames import Ack, Header
from tests.unit.transport_parts import CHUNK, PEER, Bench, Line, Sink, Source, descriptors, end_of, until

PEERS = ("decode-1", "decode-2")
TRANSFERS = 10_000
Order = Literal["fifo", "least_slack"]


@pytest.mark.parametrize(("priority", "order"), [("fifo", [1, 2, 3]), ("least_slack", [2, 1, 3])])
def test_the_next_chunk_is_that_of_the_order_asked_for(priority: Order, order: list[int]) -> None:
    """As produced, or those of the transfer with the least slack first."""

    async def scenario() -> None:
        async with Bench(connections=1, priority=priority) as bench:
            first = bench.sender.begin(0, PEER, [30 * CHUNK])
            slacks = {1: 2.0, 2: 1.0, 3: 3.0}
            others = [bench.sender.begin(n, PEER, [10 * CHUNK], priority=slacks[n]) for n in slacks]
            await until(lambda: all(one.granted for one in [first, *others]))
            bench.proxy.flow.clear()  # the lane is full with the first one while the others come
            bench.sender.push(first, 0, 30 * CHUNK)
            for one in others:
                bench.sender.push(one, 0, 10 * CHUNK)
            bench.proxy.flow.set()
            assert [await end_of(one) for one in [first, *others]] == [""] * 4
            rest = [arrival.number for arrival in bench.sink.complete if arrival.number]
            assert rest == order

    asyncio.run(scenario())


def test_chunks_of_a_broken_lane_go_first_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken back from a lane is ahead of what no lane had yet."""

    async def scenario() -> None:
        async with Bench(connections=1, priority="least_slack") as bench:
            first = bench.sender.begin(1, PEER, [60 * CHUNK], priority=9.0)
            urgent = bench.sender.begin(2, PEER, [CHUNK], priority=1.0)
            await until(lambda: first.granted and urgent.granted)
            bench.proxy.flow.clear()
            bench.sender.push(first, 0, 60 * CHUNK)
            (lane,) = bench.sender._peers[PEER].lanes
            with monkeypatch.context() as patch:
                patch.setattr(lane, "open", lambda: None)  # or it stands again before anybody looks
                bench.proxy.cut()
                await until(lambda: lane.state == "closed")
                bench.sender.push(urgent, 0, CHUNK)
            queue = [entry[3] for entry in sorted(bench.sender._peers[PEER]._queue)]
            taken_back = [chunk for chunk in queue if chunk.copies]
            assert queue[: len(taken_back)] == taken_back
            numbers = [chunk.number for chunk in taken_back if chunk.transfer is first]
            assert numbers == list(range(len(numbers)))
            assert 1 < len(numbers) < 60
            bench.proxy.flow.set()
            assert [await end_of(first), await end_of(urgent)] == ["", ""]

    asyncio.run(scenario())


@given(st.integers(1, 6), st.data())
def test_any_order_of_arrival_completes_exactly_once(chunks: int, data: st.DataObject) -> None:
    """Chunks in any order, some more than once, some damaged once, the seal anywhere among them."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=chunks, max_size=chunks))
    sums = list(range(50, 50 + chunks))
    total = sum(sizes)
    seal = frames.digest(zip(range(chunks), sizes, sums, strict=True))
    copies = [(chunk, True) for chunk in range(chunks)]
    copies += data.draw(st.lists(st.tuples(st.integers(0, chunks - 1), st.just(True)), max_size=6))
    copies += [(chunk, False) for chunk in data.draw(st.sets(st.integers(0, chunks - 1)))]
    events = data.draw(st.permutations([*copies, None]))
    sink = Sink()
    receiver = sink.receiver

    line = Line()

    def control(kind: int, checksum: int = 0) -> Ack | None:
        header = Header(kind, "verified", 1, total, 0, 0, chunks, 0, checksum)
        return receiver.control(header, line.end)

    assert control(frames.OFFER) is None
    assert line.answers == [Ack(frames.GRANTED, 1)]
    seen: set[int] = set()
    for event in events:
        if event is None:
            control(frames.SEAL, seal)
            continue
        chunk, intact = event
        at = sum(sizes[:chunk])
        head = Header(frames.CHUNK, "verified", 1, total, 0, chunk, chunks, sizes[chunk], sums[chunk], at)
        answer = receiver.chunk(head, intact=intact)
        if not sink.complete:
            wanted = frames.GOT if intact or chunk in seen else frames.BAD
            assert answer == Ack(wanted, 1, chunk)
        else:
            assert answer == Ack(frames.COMPLETE, 1)
        seen |= {chunk} if intact else set()
    (arrival,) = sink.complete
    assert (arrival.received_bytes, arrival.received_chunks) == (total, chunks)
    assert control(frames.SEAL, seal) == control(frames.OFFER) == Ack(frames.COMPLETE, 1)
    assert (sink.dropped, sink.held) == ([], [(total, 1)])
    receiver.release(1)
    assert sink.held[-1] == (0, 0)


def test_ten_thousand_transfers_need_no_more_sockets_than_lanes() -> None:
    """Small transfers to two receivers, a lane cut every 500: each arrives once, over four lanes to each."""

    async def scenario() -> None:
        dice = random.Random(1)
        source, sinks = Source(transfer_ns=5_000_000_000), {peer: Sink() for peer in PEERS}
        async with AsyncExitStack() as stack:
            for peer, sink in sinks.items():
                source.aim(await stack.enter_async_context(sink.listening()), peer)
            await stack.enter_async_context(source.ticking())
            before = descriptors()
            lanes = [lane for peer in PEERS for lane in source.sender._peers[peer].lanes]
            transfers, most_fds = [], 0
            for number in range(TRANSFERS):
                transfers.append(await source.send(number, [1 + number % 3000, 500], PEERS[number % 2]))
                most_fds = max(most_fds, descriptors() - before)
                if number % 500 == 499:
                    open_lanes = [lane for lane in lanes if lane.state == "open"]
                    cut = dice.choice(open_lanes)._socket
                    assert cut is not None
                    cut.shutdown(socket.SHUT_RDWR)
            assert [await end_of(transfer) for transfer in transfers] == [""] * TRANSFERS
            for place, peer in enumerate(PEERS):
                assert sinks[peer].numbers == list(range(place, TRANSFERS, 2))
            opened = sum(one[1] for one in source.connections)
            assert opened == len(lanes) + TRANSFERS // 500
            assert max(one[2] for one in source.connections) == len(lanes) == 8
            # both ends are in this process; the other end of the lane that was cut may close a little later
            assert most_fds <= 2 * len(lanes) + 1

    asyncio.run(scenario())
