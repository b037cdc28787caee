"""Plain TCP: real connections, real bytes, thrown away at the far end.

Serves tenants, bursts, bulk transfers and the calibration.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import time
from functools import lru_cache

from agents.transport.payload import PAGES_BYTES, synthetic_pages
from testbed import namespaces

LOW_WATER_BYTES = 16 << 20
SCRATCH_BYTES = 32 << 20
SHARE_BYTES = 16 << 20
_INFO_BYTES, _BYTES_RECEIVED = 136, 128
"""Size and place in struct tcp_info (include/uapi/linux/tcp.h)."""


@lru_cache(maxsize=1)
def _scratch() -> memoryview:
    return memoryview(mmap.mmap(-1, SCRATCH_BYTES))


class _Flow:
    """One connection: how much of the transfer it has taken on, still to send and to receive."""

    def __init__(self, source: socket.socket, sink: socket.socket, transfer: Transfer) -> None:
        self._source, self._sink, self._transfer = source, sink, transfer
        self._to_send = self._to_receive = self._received_bytes = 0
        self._low_water = 1
        self.local_end = "{}:{}".format(*source.getsockname())
        loop = asyncio.get_running_loop()
        loop.add_reader(sink, self._receive)
        loop.add_writer(source, self._send)

    def _send(self) -> None:
        try:
            while self._to_send or self._take():
                self._to_send -= os.sendfile(
                    self._source.fileno(), synthetic_pages(), 0, min(self._to_send, PAGES_BYTES)
                )
        except BlockingIOError:
            return
        except OSError as error:
            self._transfer.fail(error)
            return
        asyncio.get_running_loop().remove_writer(self._source)

    def _take(self) -> bool:
        """Take on another share; False when none is left."""
        share = min(SHARE_BYTES, self._transfer.left_bytes)
        self._transfer.left_bytes -= share
        self._to_send += share
        self._to_receive += share
        return share > 0

    def _receive(self) -> None:
        try:
            size = min(self._to_receive, SCRATCH_BYTES)
            got = self._sink.recv_into(_scratch(), size, socket.MSG_TRUNC)
            if not got:
                raise ConnectionResetError
        except BlockingIOError:
            return
        except OSError as error:
            self._transfer.fail(error)
            return
        self._to_receive -= got
        self._transfer.received(got)
        # Sleep until much is there, but never for more than is still to come.
        low_water = max(1, min(self._to_receive, LOW_WATER_BYTES))
        if low_water != self._low_water and self._sink.fileno() >= 0:
            self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water

    def received_bytes(self) -> int:
        """What TCP has received, read or not; once closed, what it had."""
        if self._sink.fileno() < 0:
            return self._received_bytes
        info = self._sink.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0])

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        self._received_bytes = self.received_bytes()
        for end in (self._source, self._sink):
            if end.fileno() >= 0:
                loop.remove_reader(end)
                loop.remove_writer(end)
                end.close()


class Transfer:
    """So many bytes over several connections; each takes on a share whenever it has room for more."""

    def __init__(self, size_bytes: int) -> None:
        self.left_bytes = size_bytes
        self.handshake_ns = 0
        """Shortest time a connection took to open: one round trip, without address resolution."""
        self.flows: list[_Flow] = []
        self._to_receive = size_bytes
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, size_bytes: int) -> None:
        """Count what arrived."""
        self._to_receive -= size_bytes
        if not self._to_receive:
            self._close()
            self._over.set_result(None)

    def fail(self, error: OSError) -> None:
        """A connection broke, and the transfer with it."""
        self._close()
        if not self._over.done():
            self._over.set_exception(error)

    def received_bytes(self) -> int:
        """What has arrived so far."""
        return sum(flow.received_bytes() for flow in self.flows)

    def local_ends(self) -> list[str]:
        """Address and port of every sending socket, as sock_diag has them."""
        return [flow.local_end for flow in self.flows]

    async def finished(self) -> int:
        """Wait until every byte is in; returns the moment (CLOCK_MONOTONIC, ns). OSError when one breaks."""
        await self._over
        return time.monotonic_ns()

    def stop(self) -> None:
        """Break it off."""
        self._close()
        self._over.cancel()

    def _close(self) -> None:
        for flow in self.flows:
            flow.close()


async def start(
    source: str, sink: tuple[str, str], *, flows: int, size_bytes: int, congestion_control: str
) -> Transfer:
    """Open all connections at once and begin; `sink` is host name and address. OSError when one cannot open.

    The listener has the congestion control, too: one that needs ECN (dctcp) negotiates it, and echoes
    marks in its own way, only if both ends have it (kernel: tcp_ecn_create_request, net/ipv4/tcp_dctcp.c).
    """
    with namespaces.entered(sink[0]):
        listener = socket.create_server((sink[1], 0), backlog=flows)
    listener.setblocking(False)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
    transfer = Transfer(size_bytes)
    senders: list[socket.socket] = []
    receivers: dict[tuple[str, int], socket.socket] = {}
    with namespaces.entered(source):
        senders += (socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(flows))
    for sender in senders:
        sender.setblocking(False)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
    openings = [asyncio.create_task(_connect(sender, listener.getsockname())) for sender in senders]
    accepting = asyncio.create_task(_accept(listener, receivers, flows))
    try:
        *handshakes_ns, _ = await asyncio.gather(*openings, accepting)
    except BaseException:  # a cancelled attempt must not leave its sockets behind either
        for task in (*openings, accepting):
            task.cancel()
        await asyncio.gather(*openings, accepting, return_exceptions=True)
        for end in (*senders, *receivers.values()):
            end.close()
        raise
    finally:
        listener.close()
    transfer.handshake_ns = min(handshakes_ns)
    transfer.flows = [_Flow(sender, receivers[sender.getsockname()], transfer) for sender in senders]
    return transfer


async def _connect(sender: socket.socket, address: tuple[str, int]) -> int:
    """Open one connection; the time it took (ns)."""
    begun_ns = time.monotonic_ns()
    await asyncio.get_running_loop().sock_connect(sender, address)
    return time.monotonic_ns() - begun_ns


async def _accept(
    listener: socket.socket, receivers: dict[tuple[str, int], socket.socket], flows: int
) -> int:
    """Accept so many connections, each under its peer's address."""
    while len(receivers) < flows:
        receiver, address = await asyncio.get_running_loop().sock_accept(listener)
        receiver.setblocking(False)
        receivers[address] = receiver
    return 0
