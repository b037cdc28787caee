"""The receiving half: reads chunks, checks them, and says when a transfer is complete.

A receiver wakes up for every super-packet unless told to wait for more, and inside User-Mode Linux a
wake-up costs more than the bytes; so each socket's low-water mark is set to what is still to come, at
most LOW_WATER_BYTES.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from xxhash import xxh3_64

from agents.transport.frames import COMPLETE, HEADER_BYTES, REFUSED, Ack, FrameError, Header

LOW_WATER_BYTES = 16 << 20
SCRATCH_BYTES = 32 << 20
CHECKED_BYTES = 1 << 20
"""Verified bytes are read and checked by so many: a fresh page costs more than reading one that is there."""


class Arrival(msgspec.Struct):
    """A transfer as the receiver sees it."""

    id: int
    size_bytes: int
    chunks: int
    received_bytes: int = 0
    received_chunks: int = 0
    checksum_errors: int = 0
    complete_ns: int = 0


class Receiver:
    """Listens for KV. `on_complete` gets each transfer whose every chunk is in and checked,
    `on_refused` each one with a chunk whose checksum is wrong: such a transfer never completes.
    """

    def __init__(self, on_complete: Callable[[Arrival], None], on_refused: Callable[[Arrival], None]) -> None:
        self._on_complete, self._on_refused = on_complete, on_refused
        self._arrivals: dict[int, Arrival] = {}
        self._refused: set[int] = set()
        self.scratch = memoryview(mmap.mmap(-1, SCRATCH_BYTES))  # read into by verified chunks only

    def listen(self, address: tuple[str, int], congestion_control: str) -> socket.socket:
        """Accept connections on `address`; returns the listening socket.

        They have the congestion control of their senders: dctcp needs it at both ends.
        """
        listener = socket.create_server(address, backlog=256)
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        _Incoming(connection, self)

    def drop(self, transfer: int) -> None:
        """Forget a transfer that will not be completed; chunks that still come are not counted."""
        self._arrivals.pop(transfer, None)
        self._refused.add(transfer)

    def chunk(self, header: Header, *, intact: bool) -> Ack | None:
        """Count one chunk; an acknowledgement when it decides the fate of its transfer."""
        if header.transfer in self._refused:
            return None
        arrival = self._arrivals.get(header.transfer)
        if arrival is None:
            arrival = Arrival(header.transfer, header.transfer_bytes, header.chunks)
            self._arrivals[header.transfer] = arrival
        if not intact:
            arrival.checksum_errors += 1
            self._refused.add(header.transfer)
            del self._arrivals[header.transfer]
            self._on_refused(arrival)
            return Ack(REFUSED, arrival.id, arrival.size_bytes)
        arrival.received_chunks += 1
        arrival.received_bytes += header.size_bytes
        if arrival.received_bytes < arrival.size_bytes:
            return None
        del self._arrivals[header.transfer]
        arrival.complete_ns = time.monotonic_ns()
        self._on_complete(arrival)
        return Ack(COMPLETE, arrival.id, arrival.size_bytes)


class _Incoming:
    """One connection: header, chunk, header, chunk, ..."""

    def __init__(self, connection: socket.socket, receiver: Receiver) -> None:
        self._socket, self._receiver = connection, receiver
        self._head = bytearray(HEADER_BYTES)
        self._have = 0
        self._header: Header | None = None
        self._sum = xxh3_64()
        self._low_water = 1
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._readable)
        self._wait_for(HEADER_BYTES)

    def _wait_for(self, size: int) -> None:
        """Sleep until this much is there: never more than is still to come, or the sender waits for us."""
        if size != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._low_water = size

    def _readable(self) -> None:
        try:
            if self._header is None:
                self._read_header()
            else:
                self._read_body()
        except BlockingIOError:
            pass
        except (OSError, FrameError):
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _read_header(self) -> None:
        """Take what is there of a header. Its chunk is seldom there as well, so nobody looks before it is."""
        got = self._socket.recv_into(memoryview(self._head)[self._have :])
        if not got:
            raise ConnectionResetError
        self._have += got
        if self._have < HEADER_BYTES:
            self._wait_for(HEADER_BYTES - self._have)
            return
        self._header, self._have = Header.unpack(self._head), 0
        self._sum.reset()
        self._wait_for(min(self._header.size_bytes, LOW_WATER_BYTES))

    def _read_body(self) -> None:
        """Take what is there of a chunk, then wait for no more than its rest."""
        assert self._header is not None
        left = self._header.size_bytes - self._have
        got = most = 0
        with suppress(BlockingIOError):
            while left and got == most:
                if self._header.verified:
                    most = min(left, CHECKED_BYTES)
                    got = self._socket.recv_into(self._receiver.scratch, most)
                    self._sum.update(self._receiver.scratch[:got])
                else:  # the kernel drops the bytes instead of copying them
                    most = min(left, SCRATCH_BYTES)
                    got = self._socket.recv_into(self._receiver.scratch, most, socket.MSG_TRUNC)
                if not got:
                    raise ConnectionResetError
                self._have += got
                left -= got
        if left:
            self._wait_for(min(left, LOW_WATER_BYTES))
        else:
            self._end_chunk()

    def _end_chunk(self) -> None:
        header, self._header, self._have = self._header, None, 0
        assert header is not None
        intact = not header.verified or self._sum.intdigest() == header.checksum
        self._wait_for(HEADER_BYTES)
        ack = self._receiver.chunk(header, intact=intact)
        if ack is not None:
            self._socket.send(ack.pack())
