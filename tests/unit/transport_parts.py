"""What tests of the transport are made of: a sender, a receiver that remembers, a proxy that does harm."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any, Self, cast

from agents.transport.frames import Ack
from agents.transport.incoming import Incoming
from agents.transport.receiver import Arrival, Receiver, ReceiverSettings
from agents.transport.sender import Sender, SenderSettings, Transfer, TransferError

PROJECT = Path(__file__).resolve().parents[2]
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
CHUNK = 1 << 18
MS = 1_000_000
WAIT_S = 20
PEER = "decode"

Address = tuple[str, int]


class Source:
    """A sender that is ticked, and what it has told of its connections."""

    def __init__(self, **settings: Any) -> None:
        usual: dict[str, Any] = {
            "name": "prefill",
            "connections": 4,
            "chunk_bytes": CHUNK,
            "payload": "synthetic",
            "transfer_ns": 150 * MS,
            "lease_ns": 5000 * MS,
            "tick_ns": 100 * MS,
            "probe_ns": 20 * MS,
            "probe_max_ns": 80 * MS,
        }
        self.connections: list[tuple[str, bool, int, str]] = []
        self.sender = Sender(
            SenderSettings(**(usual | settings)), lambda *told: self.connections.append(told)
        )

    def aim(self, address: Address, peer: str = PEER, **how: Any) -> None:
        """Say where a peer listens."""
        self.sender.add_peer(peer, address, **({"congestion_control": CONGESTION_CONTROL} | how))

    async def send(self, number: int, sizes: list[int], peer: str = PEER, priority: float = 0.0) -> Transfer:
        """Push a whole transfer, group by group."""
        transfer = self.sender.begin(number, peer, sizes, priority=priority)
        for layer, size in enumerate(sizes):
            self.push(transfer, layer, size)
            await asyncio.sleep(0)
        return transfer

    def push(self, transfer: Transfer, layer: int, size: int) -> None:
        """Push a group of layers, with bytes of its own where the payload has some."""
        data = produced(transfer.number, layer, size) if transfer.payload == "tensors" else None
        self.sender.push(transfer, layer, size, data)

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Tick now and then; at the end every connection is closed."""
        task = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.break_off()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            self.sender.tick(time.monotonic_ns())

    def break_off(self) -> None:
        """Close every connection of a sender; the receiver closes its ends in turn."""
        for peer in self.sender._peers.values():
            for lane in peer.lanes:
                lane._stop_timer()
                lane._discard()


def produced(number: int, layer: int, size: int) -> bytes:
    """What the producer of a transfer makes of a group of layers."""
    return random.Random(number << 8 | layer).randbytes(size)


async def end_of(transfer: Transfer) -> str:
    """How a transfer ended: empty, or the cause."""
    try:
        await transfer.over
    except TransferError as error:
        return str(error)
    return ""


