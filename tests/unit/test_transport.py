"""KV from a real Sender to a real Receiver over loopback: whole, or failed with its cause."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from itertools import combinations

import pytest
from xxhash import xxh3_64_intdigest

from agents.config import Payload
from agents.transport import frames, incoming, payload
from agents.transport.frames import HEADER_BYTES, PAYLOADS, Ack, Header
from agents.transport.incoming import Incoming
from agents.transport.lanes import _MAX_PACING_RATE, LEAST_BYTES
from tests.unit.transport_parts import CHUNK, PEER, WAIT_S, Line, Proxy, Sink, Source, end_of, until


def header(kind: int, number: int, size_bytes: int, chunks: int = 1, chunk: int = 0, **more: int) -> Header:
    """A frame of a transfer of equal synthetic chunks."""
    size = size_bytes // chunks if kind == frames.CHUNK else 0
    sum_ = more.get("checksum", 0)
    return Header(kind, "synthetic", number, size_bytes, 0, chunk, chunks, size, sum_, size * chunk)


@pytest.mark.parametrize("connections", [1, 4, 8])
@pytest.mark.parametrize("kind", PAYLOADS)
def test_several_transfers_arrive_whole(kind: Payload, connections: int) -> None:
    """Transfers of several groups of layers, interleaved over some connections, all complete exactly once."""

    async def scenario() -> None:
        sink, source = Sink(), Source(payload=kind, connections=connections)
        async with sink.listening() as address, source.ticking(), asyncio.timeout(WAIT_S):
            source.aim(address)
            sizes = {n: [3 * CHUNK + n + 1, 1, CHUNK, 7 * CHUNK // 2] for n in range(6)}
            transfers = [source.sender.begin(n, PEER, sizes[n]) for n in sizes]
            for layer in range(4):
                for transfer in transfers:
                    source.push(transfer, layer, sizes[transfer.number][layer])
                    await asyncio.sleep(0)
            assert [await end_of(transfer) for transfer in transfers] == [""] * 6
            arrived = {a.number: (a.size_bytes, a.received_bytes, a.received_chunks) for a in sink.complete}
            assert arrived == {n: (sum(sizes[n]), sum(sizes[n]), 10) for n in sizes}
            assert (len(sink.complete), sink.dropped) == (6, [])
            assert [(t.acked_bytes, t.resent_bytes) for t in transfers] == [(sum(sizes[n]), 0) for n in sizes]
            assert len(sink.accepted()) == connections
            assert source.connections[-1] == (PEER, True, connections, "")
            assert (sink.receiver.pool.held_bytes, sink.receiver.pool.count) == (
                sum(map(sum, sizes.values())),
                6,
            )
            for number in sizes:
                sink.receiver.release(number)
            assert sink.held[-1] == (0, 0)
            await until(lambda: not source.sender.active)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_chunk_may_be_larger_than_the_pages_it_is_sent_from(kind: Payload) -> None:
    """Chunk size has no hidden limit, whatever the payload."""

    async def scenario() -> None:
        size = payload.PAGES_BYTES + CHUNK
        sink, source = Sink(), Source(payload=kind, chunk_bytes=size, connections=1)
        async with sink.listening() as address, source.ticking(), asyncio.timeout(WAIT_S):
            source.aim(address)
            assert await end_of(await source.send(1, [size])) == ""
            assert [(a.received_bytes, a.received_chunks) for a in sink.complete] == [(size, 1)]

    asyncio.run(scenario())


def test_a_transfer_of_nothing_arrives() -> None:
    """KV of no bytes is offered, granted, sealed and complete like any other."""

    async def scenario() -> None:
        sink, source = Sink(), Source()
        async with sink.listening() as address, source.ticking(), asyncio.timeout(WAIT_S):
            source.aim(address)
            assert await end_of(await source.send(1, [0, 0])) == ""
            assert [(a.number, a.received_bytes) for a in sink.complete] == [(1, 0)]

    asyncio.run(scenario())


def test_signals_count_what_the_receiver_s_tcp_has_acknowledged() -> None:
    """After a transfer the counters cover all of its bytes and the backlog is empty, ticked or not."""

    async def scenario() -> None:
        sink, source = Sink(), Source()
        async with sink.listening() as address, asyncio.timeout(WAIT_S):
            source.aim(address)
            assert (source.sender.signals().acked_bytes, source.sender.signals().active) == (0, 0)
            transfer = source.sender.begin(1, PEER, [8 * CHUNK])
            source.sender.push(transfer, 0, 8 * CHUNK)
            assert source.sender.signals().backlog_bytes == 8 * CHUNK
            assert await end_of(transfer) == ""
            sent = 8 * (CHUNK + HEADER_BYTES) + 2 * HEADER_BYTES + 4 * HEADER_BYTES  # offer, seal, hellos
            await until(lambda: not source.sender.signals().backlog_bytes)
            assert sent <= source.sender.signals().acked_bytes <= sent + 4  # TCP counts each SYN
            source.break_off()
            assert sent <= source.sender.signals().acked_bytes <= sent + 4

    asyncio.run(scenario())


def test_a_lane_sends_as_it_was_told() -> None:
    """Congestion control and pacing are those of the peer; what the kernel refuses is said as the cause."""

    async def scenario() -> None:
        sink, source = Sink(), Source(connections=1, lease_ns=200_000_000)
        async with sink.listening() as address, source.ticking(), asyncio.timeout(WAIT_S):
            source.aim(address, "slow", congestion_control="reno", pacing_bps=80_000_000_000)
            source.aim(address, "none", congestion_control="no_such")
            await source.sender.connect("slow")
            (lane,) = source.sender._peers["slow"].lanes
            assert lane._socket is not None
            assert lane._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 5) == b"reno\0"
            rate = lane._socket.getsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, 8)
            assert int.from_bytes(rate, "little") == 10_000_000_000
            cause = await end_of(await source.send(1, [CHUNK], "none"))
            assert cause.startswith("lease ran out: nothing moved for 0.")
            assert cause.endswith("No such file or directory)")
            assert [one[:3] for one in source.connections] == [("slow", True, 1), ("none", False, 1)]

    asyncio.run(scenario())


async def capture(sizes: list[int]) -> bytes:
    """What a sender of verified chunks puts on one connection whose receiver grants what is offered."""
    loop = asyncio.get_running_loop()
    source = Source(payload="verified", chunk_bytes=4096, connections=1)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        source.aim(listener.getsockname())
        transfer = await source.send(7, sizes)
        connection, _ = await loop.sock_accept(listener)
    with closing(connection):
        await loop.sock_sendall(connection, Ack(frames.GRANTED, 7).pack())
        data = bytearray()
        while len(data) < transfer.size_bytes + (transfer.chunks + 3) * HEADER_BYTES:
            data += await loop.sock_recv(connection, 1 << 16)
        source.break_off()
    return bytes(data)


def test_every_verified_chunk_is_another_one() -> None:
    """On the wire no two chunks of a transfer are the same, stamp or not, and each has its checksum; around
    them are hello, offer and the seal, which is there before the last chunk ends.
    """
    data = asyncio.run(capture([5 * 4096, 4096, 2 * 4096 + 100]))
    bodies, kinds, at = [], [], 0
    while at < len(data):
        head = Header.unpack(data[at:])
        kinds.append(head.kind)
        at += HEADER_BYTES + head.size_bytes
        if head.kind == frames.CHUNK:
            assert head.offset == sum(map(len, bodies))
            bodies.append(data[at - head.size_bytes : at])
            assert xxh3_64_intdigest(bodies[-1]) == head.checksum
    assert kinds == [frames.HELLO, frames.OFFER, *[frames.CHUNK] * 8, frames.SEAL, frames.CHUNK]
    assert [len(body) for body in bodies] == [4096] * 8 + [100]
    for one, other in combinations(bodies, 2):
        assert one[16:100] != other[16:100]
        assert one[:16] != other[:16]


def test_a_chunk_that_comes_in_whole_pieces_is_waited_for_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is a multiple of what is read at a time, and the rest is less than was waited for."""
    rest_bytes, there = 1000, 8192
    waits_for = Incoming._wait_for
    body = bytes(there + rest_bytes)
    digest = xxh3_64_intdigest(body)
    head = Header(frames.CHUNK, "verified", 1, len(body), 0, 0, 1, len(body), digest).pack()
    offer = Header(frames.OFFER, "verified", 1, len(body), 0, 0, 1, 0, 0).pack()
    seal = header(frames.SEAL, 1, len(body), checksum=frames.digest([(0, len(body), digest)])).pack()

    async def scenario() -> None:
        loop, sink, waiting = asyncio.get_running_loop(), Sink(), asyncio.Event()

        def noted(one: Incoming, size: int) -> None:
            waits_for(one, size)
            if size == rest_bytes:
                waiting.set()

        monkeypatch.setattr(incoming, "CHECKED_BYTES", there // 2)
        monkeypatch.setattr(incoming, "LOW_WATER_BYTES", there)
        monkeypatch.setattr(Incoming, "_wait_for", noted)
        async with sink.listening() as address, asyncio.timeout(WAIT_S):
            with closing(socket.create_connection(address)) as connection:
                connection.setblocking(False)
                await loop.sock_sendall(connection, offer + seal + head + body[:there])
                await asyncio.wait_for(waiting.wait(), WAIT_S)
                await loop.sock_sendall(connection, body[there:])
                await until(lambda: bool(sink.complete))
        assert [one.received_chunks for one in sink.complete] == [1]

    asyncio.run(scenario())


def test_answers_that_nobody_reads_wait() -> None:
    """A sender that reads no answers for a while still gets each of them, in order."""
    chunks = 20_000

    async def scenario() -> None:
        loop, sink = asyncio.get_running_loop(), Sink()
        data = header(frames.OFFER, 1, chunks, chunks).pack()
        data += b"".join(header(frames.CHUNK, 1, chunks, chunks, n).pack() + b"\0" for n in range(chunks))
        async with sink.listening() as address, asyncio.timeout(WAIT_S):
            with closing(socket.socket()) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(address)
                connection.setblocking(False)
                await until(lambda: bool(sink.accepted()))
                sink.accepted()[0]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                await loop.sock_sendall(connection, data)
                arrivals = sink.receiver._arrivals
                await until(lambda: 1 in arrivals and arrivals[1].received_chunks == chunks)
                answers = bytearray()
                while len(answers) < (chunks + 1) * frames.ACK_BYTES:
                    answers += await loop.sock_recv(connection, 1 << 16)
        acks = [Ack.unpack(bytes(answers[at : at + 32])) for at in range(0, len(answers), 32)]
        assert acks == [Ack(frames.GRANTED, 1)] + [Ack(frames.GOT, 1, n) for n in range(chunks)]

    asyncio.run(scenario())


def test_a_corrupt_header_breaks_its_connection() -> None:
    """One changed byte of a header: nothing behind it is believed, another connection brings it again."""

    async def scenario() -> None:
        sink, source = Sink(), Source(payload="verified", connections=1)
        async with sink.listening() as address, asyncio.timeout(WAIT_S):
            proxy = Proxy(address)
            proxy.flip_at = 2 * HEADER_BYTES + 20
            async with proxy.listening() as detour, source.ticking():
                source.aim(detour)
                assert await end_of(await source.send(1, [3 * CHUNK])) == ""
                assert [one[1] for one in source.connections] == [True, False, True]
                assert [(a.received_chunks, a.checksum_errors) for a in sink.complete] == [(3, 0)]

    asyncio.run(scenario())


def test_a_slow_receiver_holds_the_sender_back() -> None:
    """What a receiver does not read stays where it was produced: kernels hold no more than their buffers."""

    async def scenario() -> None:
        source = Source(connections=2, flaws=("wait_for_tcp",))
        with closing(socket.socket()) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            source.aim(listener.getsockname())
            async with source.ticking(), asyncio.timeout(WAIT_S):
                transfer = await source.send(1, [400 * CHUNK])
                loop = asyncio.get_running_loop()
                ends = [(await loop.sock_accept(listener))[0] for _ in range(2)]
                await loop.sock_sendall(ends[0], Ack(frames.GRANTED, 1).pack())
                await asyncio.sleep(0.3)
                lanes = source.sender._peers[PEER].lanes
                assert [len(lane.carries) for lane in lanes] == [
                    lane.carried_bytes // CHUNK for lane in lanes
                ]
                assert max(lane.carried_bytes for lane in lanes) <= LEAST_BYTES + CHUNK
                assert transfer.produced_bytes == 400 * CHUNK
                assert source.sender.signals().backlog_bytes > 350 * CHUNK
            for end in ends:
                end.close()

    asyncio.run(scenario())


def test_what_was_not_announced_is_refused() -> None:
    """A chunk, or a seal, that is not that of its offer; a seal that does not agree with what came."""
    ones = [(0, 10, 0), (1, 10, 0)]
    strange = [
        (header(frames.CHUNK, 1, 30, 2), "a chunk is not what was announced"),
        (header(frames.CHUNK, 1, 20, 2, chunk=2), "a chunk is not what was announced"),
        (header(frames.SEAL, 1, 20, 3), "its seal is not what was announced"),
        (header(frames.SEAL, 1, 20, 2, checksum=7), "its seal does not agree with what came"),
    ]
    for frame, cause in strange:
        sink, line = Sink(), Line()
        receiver = sink.receiver
        offer, chunks = header(frames.OFFER, 1, 20, 2), [header(frames.CHUNK, 1, 20, 2, n) for n in (0, 1)]
        assert receiver.chunk(chunks[0], intact=True) == Ack(frames.GONE, 1, code=frames.UNKNOWN)
        assert receiver.control(offer, line.end) is None
        for chunk in chunks:
            assert receiver.chunk(chunk, intact=True) == Ack(frames.GOT, 1, chunk.chunk)
        refused = Ack(frames.REFUSED, 1, code=frames.MISMATCH)
        if frame.kind == frames.CHUNK:
            assert receiver.chunk(frame, intact=True) == refused
        else:
            assert receiver.control(frame, line.end) == refused
        seal = header(frames.SEAL, 1, 20, 2, checksum=frames.digest(ones))
        assert receiver.control(seal, line.end) == receiver.control(offer, line.end) == refused
        assert (sink.complete, sink.dropped, sink.held[-1]) == ([], [(1, cause)], (0, 0))


def test_an_offer_that_comes_late_gets_no_room() -> None:
    """Of a transfer that another router had asked for, complete or not: its sender hears that it is gone."""
    sink, line = Sink(), Line()
    receiver = sink.receiver
    offers = [header(frames.OFFER, number, 10, 1) for number in (1, 2)]
    for offer in offers:
        assert receiver.control(offer, line.end) is None
    assert receiver.chunk(header(frames.CHUNK, 1, 10, 1), intact=True) == Ack(frames.GOT, 1, 0)
    seal = header(frames.SEAL, 1, 10, 1, checksum=frames.digest([(0, 10, 0)]))
    assert receiver.control(seal, line.end) == Ack(frames.COMPLETE, 1)
    receiver.release(1)
    receiver.forget()
    assert (sink.dropped, sink.held[-1]) == ([(2, "the router is another one")], (0, 0))
    for offer in offers:
        gone = Ack(frames.GONE, offer.transfer, code=frames.UNKNOWN)
        assert receiver.control(offer, line.end) == gone
    assert sink.held[-1] == (0, 0)


def test_a_lane_that_is_opened_again_replaces_the_one_before() -> None:
    """A reset that was lost leaves a connection behind; the hello of the next one closes it, and no other."""

    async def scenario() -> None:
        sink = Sink()
        async with sink.listening() as address, asyncio.timeout(WAIT_S):
            lanes = sink.receiver._lanes
            connections = []
            for key in [(1, 0), (1, 1), (2, 0), (2, 1), (1, 1)]:
                before = lanes.get(key)
                connections.append(socket.create_connection(address))
                hello = Header(frames.HELLO, "synthetic", key[0], 0, key[1], 0, 0, 0, 0)
                connections[-1].sendall(hello.pack())
                await until(lambda: lanes.get(key) is not before)  # noqa: B023 - awaited here
            assert (len(lanes), len(sink.accepted())) == (4, 4)
            connections[1].settimeout(1)
            assert connections[1].recv(1) == b""
            for connection in connections:
                connection.close()
            await until(lambda: not lanes)

    asyncio.run(scenario())
