"""One connection as its receiver sees it: header, chunk, header, chunk, ...

A receiver wakes up for every super-packet unless told to wait for more, and inside User-Mode Linux a
wake-up costs more than the bytes; so each socket's low-water mark is set to what is still to come, at
most LOW_WATER_BYTES.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from xxhash import xxh3_64

from agents.transport import tcp_info
from agents.transport.arrivals import memory
from agents.transport.frames import CHUNK, HEADER_BYTES, HELLO, SEAL, Ack, FrameError, Header

LOW_WATER_BYTES = 16 << 20
SCRATCH_BYTES = 32 << 20
CHECKED_BYTES = 1 << 20
"""Bytes are read and checked by so many: a fresh page costs more than reading one that is there."""


@lru_cache(maxsize=1)
def _scratch() -> memoryview:
    """Read into by verified chunks only."""
    return memoryview(mmap.mmap(-1, SCRATCH_BYTES))


class Owner(Protocol):
    """Who makes something of what comes in."""

    def keeps(self, header: Header) -> bool:
        """Whether the bytes of a chunk that begins are wanted; asked of `tensors` only."""

    def chunk(self, header: Header, data: memoryview | None = None, *, intact: bool) -> Ack:
        """A whole chunk is there, with its bytes if they were wanted."""

    def control(self, header: Header, incoming: Incoming) -> Ack | None:
        """A frame without a chunk is there; an answer, if there is one yet."""

    def closed(self, incoming: Incoming) -> None:
        """The connection is gone."""


class Incoming:
    """Reads frames from one connection, and writes answers to it."""

    def __init__(self, connection: socket.socket, owner: Owner) -> None:
        self._socket, self._owner = connection, owner
        self._head = bytearray(HEADER_BYTES)
        self._have = 0
        self._header: Header | None = None
        self._sum = xxh3_64()
        self._buffer = memoryview(b"")
        """For one chunk of `tensors`: nobody has its bytes before they were checked."""
        self._data: memoryview | None = None
        """Where in it the present chunk goes; None: its bytes are not wanted."""
        self._low_water = 1
        self._out = b""
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._readable)
        self._wait_for(HEADER_BYTES)

    @property
    def received_bytes(self) -> int:
        """What the kernel has got, of chunks that are not whole too."""
        return tcp_info.received_bytes(self._socket) if self._open else 0

    @property
    def _checked(self) -> bool:
        """Whether the present chunk is read and summed up, not dropped."""
        return self._data is not None or (self._header is not None and self._header.payload == "verified")

    def answer(self, ack: Ack) -> None:
        """Write an answer, behind those that wait because the sender does not read them."""
        if not self._open:
            return
        waiting = bool(self._out)
        self._out += ack.pack()
        if not waiting:
            self._write()
            if self._out:
                self._loop.add_writer(self._socket, self._write)

    def close(self) -> None:
        """Close the connection; what has come of a chunk does not count."""
        if self._open:
            self._open, self._out = False, b""
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._owner.closed(self)

    def _write(self) -> None:
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._out:
            self._loop.remove_writer(self._socket)

    def _wait_for(self, size: int) -> None:
        """Sleep until this much is there: never more than is still to come, or the sender waits for us."""
        if size != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._low_water = size

    def _readable(self) -> None:
        try:
            if self._header is None:
                while self._read_header():
                    pass
            else:
                self._read_body()
        except BlockingIOError:
            pass
        except (OSError, FrameError):
            self.close()

    def _read_header(self) -> bool:
        """Take what is there of a header; whether another one is likely to be there as well.

        A chunk is seldom there with its header, so nobody looks before it is.
        """
        got = self._socket.recv_into(memoryview(self._head)[self._have :])
        if not got:
            raise ConnectionResetError
        self._have += got
        if self._have < HEADER_BYTES:
            self._wait_for(HEADER_BYTES - self._have)
            return False
        header, self._have = Header.unpack(self._head), 0
        if header.kind == CHUNK:
            self._header = header
            self._sum.reset()
            if header.payload == "tensors" and self._owner.keeps(header):
                self._data = self._room(header.size_bytes)
            self._wait_for(min(header.size_bytes, LOW_WATER_BYTES))
            return False
        self._wait_for(HEADER_BYTES)
        ack = self._owner.control(header, self)
        if ack is not None:
            self.answer(ack)
        return header.kind in (HELLO, SEAL)

    def _room(self, size_bytes: int) -> memoryview:
        if len(self._buffer) < size_bytes:
            self._buffer = memory(size_bytes)
        return self._buffer[:size_bytes]

    def _read_body(self) -> None:
        """Take what is there of a chunk, then wait for no more than its rest."""
        assert self._header is not None
        left = self._header.size_bytes - self._have
        got = most = 0
        with suppress(BlockingIOError):
            while left and got == most:
                if self._checked:
                    most = min(left, CHECKED_BYTES)
                    place = _scratch() if self._data is None else self._data[self._have :]
                    got = self._socket.recv_into(place, most)
                    self._sum.update(place[:got])
                else:  # the kernel drops the bytes instead of copying them
                    most = min(left, SCRATCH_BYTES)
                    got = self._socket.recv_into(_scratch(), most, socket.MSG_TRUNC)
                if not got:
                    raise ConnectionResetError
                self._have += got
                left -= got
        if left:
            self._wait_for(min(left, LOW_WATER_BYTES))
        else:
            self._end_chunk()

    def _end_chunk(self) -> None:
        header, data = self._header, self._data
        assert header is not None
        intact = not self._checked or self._sum.intdigest() == header.checksum
        self._header, self._data, self._have = None, None, 0
        self._wait_for(HEADER_BYTES)
        self.answer(self._owner.chunk(header, data, intact=intact))
