"""A prefill instance: one request at a time, its KV handed over while it computes.

Layers leave in groups of `transport.layer_group`, each as soon as its last layer is computed.

Compute replays a profile: layer i of n is finished at i/n of T_prefill(tokens).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from agents import config, wire
from agents.journal import Journal
from agents.profiles import MODELS, PROFILES
from agents.ticks import Ticks
from agents.transport.sender import Sender, Signals, Transfer, TransferError


class Prefill:
    """The instance and its queue."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self._profile = PROFILES[settings.me.profile]
        self._model = MODELS[settings.model]
        self._decodes = {peer.name: peer for peer in settings.having("decode")}
        self._queue: asyncio.Queue[tuple[int, wire.Message]] = asyncio.Queue()
        self._router: wire.Channel | None = None
        self._last: Signals | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = Ticks(settings.scheduling.interval_ns / 1e9, self._report)
        transport = settings.transport
        self._sender = Sender(
            connections=transport.connections,
            chunk_bytes=transport.chunk_bytes,
            verified=transport.payload == "verified",
            congestion_control=transport.congestion_control,
        )

    async def run(self) -> None:
        """Serve until killed."""
        await wire.serve(self._settings.me.address, config.CONTROL_PORT, self._connected, self._take)
        config.say_ready()
        await self._compute()

    def _connected(self, channel: wire.Channel) -> None:
        """The router is there, so every decode instance is: open the connections before they are needed."""
        self._router = channel
        self._beside(self._open_pools())

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the next request; the loop itself would not keep hold of it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_pools(self) -> None:
        for name in sorted(self._decodes):
            with suppress(OSError):  # whoever needs it tries again, and says so
                await self._sender.connect(name, (self._decodes[name].address, config.KV_PORT))

    def _take(self, message: wire.Message) -> None:
        assert message["op"] == "prefill"
        self._queue.put_nowait((time.monotonic_ns(), message))

    def _tell(self, op: str, **fields: object) -> None:
        assert self._router is not None
        self._router.send(op, **fields)

    async def _compute(self) -> None:
        while True:
            queued_ns, message = await self._queue.get()
            await self._prefill(queued_ns, message["id"], message["tokens"], message["decode"])

    async def _prefill(self, queued_ns: int, request: int, tokens: int, decode: str) -> None:
        """Compute one request; its KV may still be on its way when this returns."""
        peer = self._decodes[decode]
        layers = len(self._model.layers)
        group = self._settings.transport.layer_group
        groups = [range(first, min(first + group, layers)) for first in range(0, layers, group)]
        sizes = [
            sum(self._model.layer_bytes(layer, tokens, self._settings.scale) for layer in one)
            for one in groups
        ]
        try:
            await self._sender.connect(decode, (peer.address, config.KV_PORT))
        except OSError as error:
            self._tell("failed", id=request, cause=f"cannot reach {decode}: {error}")
            self._tell("prefilled", id=request)
            return
        start_ns = time.monotonic_ns()
        transfer = self._sender.begin(request, decode, sizes)
        self._journal.note(
            "transfer_begin",
            start_ns,
            id=request,
            peer=decode,
            wan=self._wan(decode),
            size_bytes=transfer.size_bytes,
            chunks=transfer.chunks,
        )
        took_ns = round(self._profile.prefill_s(tokens) * 1e9)
        for one, size in zip(groups, sizes, strict=True):
            due_ns = start_ns + took_ns * one.stop // layers
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            self._sender.push(transfer, one.stop - 1, size)
            if self._settings.me.cluster == "prfaas":
                self._ticks.wake()
        end_ns = time.monotonic_ns()
        self._journal.note(
            "prefill",
            queued_ns,
            id=request,
            t_start_ns=start_ns,
            t_end_ns=end_ns,
            tokens=tokens,
            kv_bytes=transfer.size_bytes,
        )
        self._tell("prefilled", id=request)
        self._beside(self._settle(transfer))

    def _wan(self, decode: str) -> bool:
        return self._settings.me.cluster != self._decodes[decode].cluster

    async def _settle(self, transfer: Transfer) -> None:
        """Note how the transfer ended; tell the router when it failed."""
        cause = None
        try:
            await transfer.over
        except TransferError as error:
            cause = str(error)
            self._tell("failed", id=transfer.id, cause=cause)
        self._journal.note(
            "transfer",
            transfer.started_ns,
            id=transfer.id,
            peer=transfer.peer,
            wan=self._wan(transfer.peer),
            size_bytes=transfer.size_bytes,
            chunks=transfer.chunks,
            t_end_ns=time.monotonic_ns(),
            state="failed" if cause else "completed",
            cause=cause,
        )

    def _report(self) -> bool:
        """Tell the router what the connections say, if something moved; whether something may still move."""
        signals = self._sender.signals()
        if self._router is not None and signals != self._last:
            self._tell("signals", **msgspec.structs.asdict(signals))
        self._last = signals
        return signals.active > 0


def main() -> None:
    """The program."""
    asyncio.run(Prefill(config.from_arguments()).run())
