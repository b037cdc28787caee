"""Prefill on an instance: one request at a time, in the order given, its KV handed over while it computes.

Layers leave in groups of `transport.layer_group`, each as soon as its last layer is computed.

Compute replays a profile: layer i of n is finished at i/n of T_prefill(tokens). Compressing the KV takes time
of the same GPUs, evenly over the layers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal

from agents import config, wire
from agents.journal import Journal
from agents.profiles import COMPRESSIONS, MODELS, PROFILES
from agents.transport.sender import Sender, Transfer, TransferError


class Prefill:
    """The queue of an instance, and the KV that leaves it. `tell` speaks to the router, `on_sent` is called
    whenever KV was handed over for the WAN.
    """

    def __init__(
        self,
        settings: config.Config,
        journal: Journal,
        sender: Sender,
        tell: Callable[..., None],
        on_sent: Callable[[], None],
    ) -> None:
        self._settings, self._journal, self._sender = settings, journal, sender
        self._tell, self._on_sent = tell, on_sent
        self._profile = PROFILES[settings.me.profile]
        self._model = MODELS[settings.model]
        compression = settings.transport.compression
        self._compression = COMPRESSIONS[compression] if compression else None
        self._peers = {peer.name: peer for peer in settings.instances()}
        self._queue: asyncio.PriorityQueue[tuple[float, int, int, wire.Message]] = asyncio.PriorityQueue()
        self._taken = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open_pools(self) -> None:
        """Connect to every decode instance, beside everything else."""
        self._beside(self._open_pools())

    async def _open_pools(self) -> None:
        for peer in self._settings.having("decode"):
            with suppress(OSError):  # whoever needs it tries again, and says so
                await self._sender.connect(peer.name, (peer.address, config.KV_PORT))

    def take(self, message: wire.Message) -> None:
        """Queue one request, behind those of a lower order and those of the same that came before."""
        self._begin_work()
        self._taken += 1
        self._queue.put_nowait((message["order_s"], self._taken, time.monotonic_ns(), message))

    def ship(self, message: wire.Message) -> None:
        """Send cached KV to another instance, at once and beside the computing."""
        self._begin_work()
        self._beside(self._ship(message))

    async def idle(self) -> None:
        """Wait until nothing is queued, computed or on its way."""
        await self._idle.wait()

    def _begin_work(self) -> None:
        self._unfinished += 1
        self._idle.clear()

    def _end_work(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._idle.set()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the next request; the loop itself would not keep hold of it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def compute(self) -> None:
        """Take requests from the queue, one after the other, for ever."""
        while True:
            _, _, queued_ns, message = await self._queue.get()
            await self._prefill(queued_ns, message)

    async def _prefill(self, queued_ns: int, message: wire.Message) -> None:
        """Compute one request; its KV may still be on its way when this returns."""
        request, tokens, decode = message["id"], message["tokens"], message["decode"]
        groups = self._groups()
        sizes = self._sizes(groups, message["kv_tokens"], message["prompt_tokens"])
        took_ns = round(self._profile.prefill_s(tokens) * 1e9)
        if message["compress"]:
            assert self._compression is not None
            took_ns += round(sum(sizes) / self._settings.scale / self._compression.compress_bytes_per_s * 1e9)
            sizes = [max(1, round(size / self._compression.ratio)) if size else 0 for size in sizes]
        if not await self._reach(request, decode):
            self._tell("prefilled", id=request)
            self._end_work()
            return
        start_ns = time.monotonic_ns()
        transfer = self._announce(request, decode, "kv", sizes, start_ns)
        for one, size in zip(groups, sizes, strict=True):
            due_ns = start_ns + took_ns * one.stop // len(self._model.layers)
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            self._push(transfer, one.stop - 1, size)
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
        self._beside(self._settle(transfer, "kv"))

    async def _ship(self, message: wire.Message) -> None:
        """Send the end of a cached prefix, with the linear states and windows behind it."""
        number, to = message["id"], message["to"]
        if not await self._reach(number, to):
            self._end_work()
            return
        groups = self._groups()
        sizes = self._sizes(groups, message["kv_tokens"], message["prompt_tokens"])
        transfer = self._announce(number, to, "cache", sizes, time.monotonic_ns())
        for one, size in zip(groups, sizes, strict=True):
            self._push(transfer, one.stop - 1, size)
        await self._settle(transfer, "cache")

    def _groups(self) -> list[range]:
        layers, group = len(self._model.layers), self._settings.transport.layer_group
        return [range(first, min(first + group, layers)) for first in range(0, layers, group)]

    def _sizes(self, groups: list[range], tokens: int, prompt_tokens: int) -> list[int]:
        scale = self._settings.scale
        return [
            sum(self._model.end_bytes(layer, tokens, prompt_tokens, scale) for layer in one) for one in groups
        ]

    async def _reach(self, transfer: int, peer: str) -> bool:
        """Whether there is a pool of connections to the peer; if not, the router knows."""
        try:
            await self._sender.connect(peer, (self._peers[peer].address, config.KV_PORT))
        except OSError as error:
            self._tell("failed", id=transfer, cause=f"cannot reach {peer}: {error}")
            return False
        return True

    def _announce(
        self, number: int, peer: str, use: Literal["kv", "cache"], sizes: list[int], t_ns: int
    ) -> Transfer:
        transfer = self._sender.begin(number, peer, sizes)
        self._journal.note(
            "transfer_begin",
            t_ns,
            id=number,
            peer=peer,
            use=use,
            wan=self._wan(peer),
            size_bytes=transfer.size_bytes,
            chunks=transfer.chunks,
        )
        return transfer

    def _push(self, transfer: Transfer, layer: int, size_bytes: int) -> None:
        self._sender.push(transfer, layer, size_bytes)
        if self._settings.me.cluster == "prfaas":
            self._on_sent()

    def _wan(self, peer: str) -> bool:
        return self._settings.me.cluster != self._peers[peer].cluster

    async def _settle(self, transfer: Transfer, use: Literal["kv", "cache"]) -> None:
        """Note how the transfer ended, and tell the router."""
        cause = None
        try:
            await transfer.over
        except TransferError as error:
            cause = str(error)
            self._tell("failed", id=transfer.id, cause=cause)
        else:
            self._tell("sent", id=transfer.id)
        self._journal.note(
            "transfer",
            transfer.started_ns,
            id=transfer.id,
            peer=transfer.peer,
            use=use,
            wan=self._wan(transfer.peer),
            size_bytes=transfer.size_bytes,
            chunks=transfer.chunks,
            t_end_ns=time.monotonic_ns(),
            state="failed" if cause else "completed",
            cause=cause,
        )
        self._end_work()
