"""KV from a real Sender to a real Receiver over loopback: whole, or failed with its cause."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from itertools import combinations
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from agents.transport import payload, receiver
from agents.transport.frames import HEADER_BYTES, Header
from agents.transport.receiver import Arrival, Receiver, _Incoming
from agents.transport.sender import Sender, Transfer, TransferError

PROJECT = Path(__file__).resolve().parents[2]
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
CHUNK = 1 << 20
WAIT_S = 20

Address = tuple[str, int]


def make_sender(*, verified: bool, chunk_bytes: int = CHUNK, connections: int = 4) -> Sender:
    return Sender(
        connections=connections,
        chunk_bytes=chunk_bytes,
        verified=verified,
        congestion_control=CONGESTION_CONTROL,
    )


def break_off(sender: Sender) -> None:
    """Close every connection of a sender; the receiver closes its ends in turn."""
    for pool in sender._pools.values():
        while pool:
            pool.pop().close()


class Sink:
    """A receiver and what it has told."""

    def __init__(self) -> None:
        self.complete: list[Arrival] = []
        self.refused: list[Arrival] = []
        self.receiver = Receiver(self.complete.append, self.refused.append)

    @asynccontextmanager
    async def listening(self, *senders: Sender) -> AsyncIterator[Address]:
        """Serve on a port of its own; at the end both halves of every connection are closed."""
        listener = self.receiver.listen(("127.0.0.1", 0), "cubic")
        loop = asyncio.get_running_loop()
        try:
            yield listener.getsockname()
        finally:
            for sender in senders:
                break_off(sender)
            for watched in (listener, *accepted_connections()):
                loop.remove_reader(watched)
                watched.close()


def accepted_connections() -> list[socket.socket]:
    """The receiver's ends of the connections that the running loop watches."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    readers = [key.data[0] for key in loop._selector.get_map().values()]  # type: ignore[attr-defined]
    owners = [getattr(reader._callback, "__self__", None) for reader in readers if reader is not None]
    return [owner._socket for owner in owners if isinstance(owner, _Incoming)]


async def send(sender: Sender, number: int, sizes: list[int], peer: str = "decode") -> Transfer:
    """Push a whole transfer, group by group."""
    transfer = sender.begin(number, peer, sizes)
    for layer, size in enumerate(sizes):
        sender.push(transfer, layer, size)
        await asyncio.sleep(0)
    return transfer


