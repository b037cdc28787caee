"""What a receiver keeps of KV, frame by frame: nothing that was not announced, granted and checked."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from xxhash import xxh3_64_intdigest

from agents.config import Payload
from agents.transport import arrivals, frames, incoming, receiver
from agents.transport.frames import ACK_BYTES, Ack, Header
from tests.unit.transport_parts import WAIT_S, Line, Sink, until

GOOD = bytes(range(200))
REFUSED = Ack(frames.REFUSED, 1, code=frames.MISMATCH)


def frame(kind: int, *, chunks: int = 1, payload: Payload = "tensors", checksum: int = 0) -> bytes:
    """An offer or a seal of GOOD."""
    return Header(kind, payload, 1, len(GOOD), 0, 0, chunks, 0, checksum).pack()


def piece(start: int, stop: int, number: int = 0, chunks: int = 1, payload: Payload = "tensors") -> Header:
    """The header of a chunk that has these bytes of GOOD."""
    body = GOOD[start:stop]
    total, checksum = len(GOOD), xxh3_64_intdigest(body)
    return Header(frames.CHUNK, payload, 1, total, 0, number, chunks, stop - start, checksum, start)


def seal(*pieces: Header) -> bytes:
    """The seal over these chunks."""
    summed = ((one.chunk, one.size_bytes, one.checksum) for one in pieces)
    return frame(frames.SEAL, chunks=len(pieces), checksum=frames.digest(summed))


class Wire:
    """Connections to a sink on which a test says whatever it wants."""

    def __init__(self, sink: Sink, ends: list[socket.socket]) -> None:
        self.sink, self._ends = sink, ends

    async def say(self, data: bytes, lane: int = 0) -> None:
        """Put bytes on a connection."""
        await asyncio.get_running_loop().sock_sendall(self._ends[lane], data)

    async def hear(self, lane: int = 0) -> Ack:
        """The next answer."""
        data = b""
        while len(data) < ACK_BYTES:
            data += await asyncio.get_running_loop().sock_recv(self._ends[lane], ACK_BYTES - len(data))
        return Ack.unpack(data)


@asynccontextmanager
async def wired(lanes: int = 1) -> AsyncIterator[Wire]:
    """A sink, and connections to it."""
    sink = Sink()
    async with sink.listening() as address, asyncio.timeout(WAIT_S):
        ends = [socket.create_connection(address) for _ in range(lanes)]
        for end in ends:
            end.setblocking(False)
        await until(lambda: len(sink.accepted()) == lanes)
        try:
            yield Wire(sink, ends)
        finally:
            for end in ends:
                end.close()


def test_a_damaged_copy_that_comes_late_changes_nothing() -> None:
    """It was asked for before the good one came, or comes after it: the good one stays."""
    one, two = piece(0, 100, 0, 2), piece(100, 200, 1, 2)
    got, noise = Ack(frames.GOT, 1, 0), b"\xaa" * 100

    async def scenario() -> None:
        async with wired(lanes=2) as wire:
            await wire.say(frame(frames.OFFER, chunks=2))
            assert await wire.hear() == Ack(frames.GRANTED, 1)
            await wire.say(one.pack() + noise[:50])
            await until(lambda: any(end._header is not None for end in wire.sink.accepted()))
            await wire.say(one.pack() + GOOD[:100], lane=1)
            assert await wire.hear(lane=1) == got
            await wire.say(noise[50:])
            assert await wire.hear() == got
            await wire.say(one.pack() + noise)
            assert await wire.hear() == got
            await wire.say(two.pack() + GOOD[100:] + seal(one, two))
            assert [await wire.hear(), await wire.hear()] == [
                Ack(frames.GOT, 1, 1),
                Ack(frames.COMPLETE, 1),
            ]
            await wire.say(two.pack() + noise)
            assert await wire.hear() == Ack(frames.COMPLETE, 1)
            (arrival,) = wire.sink.complete
            assert (arrival.data, arrival.checksum_errors) == (GOOD, 0)

    asyncio.run(scenario())


def test_a_chunk_that_began_before_it_was_wanted_is_asked_for_again() -> None:
    """Granted while a chunk of it was on its way and thrown away: it has to come once more."""
    whole_of_it = piece(0, 200)

    async def scenario() -> None:
        async with wired(lanes=2) as wire:
            await wire.say(whole_of_it.pack() + GOOD[:50])
            await until(lambda: any(end._header is not None for end in wire.sink.accepted()))
            await wire.say(frame(frames.OFFER), lane=1)
            assert await wire.hear(lane=1) == Ack(frames.GRANTED, 1)
            await wire.say(GOOD[50:])
            assert await wire.hear() == Ack(frames.BAD, 1, 0)
            await wire.say(whole_of_it.pack() + GOOD + seal(whole_of_it))
            assert [(await wire.hear()).kind, (await wire.hear()).kind] == [frames.GOT, frames.COMPLETE]
            assert [(one.data, one.checksum_errors) for one in wire.sink.complete] == [(GOOD, 0)]

    asyncio.run(scenario())


def test_a_view_outlives_the_release() -> None:
    """Memory goes with the last view of it: who still reads at the release reads what was there."""
    sink, line, only = Sink(), Line(), piece(0, 200)
    assert sink.receiver.control(Header.unpack(frame(frames.OFFER)), line.end) is None
    assert sink.receiver.control(Header.unpack(seal(only)), line.end) is None
    assert sink.receiver.chunk(only, memoryview(GOOD), intact=True) == Ack(frames.COMPLETE, 1)
    data = sink.complete[0].data
    assert data is not None
    view, memory = data[10:20], weakref.ref(data.obj)
    del data
    sink.receiver.release(1)
    assert view == GOOD[10:20]
    view.release()
    del view
    assert memory() is None


LARGE = 1 << 40
WRONG: dict[str, Callable[[], Header]] = {
    "offset": lambda: Header(frames.CHUNK, "tensors", 1, 200, 0, 0, 2, 100, 0, 101),
    "far offset": lambda: Header(frames.CHUNK, "tensors", 1, 200, 0, 0, 2, 100, 0, 2**64 - 1),
    "size": lambda: Header(frames.CHUNK, "tensors", 1, 200, 0, 0, 2, 1 << 20, 0, 0),
    "number": lambda: Header(frames.CHUNK, "tensors", 1, 200, 0, 2, 2, 100, 0, 0),
    "chunks": lambda: Header(frames.CHUNK, "tensors", 1, 200, 0, 0, 3, 100, 0, 0),
    "transfer": lambda: Header(frames.CHUNK, "tensors", 1, LARGE, 0, 0, 2, 1 << 20, 0, 0),
    "payload": lambda: piece(0, 100, 0, 2, payload="verified"),
    "other payload": lambda: piece(0, 100, 0, 2, payload="synthetic"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_chunk_that_was_not_announced_takes_no_memory(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read past, its transfer refused; what comes behind it on the connection is understood."""
    taken: list[int] = []

    def memory(size_bytes: int) -> memoryview:
        taken.append(size_bytes)
        return arrivals.memory(size_bytes)

    monkeypatch.setattr(incoming, "memory", memory)
    monkeypatch.setattr(receiver, "memory", memory)
    head = WRONG[wrong]()

    async def scenario() -> None:
        async with wired() as wire:
            await wire.say(frame(frames.OFFER, chunks=2) + head.pack() + bytes(head.size_bytes))
            assert [await wire.hear(), await wire.hear()] == [Ack(frames.GRANTED, 1), REFUSED]
            await wire.say(frame(frames.OFFER, chunks=2))
            assert await wire.hear() == REFUSED
            assert (taken, wire.sink.held[-1]) == ([200], (0, 0))
            assert wire.sink.dropped == [(1, "a chunk is not what was announced")]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 100), (50, 150)],
        [(0, 100), (101, 200)],
        [(100, 200), (0, 100)],
        [(0, 150), (100, 150)],
        [(0, 100)],
    ],
    ids=["overlap", "gap", "wrong order", "within", "short"],
)
def test_chunks_that_do_not_lie_end_to_end_are_no_transfer(ranges: list[tuple[int, int]]) -> None:
    """However well they are summed up and sealed: the transfer is refused."""
    sink, line = Sink(), Line()
    pieces = [piece(*one, number, len(ranges)) for number, one in enumerate(ranges)]
    assert sink.receiver.control(Header.unpack(frame(frames.OFFER, chunks=len(ranges))), line.end) is None
    for one in pieces:
        data = memoryview(GOOD)[one.offset :][: one.size_bytes]
        assert sink.receiver.chunk(one, data, intact=True) == Ack(frames.GOT, 1, one.chunk)
    assert sink.receiver.control(Header.unpack(seal(*pieces)), line.end) == REFUSED
    assert (sink.complete, sink.held[-1]) == ([], (0, 0))


@pytest.mark.parametrize("size", [1 << 62, 2**64 - 1])
def test_a_transfer_for_which_there_is_no_memory_is_refused(size: int) -> None:
    """The pool would have room, the machine has none: refused, and nothing is held."""
    sink, line = Sink(pool_bytes=2**64), Line()
    offer = Header(frames.OFFER, "tensors", 1, size, 0, 0, 1, 0, 0)
    assert sink.receiver.control(offer, line.end) is None
    assert line.answers == [Ack(frames.REFUSED, 1, code=frames.TOO_LARGE)]
    ((number, cause),) = sink.dropped
    assert (number, cause.startswith("no memory: "), sink.held[-1]) == (1, True, (0, 0))