class Sink:
    """A receiver and what it has told."""

    def __init__(self, **settings: Any) -> None:
        self.complete: list[Arrival] = []
        self.dropped: list[tuple[int, str]] = []
        self.held: list[tuple[int, int]] = []
        self.receiver = Receiver(
            ReceiverSettings(**settings),
            self.complete.append,
            lambda arrival, cause: self.dropped.append((arrival.number, cause)),
            lambda held_bytes, count: self.held.append((held_bytes, count)),
        )

    @property
    def numbers(self) -> list[int]:
        """What is complete, in order of number."""
        return sorted(arrival.number for arrival in self.complete)

    @asynccontextmanager
    async def listening(self, address: Address = ("127.0.0.1", 0)) -> AsyncIterator[Address]:
        """Serve; at the end every connection that was accepted is closed."""
        listener = self.receiver.listen(address, "cubic")
        loop = asyncio.get_running_loop()
        try:
            yield listener.getsockname()
        finally:
            loop.remove_reader(listener)
            listener.close()
            for incoming in self.accepted():
                incoming.close()

    def accepted(self) -> list[Incoming]:
        """The receiver's ends of the connections that the running loop watches."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.SelectorEventLoop)
        readers = [key.data[0] for key in loop._selector.get_map().values()]  # type: ignore[attr-defined]
        owners = [getattr(reader._callback, "__self__", None) for reader in readers if reader is not None]
        return [one for one in owners if isinstance(one, Incoming) and one._owner is self.receiver]


class Line:
    """The end of a connection that answers go to."""

    def __init__(self) -> None:
        self.answers: list[Ack] = []

    @property
    def end(self) -> Incoming:
        """As the receiver knows it."""
        return cast("Incoming", self)

    def answer(self, ack: Ack) -> None:
        self.answers.append(ack)


class Proxy:
    """Carries connections to a target, until it is told to do something else."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.passed_bytes = 0
        """Forward."""
        self.flow = asyncio.Event()
        self.flow.set()
        self.answers = True
        """Whether anything goes back."""
        self.flip_at: int | None = None
        """Which byte of the next connection is changed on its way there."""
        self.on_passed: Callable[[], None] = lambda: None
        self._pairs: list[list[asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pairs(self) -> int:
        """Connections that stand."""
        return len(self._pairs)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 16)
        for one in server.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        async with server:
            yield server.sockets[0].getsockname()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.cut()
            await asyncio.sleep(0.01)  # the loop closes them on its next turns

    def cut(self, count: int = 1 << 30) -> None:
        """Reset the oldest connections, both ways."""
        gone, self._pairs = self._pairs[:count], self._pairs[count:]
        for writer in [writer for pair in gone for writer in pair]:
            connection = writer.get_extra_info("socket")
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self.target, limit=1 << 16)
        except OSError:
            writer.transport.abort()
            return
        pair = [writer, back]
        self._pairs.append(pair)
        flip_at, self.flip_at = self.flip_at, None
        for pump in (self._pump(reader, pair, 1, flip_at), self._pump(there, pair, 0, None)):
            self._tasks.add(asyncio.create_task(pump))

    async def _pump(
        self, reader: asyncio.StreamReader, pair: list[asyncio.StreamWriter], way: int, flip_at: int | None
    ) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(await reader.read(1 << 16)):
                await self.flow.wait()
                if flip_at is not None and passed <= flip_at < passed + len(data):
                    data[flip_at - passed] ^= 1
                passed += len(data)
                if way == 0 and not self.answers:
                    continue
                pair[way].write(data)
                if way == 1:
                    self.passed_bytes += len(data)
                    self.on_passed()
                await pair[way].drain()
        if pair in self._pairs:
            self._pairs.remove(pair)
        for writer in pair:
            writer.close()


class Bench(AbstractAsyncContextManager["Bench"]):
    """A source and a sink with a proxy between them."""

    def __init__(self, sink: dict[str, Any] | None = None, **source: Any) -> None:
        self._settings = sink or {}
        self.source = Source(**source)
        self.sender = self.source.sender

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.sink = Sink(**self._settings)
            self.receiver = self.sink.receiver
            self.proxy = Proxy(await stack.enter_async_context(self.sink.listening()))
            self.source.aim(await stack.enter_async_context(self.proxy.listening()))
            await stack.enter_async_context(self.source.ticking())
            await stack.enter_async_context(asyncio.timeout(WAIT_S))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *what: object) -> None:
        await self._stack.__aexit__(*what)  # type: ignore[arg-type]

    def causes(self) -> list[str]:
        """Why connections closed."""
        return [cause for _, opened, _, cause in self.source.connections if not opened]


RECEIVER = """
import asyncio
import sys
from agents.transport.receiver import Receiver, ReceiverSettings
async def main():
    receiver = Receiver(ReceiverSettings(), lambda _: None, lambda *_: None)
    print(receiver.listen(("127.0.0.1", int(sys.argv[1])), "cubic").getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def started_receiver(port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A receiver in a process of its own, and its port; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER, str(port)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that tells nobody."""
    while not condition():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.005)