@pytest.mark.parametrize("verified", [False, True])
def test_several_transfers_arrive_whole(verified: bool) -> None:
    """Transfers of several groups of layers, interleaved over four connections, all complete exactly once."""

    async def scenario() -> None:
        sink, sender = Sink(), make_sender(verified=verified)
        async with sink.listening(sender) as address, asyncio.timeout(WAIT_S):
            await sender.connect("decode", address)
            sizes = {n: [3 * CHUNK + n + 1, 1, CHUNK, 7 * CHUNK // 2] for n in range(6)}
            transfers = [sender.begin(n, "decode", sizes[n]) for n in sizes]
            for layer in range(4):
                for transfer in transfers:
                    sender.push(transfer, layer, sizes[transfer.id][layer])
                    await asyncio.sleep(0)
            await asyncio.gather(*(transfer.over for transfer in transfers))
            arrived = {a.id: (a.size_bytes, a.received_bytes, a.chunks) for a in sink.complete}
            assert arrived == {n: (sum(sizes[n]), sum(sizes[n]), 10) for n in sizes}
            assert [a.received_chunks for a in sink.complete] == [10] * 6
            assert len(sink.complete) == 6
            assert sink.refused == []
            assert [len(pool) for pool in sender._pools.values()] == [4]

    asyncio.run(scenario())


def test_a_chunk_may_be_larger_than_the_pages_it_is_sent_from() -> None:
    """Chunk size has no hidden limit, whatever the payload."""

    async def scenario(verified: bool) -> None:
        size = payload.PAGES_BYTES + CHUNK
        sink, sender = Sink(), make_sender(verified=verified, chunk_bytes=size, connections=1)
        async with sink.listening(sender) as address, asyncio.timeout(WAIT_S):
            await sender.connect("decode", address)
            await (await send(sender, 1, [size])).over
            assert [(a.received_bytes, a.received_chunks) for a in sink.complete] == [(size, 1)]

    asyncio.run(scenario(False))
    asyncio.run(scenario(True))


def test_signals_count_what_the_receiver_s_tcp_has_acknowledged() -> None:
    """After a transfer the counters cover all of its bytes and the backlog is empty."""

    async def scenario() -> None:
        sink, sender = Sink(), make_sender(verified=False)
        async with sink.listening(sender) as address, asyncio.timeout(WAIT_S):
            await sender.connect("decode", address)
            assert (sender.signals().acked_bytes, sender.signals().active) == (0, 0)
            await (await send(sender, 1, [8 * CHUNK])).over
            signals = sender.signals()
            sent = 8 * (CHUNK + HEADER_BYTES)
            # the last bytes may have been read before TCP acknowledged them
            assert signals.acked_bytes + signals.backlog_bytes >= sent
            while signals.backlog_bytes:
                await asyncio.sleep(0)
                signals = sender.signals()
            assert sent <= signals.acked_bytes <= sent + 4  # TCP counts the SYN of each connection

    asyncio.run(scenario())


async def capture(sizes: list[int]) -> bytes:
    """What a sender of verified chunks puts on one connection."""
    loop = asyncio.get_running_loop()
    sender = make_sender(verified=True, chunk_bytes=4096, connections=1)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        await sender.connect("decode", listener.getsockname())
        connection, _ = await loop.sock_accept(listener)
    with closing(connection):
        transfer = await send(sender, 7, sizes)
        data = bytearray()
        while len(data) < transfer.size_bytes + transfer.chunks * HEADER_BYTES:
            data += await loop.sock_recv(connection, 1 << 16)
        break_off(sender)
    return bytes(data)


def test_every_verified_chunk_is_another_one() -> None:
    """On the wire no two chunks of a transfer are the same, stamp or not, and each has its checksum."""
    data = asyncio.run(capture([5 * 4096, 4096, 2 * 4096 + 100]))
    bodies, at = [], 0
    while at < len(data):
        header = Header.unpack(data[at:])
        body = data[at + HEADER_BYTES : at + HEADER_BYTES + header.size_bytes]
        assert xxh3_64_intdigest(body) == header.checksum
        bodies.append(body)
        at += HEADER_BYTES + header.size_bytes
    assert [len(body) for body in bodies] == [4096] * 8 + [100]
    for one, other in combinations(bodies, 2):
        assert one[16:100] != other[16:100]
        assert one[:16] != other[:16]


def test_a_chunk_that_comes_in_whole_pieces_is_waited_for_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is a multiple of what is read at a time, and the rest is less than was waited for."""
    rest_bytes, there = 1000, 8192
    waits_for = _Incoming._wait_for
    body = bytes(there + rest_bytes)
    header = Header(True, 1, len(body), 0, 0, 1, len(body), xxh3_64_intdigest(body)).pack()

    async def scenario() -> None:
        loop, sink, waiting = asyncio.get_running_loop(), Sink(), asyncio.Event()

        def noted(incoming: _Incoming, size: int) -> None:
            waits_for(incoming, size)
            if size == rest_bytes:
                waiting.set()

        monkeypatch.setattr(receiver, "CHECKED_BYTES", there // 2)
        monkeypatch.setattr(receiver, "LOW_WATER_BYTES", there)
        monkeypatch.setattr(_Incoming, "_wait_for", noted)
        async with sink.listening() as address:
            with closing(socket.create_connection(address)) as connection:
                connection.setblocking(False)
                await loop.sock_sendall(connection, header + body[:there])
                await asyncio.wait_for(waiting.wait(), WAIT_S)
                await loop.sock_sendall(connection, body[there:])
                await asyncio.sleep(0.1)
        assert [one.received_chunks for one in sink.complete] == [1]

    asyncio.run(scenario())


class Flipper:
    """A TCP proxy that changes one byte: byte `position` of what the first connection carries forward."""

    def __init__(self, target: Address, position: int) -> None:
        self._target, self._position = target, position
        self._first = True
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, self._first = self._first, False
        there, back = await asyncio.open_connection(*self._target)
        for pump in (self._pump(reader, back, flip=first), self._pump(there, writer, flip=False)):
            self._tasks.add(asyncio.create_task(pump))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, flip: bool) -> None:
        passed = 0
        try:
            while data := bytearray(await reader.read(1 << 16)):
                if flip and passed <= self._position < passed + len(data):
                    data[self._position - passed] ^= 1
                passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def send_through(position: int, check: Callable[[Sink, Sender, list[str]], None]) -> None:
    """Three transfers, one chunk each per connection, with one byte of the first connection changed."""
    sink, sender = Sink(), make_sender(verified=True, chunk_bytes=CHUNK)
    flipper = None
    async with sink.listening(sender) as address, asyncio.timeout(WAIT_S):
        flipper = Flipper(address, position)
        async with flipper.listening() as detour:
            await sender.connect("decode", detour)
            transfers = [await send(sender, number, [CHUNK]) for number in range(3)]
            ends = await asyncio.gather(*(t.over for t in transfers), return_exceptions=True)
            check(sink, sender, ["" if end is None else f"{type(end).__name__}: {end}" for end in ends])
            break_off(sender)


def test_a_corrupt_chunk_is_refused_and_its_transfer_fails() -> None:
    """One changed byte of KV: counted, refused, the cause told, never complete; other transfers go on."""

    def check(sink: Sink, sender: Sender, ends: list[str]) -> None:
        assert ends == ["TransferError: decode refused a chunk: wrong checksum", "", ""]
        assert sorted(arrival.id for arrival in sink.complete) == [1, 2]
        assert [(arrival.id, arrival.checksum_errors) for arrival in sink.refused] == [(0, 1)]
        assert len(sender._pools["decode"]) == 4

    asyncio.run(send_through(HEADER_BYTES + 12_345, check))


def test_a_corrupt_header_breaks_its_connection() -> None:
    """One changed byte of a header: nothing behind it is believed, the transfer fails with its cause."""

    def check(sink: Sink, sender: Sender, ends: list[str]) -> None:
        assert ends == ["TransferError: connection to decode broke", "", ""]
        assert sorted(arrival.id for arrival in sink.complete) == [1, 2]
        assert sink.refused == []
        assert len(sender._pools["decode"]) == 3

    asyncio.run(send_through(20, check))


def test_a_refused_transfer_never_completes() -> None:
    """Chunks that follow a corrupt one do not add up to a transfer."""
    sink = Sink()
    bad = Header(True, 1, 30, 0, 0, 3, 10, 0)
    answers = [sink.receiver.chunk(bad, intact=intact) for intact in (True, False, True, True, True)]
    assert [answer is not None for answer in answers] == [False, True, False, False, False]
    assert sink.complete == []
    assert len(sink.refused) == 1


def test_a_dropped_transfer_is_not_counted() -> None:
    """What still comes of a request that was given up leads to nothing."""
    sink = Sink()
    header = Header(False, 1, 20, 0, 0, 2, 10, 0)
    assert sink.receiver.chunk(header, intact=True) is None
    sink.receiver.drop(1)
    assert sink.receiver.chunk(header, intact=True) is None
    assert sink.receiver.chunk(header, intact=True) is None
    assert (sink.complete, sink.refused) == ([], [])


def test_a_connection_found_broken_ends_the_push() -> None:
    """Once a transfer has failed, no chunk of it goes to another connection, whose break harms nobody."""

    async def scenario() -> None:
        loop, sender = asyncio.get_running_loop(), make_sender(verified=False, connections=2)
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            listener.setblocking(False)
            await sender.connect("decode", listener.getsockname())
            ends = [(await loop.sock_accept(listener))[0] for _ in range(2)]
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ends[0].close()
        transfer = sender.begin(1, "decode", [4 * CHUNK])
        sender.push(transfer, 0, 4 * CHUNK)
        assert (transfer.next_chunk, [one.transfers for one in sender._pools["decode"]]) == (1, [set()])
        ends[1].close()
        while sender._pools["decode"]:  # noqa: ASYNC110 - a break that fails no transfer tells nobody
            await asyncio.sleep(0)
        with pytest.raises(TransferError, match=r"^connection to decode broke$"):
            await transfer.over

    asyncio.run(scenario())


RECEIVER = """
import asyncio
from agents.transport.receiver import Receiver
async def main():
    listener = Receiver(print, print).listen(("127.0.0.1", 0), "cubic")
    print(listener.getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_a_receiver_that_dies_fails_the_transfer_and_can_come_back() -> None:
    """Killed in the middle: the transfer fails with its cause, and the next connection serves again."""

    async def scenario(process: subprocess.Popen[str]) -> None:
        assert process.stdout
        address = ("127.0.0.1", int(process.stdout.readline()))
        sink, sender = Sink(), make_sender(verified=False)
        async with sink.listening(sender) as second, asyncio.timeout(WAIT_S):
            await sender.connect("decode", address)
            os.kill(process.pid, signal.SIGSTOP)
            transfers = [await send(sender, number, [256 * CHUNK]) for number in (1, 2)]
            assert not any(transfer.over.done() for transfer in transfers)
            process.kill()
            process.wait()
            for transfer in transfers:
                with pytest.raises(TransferError, match=r"^connection to decode broke$"):
                    await transfer.over
            for transfer in transfers:  # what is pushed late leads nowhere
                sender.push(transfer, 1, CHUNK)
            with pytest.raises(ConnectionRefusedError):
                await sender.connect("decode", address)
            await sender.connect("decode", second)
            await (await send(sender, 3, [4 * CHUNK])).over
            assert [arrival.id for arrival in sink.complete] == [3]

    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            asyncio.run(scenario(process))
        finally:
            process.kill()
