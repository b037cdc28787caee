"""A lane: one TCP connection to a receiver, which is opened again when it breaks.

A lane takes its next chunk when all before it was handed to the kernel and little of it is on its way, so TCP
is the flow control, and what waits can still be taken by another lane.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal, Protocol

import msgspec

from agents.transport import tcp_info
from agents.transport.frames import ACK_BYTES, HELLO, Ack, FrameError, Header
from agents.transport.payload import Pages
from agents.transport.transfers import Chunk

FEWEST, LEAST_BYTES = 2, 1 << 20
"""Chunks, and bytes of them, that a lane may have however slow it is."""
UNSENT_BYTES = 32 << 20
"""So much waits in the kernel of one lane for its turn: the rest can still change its order, or go. It
is written in steps of a half, so that less would be more system calls."""
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
_MAX_PACING_RATE = getattr(socket, "SO_MAX_PACING_RATE", 47)
_RATE = struct.Struct("=Q")
_RESET = struct.pack("ii", 1, 0)
_Part = memoryview | tuple[Pages, int, int]
"""What waits to be sent: bytes, or pages from a place on, so many bytes; they are there for as long."""


class Route(msgspec.Struct, frozen=True):
    """Where a lane leads, and how; rates in bits/s, 0: as fast as congestion control allows."""

    address: tuple[str, int]
    congestion_control: str
    pacing_bps: int
    sender: int
    """A number by which the receiver knows this sender."""
    probe_ns: int
    probe_max_ns: int


class Owner(Protocol):
    """Who gives a lane its work."""

    def wanted(self) -> bool:
        """Whether there is something to send, or somebody waits for the connection."""

    def drained(self) -> None:
        """A lane has handed everything to the kernel."""

    def acknowledged(self, ack: Ack) -> None:
        """The receiver has answered."""

    def opened(self) -> None:
        """A lane stands."""

    def closed(self, lane: Lane, cause: str) -> None:
        """A lane broke; its chunks are the owner's again."""

    def failed(self, cause: str) -> None:
        """An attempt to open a lane came to nothing."""


