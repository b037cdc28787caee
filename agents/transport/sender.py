"""The sending half: a pool of connections per receiver, chunks given out as they are produced."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable

import msgspec

from agents.transport import payload, tcp_info
from agents.transport.frames import ACK_BYTES, HEADER_BYTES, REFUSED, Ack, FrameError, Header


class Transfer(msgspec.Struct):
    """One request's KV on its way to one receiver."""

    id: int
    peer: str
    size_bytes: int
    chunks: int
    started_ns: int = 0
    next_chunk: int = 0
    over: asyncio.Future[None] = msgspec.field(default_factory=asyncio.Future)
    """Done when the receiver has acknowledged everything; fails with a TransferError."""


class TransferError(Exception):
    """A transfer that did not arrive: its connection broke, or the receiver refused it."""


class Signals(msgspec.Struct, frozen=True):
    """What the connections of one sender say of the path; the counters run since the start.

    `backlog_bytes`: handed over for sending and not yet acknowledged by the receiver's TCP.
    `rtt_s`: mean smoothed RTT of the active connections, 0 without any; `min_rtt_s`: smallest ever seen.
    """

    acked_bytes: int
    retrans_bytes: int
    backlog_bytes: int
    rtt_s: float
    min_rtt_s: float
    active: int


_Part = memoryview | tuple[int, int, int]
"""What waits to be sent: bytes, or (descriptor, start, size) of pages."""


class _Connection:
    """One TCP connection and the chunks that wait for it."""

    def __init__(
        self, connection: socket.socket, on_ack: Callable[[Ack], None], on_break: Callable[[], None]
    ) -> None:
        self.socket = connection
        self.pushed_bytes = 0
        self.acked_bytes = 0
        self.retrans_bytes = 0
        self.transfers: set[int] = set()
        self._on_ack, self._on_break = on_ack, on_break
        self._parts: deque[_Part] = deque()
        self._writing = False
        self._ack = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._readable)

    def push(self, header: Header) -> None:
        """Queue one chunk behind what waits already, and send what the socket takes."""
        pages, start, stamp = payload.zeros(), 0, b""
        if header.verified:
            pages = payload.noise()
            stamp, start, checksum = payload.verified(
                header.transfer, header.layer, header.chunk, header.size_bytes
            )
            header = msgspec.structs.replace(header, checksum=checksum)
        self._parts.append(memoryview(header.pack() + stamp))
        ranges = pages.ranges(start, header.size_bytes - len(stamp))
        self._parts.extend((pages.descriptor, place, size) for place, size in ranges)
        self.pushed_bytes += HEADER_BYTES + header.size_bytes
        if not self._writing:
            self._pump()

    def _pump(self) -> None:
        """Send until the socket is full or nothing is left."""
        try:
            while self._parts:
                if not self._send(self._parts[0]):
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            self._on_break()
            return
        waiting = bool(self._parts)
        if waiting and not self._writing:
            self._loop.add_writer(self.socket, self._pump)
        elif self._writing and not waiting:
            self._loop.remove_writer(self.socket)
        self._writing = waiting

    def _send(self, part: _Part) -> bool:
        """Send of the first part what fits; whether all of it went."""
        rest: _Part
        if isinstance(part, memoryview):
            more = socket.MSG_MORE if len(self._parts) > 1 else 0
            sent = self.socket.send(part, more)
            rest, whole = part[sent:], sent == len(part)
        else:
            descriptor, start, size = part
            sent = os.sendfile(self.socket.fileno(), descriptor, start, size)
            rest, whole = (descriptor, start + sent, size - sent), sent == size
        if whole:
            self._parts.popleft()
        else:
            self._parts[0] = rest
        return whole

    def _readable(self) -> None:
        try:
            data = self.socket.recv(64 * ACK_BYTES)
            if not data:
                raise ConnectionResetError
            self._ack += data
            while len(self._ack) >= ACK_BYTES:
                ack, self._ack = Ack.unpack(self._ack[:ACK_BYTES]), self._ack[ACK_BYTES:]
                self._on_ack(ack)
        except BlockingIOError:
            pass
        except (OSError, FrameError):
            self.close()
            self._on_break()

    def sample(self) -> tcp_info.TcpInfo | None:
        """Read TCP_INFO unless nothing has moved since everything was acknowledged."""
        if self.acked_bytes >= self.pushed_bytes:
            return None
        info = tcp_info.read(self.socket)
        self.acked_bytes, self.retrans_bytes = info.bytes_acked, info.bytes_retrans
        return info

    def close(self) -> None:
        """Stop watching and close."""
        self._loop.remove_reader(self.socket)
        self._loop.remove_writer(self.socket)
        self.socket.close()


