"""Instances with real sockets, and the router's ends of the conversations with them, for tests only."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agents.config import CONTROL_PORT, Config
from agents.instance import Instance
from agents.profiles import MODELS
from agents.session import Session
from agents.wire import Message
from tests.unit.agent_config import make_config
from tests.unit.fake_agents import NETWORK

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
WAIT_S = 60
TOKENS, OUTPUT_TOKENS = 64, 8


class Node:
    """One instance, and the router's end of the conversation with it."""

    def __init__(self, settings: Config) -> None:
        self.instance = Instance(settings)
        self.settings = settings
        self.said: list[Message] = []
        self._news = asyncio.Event()
        self._session = self._new_session(1)
        self._running = asyncio.create_task(self.instance.run())

    def _new_session(self, epoch: int) -> Session:
        return Session(
            self.settings.me.address,
            CONTROL_PORT,
            failures=self.settings.failures,
            epoch=epoch,
            congestion_control=CONGESTION_CONTROL,
            handle=self._hear,
            on_up=lambda: None,
            on_down=lambda _cause: None,
            on_restarted=lambda _cause: None,
        )

    async def reach(self) -> None:
        """Connect as the router does, as soon as the instance listens."""
        while self.instance._server._listener is None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        await self._session.open()

    async def meet_another_router(self) -> None:
        """The router's program has ended, and another one has come."""
        self._session.close()
        self.said.clear()
        self._session = self._new_session(2)
        await self._session.open()

    def _hear(self, message: Message) -> None:
        if message["op"] != "beat":
            self.said.append(message)
            self._news.set()

    def tell(self, op: str, **fields: Any) -> None:
        self._session.send(op, **fields)

    async def hear(self, op: str, count: int = 1) -> list[Message]:
        """Wait until it has said something so often; returns all of that."""
        while len(found := [message for message in self.said if message["op"] == op]) < count:
            self._news.clear()
            await self._news.wait()
        return found

    def journal(self, kind: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in Path(self.settings.journal).read_bytes().splitlines()]
        return [line for line in lines if line["kind"] == kind]

    def held_bytes(self) -> int:
        """In both pools."""
        return self.instance.prefill._pool.held_bytes + self.instance._receiver.pool.held_bytes

    async def stop(self) -> None:
        self._session.close()
        self.instance._server.close()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.instance._ticks.stop()
        self.instance._journal.close()


Nodes = dict[str, Node]
Scenario = Callable[[Nodes], Coroutine[Any, Any, None]]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened that nobody tells of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@asynccontextmanager
async def nodes(journal: Path, transport: dict[str, Any], **changes: Any) -> AsyncIterator[Nodes]:
    """All five instances of the small system, in one event loop; nobody operates them."""
    stdin, (nothing, operator) = sys.stdin, os.pipe()
    sys.stdin = os.fdopen(nothing)
    usual = {"congestion_control": CONGESTION_CONTROL, "compression": "cachegen"}
    running: Nodes = {}
    for peer in make_config("router", journal, NETWORK).instances():
        settings = make_config(peer.name, journal, NETWORK)
        how = msgspec.structs.replace(settings.transport, **(usual | transport))
        running[peer.name] = Node(msgspec.structs.replace(settings, transport=how, **changes))
    try:
        for node in running.values():
            await node.reach()
        yield running
    finally:
        for node in running.values():
            await node.stop()
        asyncio.get_running_loop().remove_reader(sys.stdin)
        sys.stdin.close()
        sys.stdin = stdin
        os.close(operator)
        close_what_is_watched(asyncio.get_running_loop())
        await asyncio.sleep(0.01)


def close_what_is_watched(loop: asyncio.AbstractEventLoop) -> None:
    """Listeners for KV, and both ends of its connections: an instance never lets go of them by itself."""
    for key in list(loop._selector.get_map().values()):  # type: ignore[attr-defined]
        if isinstance(key.fileobj, socket.socket) and key.fileobj is not loop._ssock:  # type: ignore[attr-defined]
            loop.remove_reader(key.fileobj)
            loop.remove_writer(key.fileobj)
            key.fileobj.close()


def play_on(
    journal: Path, scenario: Scenario, transport: dict[str, Any] | None = None, **changes: Any
) -> None:
    """Run a scenario against fresh instances; what goes wrong in a callback counts, too."""
    wrong: list[dict[str, Any]] = []

    async def prepared() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        async with asyncio.timeout(WAIT_S), nodes(journal, transport or {}, **changes) as running:
            await scenario(running)

    asyncio.run(prepared())
    assert not wrong, wrong


def kv_bytes(tokens: int = TOKENS) -> int:
    """Of the small system's model, at its scale."""
    return MODELS["internal_1t"].kv_bytes(tokens, 0.001)


def serve(
    prefill: Node,
    decode: Node,
    request: int,
    *,
    tokens: int = TOKENS,
    kv_tokens: int = TOKENS,
    compress: bool = False,
    order_s: float = 0.0,
) -> None:
    """Tell both instances of a request that is made up, as the router does."""
    size_bytes = kv_bytes(kv_tokens)
    tell_both(
        prefill,
        decode,
        expect={
            "id": request,
            "output_tokens": OUTPUT_TOKENS,
            "context_tokens": kv_tokens,
            "kv_bytes": size_bytes,
            "unpack_bytes": size_bytes if compress else 0,
        },
        tokens=tokens,
        kv_tokens=kv_tokens,
        compress=compress,
        order_s=order_s,
    )


def tell_both(
    prefill: Node,
    decode: Node,
    *,
    expect: dict[str, Any],
    tokens: int,
    kv_tokens: int,
    compress: bool = False,
    order_s: float = 0.0,
    **more: Any,
) -> None:
    """What decode has to expect, and what prefill has to compute: prompts of `kv_tokens`, nothing cached."""
    decode.tell("expect", **expect)
    prefill.tell(
        "prefill",
        id=expect["id"],
        tokens=tokens,
        kv_tokens=kv_tokens,
        prompt_tokens=kv_tokens,
        decode=decode.settings.name,
        compress=compress,
        order_s=order_s,
        since_ns=0,
        **more,
    )