class Lane:
    """One connection at most, closed at first."""

    def __init__(self, number: int, route: Route, owner: Owner) -> None:
        self.number = number
        self.state: Literal["closed", "connecting", "open"] = "closed"
        self.carries: dict[Chunk, None] = {}
        """Chunks that it was given and that are not acknowledged, the oldest first."""
        self.carried_bytes = 0
        self.pushed_bytes = self.acked_bytes = self.retrans_bytes = 0
        """Of this connection: given to it, acknowledged by the receiver's TCP, sent again by ours."""
        self.bytes_per_s = 0.0
        """What it got through of late."""
        self.busy_s = 0.0
        """How long it has had something to send, or to be acknowledged by the receiver's TCP."""
        self.closed_acked_bytes = self.closed_retrans_bytes = 0
        """Of the connections before."""
        self.moved_ns = 0
        self.heard = False
        """Whether the receiver has answered since the last look."""
        self._answered = False
        self.fruitless = 0
        """How many connections in a row ended without an answer."""
        self.settled: asyncio.Event = asyncio.Event()
        """The attempt to open it that was last begun has come to an end."""
        self._route, self._owner = route, owner
        self._socket: socket.socket | None = None
        self._parts: deque[_Part] = deque()
        self._writing = False
        self._ack = b""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wait_s = route.probe_ns / 1e9
        self._next_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether it stands and has handed everything to the kernel."""
        return self.state == "open" and not self._parts

    @property
    def ready(self) -> bool:
        """Whether it takes a chunk: up to two, or a mebibyte, and more only as far as half a second carries.

        On a slow path a chunk would wait for minutes in the kernel of a lane, where nobody can overtake it.
        """
        most_bytes = max(self.bytes_per_s / 2, LEAST_BYTES)
        return self.idle and (len(self.carries) < FEWEST or self.carried_bytes < most_bytes)

    @property
    def busy(self) -> bool:
        """Whether it stands and something of it is not acknowledged, by TCP or by the receiver."""
        return self.state == "open" and (bool(self.carries) or self.acked_bytes < self.pushed_bytes)

    def open(self) -> None:
        """Connect, now or when the last attempt is long enough ago; again and again while that is wanted."""
        if self.state != "closed" or self._timer is not None:
            return
        if self._loop.time() >= self._next_s:
            self._attempt()
        else:
            self.settled.clear()
            self._timer = self._loop.call_at(self._next_s, self._attempt)

    def _attempt(self) -> None:
        """Begin to connect. The next attempt is at hand when this one has had its time."""
        self._timer = None
        if self.state == "connecting":
            self._missed("no answer")
        if not self._owner.wanted():
            return
        self.settled.clear()
        self._next_s = self._loop.time() + self._wait_s
        self._wait_s = min(2 * self._wait_s, self._route.probe_max_ns / 1e9)
        self._timer = self._loop.call_at(self._next_s, self._attempt)
        self.state = "connecting"
        try:
            connection = self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._set_up(connection)
            connection.connect(self._route.address)
        except BlockingIOError:
            self._loop.add_writer(connection, self._connected)
        except OSError as error:
            self._missed(str(error))
        else:
            self._connected()

    def _set_up(self, connection: socket.socket) -> None:
        """OSError when the kernel does not take what is asked for."""
        wanted = self._route.congestion_control.encode()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, wanted)
        got = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        if got != wanted:
            raise OSError(f"congestion control is {got.decode()}, not {wanted.decode()}")
        connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_BYTES)
        if self._route.pacing_bps:
            rate = _RATE.pack(self._route.pacing_bps // 8)
            connection.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, rate)
            if connection.getsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, _RATE.size) != rate:
                raise OSError(f"pacing is not {self._route.pacing_bps} bit/s")

    def _connected(self) -> None:
        assert self._socket is not None
        self._loop.remove_writer(self._socket)
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._missed(os.strerror(error))
            return
        self._stop_timer()
        self.state = "open"
        self._ack, self.heard, self._answered = b"", False, False
        self._loop.add_reader(self._socket, self._readable)
        hello = Header(HELLO, "synthetic", self._route.sender, 0, self.number, 0, 0, 0, 0).pack()
        self._parts.append(memoryview(hello))
        self.pushed_bytes, self.moved_ns = len(hello), time.monotonic_ns()
        self.settled.set()
        self._owner.opened()
        self.flush()
        if self.idle:
            self._owner.drained()

    def _missed(self, cause: str) -> None:
        """The attempt came to nothing; the timer is still there for the next one."""
        self._discard()
        self.settled.set()
        self._owner.failed(cause)

    def put(self, data: bytes, ranges: Iterable[tuple[Pages, int, int]], chunk: Chunk | None) -> None:
        """Send bytes, then pages; `chunk` is what they carry."""
        if not self.busy:
            self.moved_ns = time.monotonic_ns()
        pages = list(ranges)
        self._parts.append(memoryview(data))
        self._parts.extend(pages)
        self.pushed_bytes += len(data) + sum(size for _, _, size in pages)
        if chunk is not None:
            self.carries[chunk] = None
            self.carried_bytes += chunk.size_bytes
            chunk.lane = self
        self.flush()

    def let_go(self, chunk: Chunk) -> None:
        """The chunk is acknowledged, or nobody's any more."""
        del self.carries[chunk]
        self.carried_bytes -= chunk.size_bytes
        chunk.lane = None

    def flush(self) -> None:
        """Send until the socket is full or nothing is left."""
        if self._socket is None:
            return
        try:
            while self._parts and self._send(self._parts[0]):
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))
            return
        waiting = bool(self._parts)
        if waiting and not self._writing:
            self._loop.add_writer(self._socket, self._writable)
        elif self._writing and not waiting:
            self._loop.remove_writer(self._socket)
        self._writing = waiting

    def _writable(self) -> None:
        self.flush()
        if self.idle:
            self._owner.drained()

    def _send(self, part: _Part) -> bool:
        """Send of the first part what fits; whether all of it went."""
        assert self._socket is not None
        rest: _Part
        if isinstance(part, memoryview):
            more = socket.MSG_MORE if len(self._parts) > 1 else 0
            sent = self._socket.send(part, more)
            rest, whole = part[sent:], sent == len(part)
        else:
            held, start, size = part
            sent = os.sendfile(self._socket.fileno(), held.descriptor, start, size)
            rest, whole = (held, start + sent, size - sent), sent == size
        if whole:
            self._parts.popleft()
        else:
            self._parts[0] = rest
        return whole

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(256 * ACK_BYTES)
            if not data:
                raise ConnectionResetError("closed by the other side")
            acks, end = self._ack + data, 0
            answers = []
            for end in range(ACK_BYTES, len(acks) + 1, ACK_BYTES):
                answers.append(Ack.unpack(acks[end - ACK_BYTES : end]))
            self._ack = acks[end:]
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            self.close(str(error))
            return
        if answers:
            self.heard, self._answered, self.fruitless = True, True, 0
            self._wait_s, self._next_s = self._route.probe_ns / 1e9, 0.0
        for answer in answers:
            self._owner.acknowledged(answer)

    def sample(self) -> tcp_info.TcpInfo | None:
        """Read TCP_INFO unless nothing has moved since everything was acknowledged."""
        if self._socket is None or self.state != "open" or self.acked_bytes >= self.pushed_bytes:
            return None
        info = tcp_info.read(self._socket)
        self.acked_bytes, self.retrans_bytes = info.bytes_acked, info.bytes_retrans
        self.busy_s = info.busy_s
        return info

    def abort(self, cause: str) -> None:
        """Break it off with a reset, so that the kernel forgets what it still had to send."""
        assert self._socket is not None
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close(cause)

    def close(self, cause: str) -> None:
        """Close the connection that stands, and say so."""
        self._discard()
        self.fruitless += not self._answered
        self._owner.closed(self, cause)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _discard(self) -> None:
        """Close the socket, if there is one."""
        self.state = "closed"
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._socket = None
        self.closed_acked_bytes += self.acked_bytes
        self.closed_retrans_bytes += self.retrans_bytes
        self.pushed_bytes = self.acked_bytes = self.retrans_bytes = 0
        self.busy_s = 0.0
        self._parts.clear()
        self._writing = False