class Sender:
    """Sends KV to any number of receivers over `connections` TCP connections each."""

    def __init__(
        self, *, connections: int, chunk_bytes: int, verified: bool, congestion_control: str
    ) -> None:
        self._connections, self._chunk_bytes, self._verified = connections, chunk_bytes, verified
        self._congestion_control = congestion_control
        self._pools: dict[str, list[_Connection]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._transfers: dict[int, Transfer] = {}
        self._closed_acked_bytes = self._closed_retrans_bytes = 0
        self._min_rtt_s = 0.0

    async def connect(self, peer: str, address: tuple[str, int]) -> None:
        """Have a full pool to `peer`; OSError when it cannot be reached."""
        async with self._locks.setdefault(peer, asyncio.Lock()):
            pool = self._pools.setdefault(peer, [])
            while len(pool) < self._connections:
                pool.append(await self._open(peer, address))

    async def _open(self, peer: str, address: tuple[str, int]) -> _Connection:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion_control.encode()
            )
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, address)
        except OSError:
            connection.close()
            raise
        opened = _Connection(connection, self._acknowledged, lambda: self._broken(peer, opened))
        return opened

    def begin(self, transfer: int, peer: str, sizes: list[int]) -> Transfer:
        """Announce a transfer whose groups of layers will have these sizes, in bytes."""
        chunks = sum(-(-size // self._chunk_bytes) for size in sizes)
        begun = Transfer(transfer, peer, sum(sizes), chunks)
        self._transfers[transfer] = begun
        return begun

    def push(self, transfer: Transfer, layer: int, size_bytes: int) -> None:
        """Hand over what is finished up to `layer`; each chunk goes where the least waits to be sent."""
        if not transfer.started_ns:
            transfer.started_ns = time.monotonic_ns()
        left = size_bytes
        while left and not transfer.over.done():
            size = min(left, self._chunk_bytes)
            left -= size
            pool = self._pools[transfer.peer]
            if not pool:
                self._fail(transfer, f"connection to {transfer.peer} broke")
                return
            connection = min(pool, key=lambda one: one.pushed_bytes - one.acked_bytes)
            connection.transfers.add(transfer.id)
            chunk = transfer.next_chunk
            transfer.next_chunk += 1
            connection.push(
                Header(
                    self._verified, transfer.id, transfer.size_bytes, layer, chunk, transfer.chunks, size, 0
                )
            )

    def signals(self) -> Signals:
        """Sample every connection that has moved since the last call."""
        backlog_bytes, rtts = 0, []
        everyone = [one for peer in sorted(self._pools) for one in self._pools[peer]]
        for connection in everyone:
            info = connection.sample()
            if info is None:
                continue
            backlog_bytes += max(0, connection.pushed_bytes - info.bytes_acked)
            rtts.append(info.rtt_s)
            if info.min_rtt_s and (not self._min_rtt_s or info.min_rtt_s < self._min_rtt_s):
                self._min_rtt_s = info.min_rtt_s
        return Signals(
            acked_bytes=self._closed_acked_bytes + sum(one.acked_bytes for one in everyone),
            retrans_bytes=self._closed_retrans_bytes + sum(one.retrans_bytes for one in everyone),
            backlog_bytes=backlog_bytes,
            rtt_s=sum(rtts) / len(rtts) if rtts else 0.0,
            min_rtt_s=self._min_rtt_s,
            active=len(rtts),
        )

    def _acknowledged(self, ack: Ack) -> None:
        transfer = self._transfers.get(ack.transfer)
        if transfer is None:
            return
        if ack.status == REFUSED:
            self._fail(transfer, f"{transfer.peer} refused a chunk: wrong checksum")
        else:
            self._end(transfer)
            transfer.over.set_result(None)

    def _broken(self, peer: str, connection: _Connection) -> None:
        pool = self._pools[peer]
        if connection in pool:
            pool.remove(connection)
            self._closed_acked_bytes += connection.acked_bytes
            self._closed_retrans_bytes += connection.retrans_bytes
        for number in sorted(connection.transfers):
            self._fail(self._transfers[number], f"connection to {peer} broke")

    def _fail(self, transfer: Transfer, cause: str) -> None:
        self._end(transfer)
        if not transfer.over.done():
            transfer.over.set_exception(TransferError(cause))

    def _end(self, transfer: Transfer) -> None:
        self._transfers.pop(transfer.id, None)
        for connection in self._pools.get(transfer.peer, []):
            connection.transfers.discard(transfer.id)
