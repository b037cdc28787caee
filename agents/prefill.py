"""Prefill on an instance: one request at a time, in the order given, its KV handed over while it computes.

Layers leave in groups of `transport.layer_group`, each as soon as its last layer is computed.

Compute replays a profile: T_prefill(tokens), and each layer is finished where the profile says, or layer i of
n at i/n of that. Compressing the KV takes time of the same GPUs, evenly over the layers.

KV is held in a bounded pool from before it is computed until the receiver has it, or it is given up: where
there is no room the next request waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agents import config, wire
from agents.journal import Journal
from agents.prefix_files import LostError, Reuse
from agents.profiles import COMPRESSIONS, MODELS, find
from agents.transport.pool import Pool, TooLargeError
from agents.transport.sender import Sender, Transfer, TransferError

if TYPE_CHECKING:  # torch is loaded where something is computed, and nowhere else
    from agents.compute.engine import Kernels, Prompt

Use = Literal["kv", "cache"]


class Job(msgspec.Struct):
    """What an instance is asked to compute, or to send from its cache."""

    message: wire.Message
    queued_ns: int
    task: asyncio.Task[None] | None = None
    """While it is computed."""
    transfer: Transfer | None = None
    told_ns: int = 0
    """When the router last heard that its transfer moves."""
    cancelled: bool = False


class Prefill:
    """The queue of an instance, and the KV that leaves it. `tell` speaks to the router, `on_sent` is called
    whenever something was handed over to be sent.
    """

    def __init__(
        self,
        settings: config.Config,
        journal: Journal,
        sender: Sender,
        tell: Callable[..., None],
        on_sent: Callable[[], None],
        *,
        kernels: Kernels | None = None,
    ) -> None:
        self._settings, self._journal, self._sender = settings, journal, sender
        self._tell, self._on_sent, self._kernels = tell, on_sent, kernels
        self._profile = find(settings.me.profile, settings.profiles)
        self._model = MODELS[settings.model]
        compression = settings.transport.compression
        self._compression = COMPRESSIONS[compression] if compression else None
        layers, group = len(self._model.layers), settings.transport.layer_group
        self._groups = [range(first, min(first + group, layers)) for first in range(0, layers, group)]
        self._clusters = {peer.name: peer.cluster for peer in settings.instances()}
        self._pool = Pool(settings.transport.send_pool_bytes, self._note_held)
        self._queue: asyncio.PriorityQueue[tuple[float, int, int]] = asyncio.PriorityQueue()
        self._taken = 0
        self._jobs: dict[int, Job] = {}
        self._computing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.slowness = 1.0
        """How many times as long everything takes."""

    def open_pools(self) -> None:
        """Connect to every decode instance, beside everything else."""
        for peer in self._settings.having("decode"):
            self._beside(self._sender.connect(peer.name))

    def take(self, message: wire.Message) -> None:
        """Queue one request, behind those of a lower order and those of the same that came before."""
        self._begin_work(message)
        self._taken += 1
        self._queue.put_nowait((message["order_s"], self._taken, message["id"]))

    def ship(self, message: wire.Message) -> None:
        """Send cached KV to another instance, at once and beside the computing."""
        job = self._begin_work(message)
        try:
            parts = self._cached(message)
        except LostError as error:
            self._tell("failed", id=message["id"], cause=str(error))
            self._end_work(message["id"])
            return
        sizes = self._sizes(message)
        transfer = self._announce(job, message["to"], "cache", sizes, time.monotonic_ns())
        for one, size, part in zip(self._groups, sizes, parts, strict=True):
            self._push(transfer, "cache", one.stop - 1, size, part)

    def cancel(self, number: int) -> None:
        """Forget a job, wherever it is: nothing of it is computed or sent any more."""
        job = self._jobs.get(number)
        if job is None:
            return
        job.cancelled = True
        if job.task is not None:
            job.task.cancel()
        if job.transfer is not None:
            self._sender.drop(number, "cancelled")

    def forget(self) -> None:
        """The router that asked for all this is no more."""
        for number in list(self._jobs):
            self.cancel(number)

    def beat(self) -> dict[str, Any]:
        """Signs of life for the router: whether anything is computed, and the transfers that have moved."""
        moved = []
        for number, job in self._jobs.items():
            if job.transfer is not None and job.transfer.moved_ns > job.told_ns:
                job.told_ns = job.transfer.moved_ns
                moved.append(number)
        return {"computing": self._computing, "moved": moved}

    async def idle(self) -> None:
        """Wait until nothing is queued, computed or on its way."""
        await self._idle.wait()

    def _begin_work(self, message: wire.Message) -> Job:
        self._idle.clear()
        job = self._jobs[message["id"]] = Job(message, time.monotonic_ns())
        return job

    def _end_work(self, number: int) -> None:
        self._jobs.pop(number)
        if not self._jobs:
            self._idle.set()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the next request; the loop itself would not keep hold of it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def compute(self) -> None:
        """Take requests from the queue, one after the other, for ever."""
        while True:
            _, _, number = await self._queue.get()
            job = self._jobs[number]
            if not job.cancelled:
                task = job.task = asyncio.create_task(self._prefill(job))
                await asyncio.wait({task})
                job.task = None
                if not task.cancelled():
                    task.result()
            if job.transfer is None:  # cancelled before there was anything to send
                self._pool.give_back(number)
                self._end_work(number)

    async def _prefill(self, job: Job) -> None:
        """Compute one request; its KV may still be on its way when this returns."""
        message = job.message
        number = message["id"]
        sizes = self._sizes(message)
        more_ns = 0
        if message["compress"]:
            assert self._compression is not None
            more_ns = round(sum(sizes) / self._settings.scale / self._compression.compress_bytes_per_s * 1e9)
            sizes = [max(1, round(size / self._compression.ratio)) if size else 0 for size in sizes]
        try:
            await self._pool.wait(number, sum(sizes))
        except TooLargeError as error:
            self._tell("failed", id=number, cause=f"its KV can never be held: {error}")
            return
        start_ns = time.monotonic_ns()
        self._computing = True
        try:
            parts: AsyncIterator[bytes | None] = (
                self._replayed(message["tokens"], start_ns, more_ns)
                if self._kernels is None
                else self._computed(self._kernels, await self._prompt(self._kernels, message))
            )
            transfer = self._announce(job, message["decode"], "kv", sizes, start_ns)
            await self._layers(transfer, sizes, parts)
        except LostError as error:
            self._lost(job, str(error))
            return
        finally:
            self._computing = False
        self._journal.note(
            "prefill",
            job.queued_ns,
            id=config.request_of(number),
            attempt=config.attempt_of(number),
            t_start_ns=start_ns,
            t_end_ns=time.monotonic_ns(),
            tokens=message["tokens"],
            kv_bytes=transfer.size_bytes,
        )
        self._tell("prefilled", id=number)

    async def _layers(self, transfer: Transfer, sizes: list[int], parts: AsyncIterator[bytes | None]) -> None:
        """Hand over group after group of layers, each as it is done; `parts` has their bytes, if any."""
        at_once = "send_after_compute" in self._settings.flaws
        held: list[tuple[int, int, bytes | None]] = []
        groups = iter(zip(self._groups, sizes, strict=True))
        async for data in parts:
            one, size = next(groups)
            held.append((one.stop - 1, size, data))
            if not at_once or one is self._groups[-1]:
                for layer, size_bytes, part in held:
                    self._push(transfer, "kv", layer, size_bytes, part)
                held.clear()

    async def _replayed(self, tokens: int, start_ns: int, more_ns: int) -> AsyncIterator[None]:
        """Each group of layers when the profile says that it is done; `more_ns` is spread over all."""
        ends_ns = self._profile.layer_ends_ns(tokens, len(self._model.layers), more_ns)
        since_ns, done_ns, slowness = start_ns, 0, self.slowness
        for one in self._groups:
            if slowness != self.slowness:
                since_ns, slowness = time.monotonic_ns(), self.slowness
                done_ns = ends_ns[one.start - 1] if one.start else 0
            due_ns = since_ns + round((ends_ns[one.stop - 1] - done_ns) * slowness)
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            yield

    async def _prompt(self, kernels: Kernels, message: wire.Message) -> Prompt:
        """What is to be computed, with what it starts from; LostError when that is not there."""
        tokens = message["prompt"]
        cached_tokens = len(tokens) - message["tokens"]
        reuse = Reuse(tuple(message["chain"]), cached_tokens, tuple(message["state_tokens"]))
        return await kernels.run(partial(kernels.prompt, tokens, message["kv_tokens"], reuse))

    async def _computed(self, kernels: Kernels, prompt: Prompt) -> AsyncIterator[bytes]:
        """The KV of each group of layers, when it is computed."""
        for one in self._groups:
            start_ns = time.monotonic_ns()
            data = await kernels.run(partial(prompt.compute, one))
            await asyncio.sleep((self.slowness - 1) * (time.monotonic_ns() - start_ns) / 1e9)
            yield data

    def _lost(self, job: Job, cause: str) -> None:
        """A request cannot be computed from what is cached, or what was computed cannot be kept."""
        number = job.message["id"]
        if job.transfer is None:
            self._tell("failed", id=number, cause=cause)
        else:
            self._sender.drop(number, cause)

    def _cached(self, message: wire.Message) -> list[bytes | None]:
        """Of each group the bytes of the end of a cached prefix; nothing where books are all there is."""
        if self._kernels is None or self._kernels.files is None:
            return [None] * len(self._groups)
        chain, tokens = message["chain"], message["prompt_tokens"]
        layers = self._kernels.files.read(chain, tokens, message["kv_tokens"])
        return [b"".join(layers[one.start : one.stop]) for one in self._groups]

    def _sizes(self, message: wire.Message) -> list[int]:
        """Bytes of each group: the end of a prompt's KV, with the linear states and windows behind it."""
        tokens, prompt_tokens, scale = message["kv_tokens"], message["prompt_tokens"], self._settings.scale
        return [
            sum(self._model.end_bytes(layer, tokens, prompt_tokens, scale) for layer in one)
            for one in self._groups
        ]

    def _announce(self, job: Job, peer: str, use: Use, sizes: list[int], t_ns: int) -> Transfer:
        number = job.message["id"]
        transfer = self._sender.begin(number, peer, sizes, priority=self._deadline_s(job, peer, sum(sizes)))
        job.transfer = transfer
        self._journal.note(
            "transfer_begin",
            t_ns,
            **self._named(number, use),
            peer=peer,
            use=use,
            wan=self._wan(peer),
            size_bytes=transfer.size_bytes,
            chunks=transfer.chunks,
        )
        self._beside(self._settle(transfer, use))
        self._on_sent()
        return transfer

    def _deadline_s(self, job: Job, peer: str, size_bytes: int) -> float:
        """When a transfer has to begin at the latest for its first token to be in time, at the goodput
        measured so far; 0 where the order is that in which KV is produced. Copies of prefixes come last.
        """
        transport = self._settings.transport
        if transport.priority == "fifo":
            return 0.0
        if job.message["since_ns"] is None:
            return math.inf
        goodput_bps = self._sender.goodput_bps(peer)
        needed_s = size_bytes * 8 / goodput_bps if goodput_bps else 0.0
        return float(job.message["since_ns"] + transport.ttft_target_ns) / 1e9 - needed_s

    def _push(
        self, transfer: Transfer, use: Use, layer: int, size_bytes: int, data: bytes | None = None
    ) -> None:
        if transfer.over.done():
            return
        self._sender.push(transfer, layer, size_bytes, data)
        self._journal.note(
            "produced",
            time.monotonic_ns(),
            **self._named(transfer.number, use),
            use=use,
            layer=layer,
            size_bytes=size_bytes,
        )
        self._on_sent()

    def _named(self, number: int, use: Use) -> dict[str, int]:
        if use == "cache":
            return {"id": number, "attempt": 0}
        return {"id": config.request_of(number), "attempt": config.attempt_of(number)}

    def _wan(self, peer: str) -> bool:
        return self._settings.me.cluster != self._clusters[peer]

    async def _settle(self, transfer: Transfer, use: Use) -> None:
        """Note how the transfer ended, and tell the router; what is still computed of a failed one stops."""
        number, cause = transfer.number, None
        try:
            await transfer.over
        except TransferError as error:
            cause = str(error)
        job = self._jobs[number]
        if cause is None:
            self._tell("sent", id=number)
        elif not job.cancelled:
            self._tell("failed", id=number, cause=cause)
            if job.task is not None:
                job.task.cancel()
        self._journal.note(
            "transfer",
            transfer.started_ns,
            **self._named(number, use),
            peer=transfer.peer,
            use=use,
            wan=self._wan(transfer.peer),
            size_bytes=transfer.size_bytes,
            chunks=transfer.chunks,
            t_end_ns=time.monotonic_ns(),
            state="failed" if cause else "completed",
            cause=cause,
            produced_bytes=transfer.produced_bytes,
            acked_bytes=transfer.acked_bytes,
            resent_bytes=transfer.resent_bytes,
        )
        if cause is None or "no_lease" not in self._settings.flaws:
            self._pool.give_back(number)
        self._end_work(number)

    def _note_held(self, held_bytes: int, count: int) -> None:
        self._journal.note("held", time.monotonic_ns(), pool="send", size_bytes=held_bytes, transfers=count)
