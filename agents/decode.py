"""Decode on an instance: KV comes in, and its request joins the batch.

It does so at the first step boundary after its KV is complete and checked, if there is room in the batch, in
the order of arrival.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from agents import config, wire
from agents.batch import Batch, Sequence
from agents.journal import Journal
from agents.kernel_batch import KernelBatch
from agents.prefix_files import LostError, ends
from agents.profiles import COMPRESSIONS, MODELS
from agents.transport.pool import TooLargeError
from agents.transport.receiver import Arrival, Receiver

if TYPE_CHECKING:  # torch is loaded where something is computed, and nowhere else
    from agents.compute.engine import Kernels


class Decode:
    """KV that arrives, and who waits for a place in the batch. `tell` speaks to the router.

    An instance whose profile has no decode (`bs_max` 0) is never asked for any.
    """

    def __init__(
        self,
        settings: config.Config,
        journal: Journal,
        receiver: Receiver,
        tell: Callable[..., None],
        kernels: Kernels | None = None,
    ) -> None:
        self._settings, self._scale = settings, settings.scale
        self._journal, self._receiver, self._tell = journal, receiver, tell
        self._batch = (
            Batch(settings, tell, self._finished, self._admit)
            if kernels is None
            else KernelBatch(settings, kernels, tell, self._finished, self._admit, lost=self._lost)
        )
        self._files = kernels.files if kernels is not None else None
        compression = settings.transport.compression
        self._compression = COMPRESSIONS[compression] if compression else None
        self._expected: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._reserving: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is expected, waiting or in the batch."""
        await self._idle.wait()

    @property
    def decoding(self) -> bool:
        """Whether any request gets tokens."""
        return bool(self._batch)

    def _look_if_idle(self) -> None:
        if self._expected or self._waiting or self._batch:
            self._idle.clear()
        else:
            self._idle.set()

    def expect(self, message: wire.Message) -> None:
        """The KV of a request will come; with `destination_first` the router hears when there is room."""
        number = message["id"]
        self._expected[number] = Sequence(
            number,
            message["output_tokens"],
            message["context_tokens"],
            message["unpack_bytes"],
            kv_tokens=message.get("kv_tokens", 0),
            chain=tuple(message.get("chain", ())),
        )
        if self._settings.transport.handover == "destination_first":
            task = asyncio.create_task(self._reserve(number, message["kv_bytes"]))
            self._reserving.add(task)
            task.add_done_callback(self._reserving.discard)
        self._look_if_idle()

    async def _reserve(self, number: int, size_bytes: int) -> None:
        try:
            if await self._receiver.reserve(number, size_bytes):
                self._tell("reserved", id=number)
        except TooLargeError as error:
            self._receiver.drop(number, f"its KV can never be held: {error}")

    def cancel(self, number: int) -> None:
        """Forget a request and its KV, if it is known here."""
        known = self._expected.pop(number, None) is not None or self._batch.cancel(number)
        waiting = deque(one for one in self._waiting if one.id != number)
        if not known and len(waiting) == len(self._waiting) and not self._receiver.knows(number):
            return
        self._waiting = waiting
        self._receiver.drop(number, "cancelled")
        self._look_if_idle()

    def forget(self) -> None:
        """The router that asked for all this is no more."""
        for number in [*self._expected, *(one.id for one in self._waiting), *self._batch.numbers()]:
            self.cancel(number)

    def slow(self, factor: float) -> None:
        """From now on a step takes so many times what the profile says."""
        self._batch.slow(factor)

    def arrived(self, arrival: Arrival) -> None:
        """The KV of a request is complete."""
        self._journal.note(
            "kv",
            arrival.complete_ns,
            id=config.request_of(arrival.number),
            attempt=config.attempt_of(arrival.number),
            size_bytes=arrival.received_bytes,
            chunks=arrival.received_chunks,
            checksum_errors=arrival.checksum_errors,
            damaged_chunks=arrival.damaged_chunks,
        )
        sequence = self._expected.get(arrival.number)
        if sequence is None:
            self._receiver.release(arrival.number)
            return
        sequence.kv = arrival.data
        if sequence.chain and not self._kept(sequence):
            return
        if sequence.unpack_bytes:
            asyncio.get_running_loop().call_later(self._unpack_s(sequence), self._ready, arrival.number)
        else:
            self._ready(arrival.number)

    def _kept(self, sequence: Sequence) -> bool:
        """Keep the full blocks of what came, before its sender, and so the router, hears that it is here."""
        assert self._files is not None
        assert sequence.kv is not None
        tokens, came = sequence.context_tokens, sequence.kv_tokens
        parts = ends(MODELS[self._settings.model], sequence.kv, tokens, came)
        try:
            self._files.write_rows(sequence.chain, tokens, parts, came)
        except LostError as error:
            del self._expected[sequence.id]
            self._lost(sequence, str(error))
            return False
        return True

    def _lost(self, sequence: Sequence, cause: str) -> None:
        """A request whose KV is here cannot be decoded all the same."""
        sequence.kv = None
        self._receiver.release(sequence.id)
        if not sequence.cancelled:
            self._tell("failed", id=sequence.id, cause=cause)
        self._look_if_idle()

    def _unpack_s(self, sequence: Sequence) -> float:
        assert self._compression is not None
        return sequence.unpack_bytes / self._scale / self._compression.decompress_bytes_per_s

    def _ready(self, number: int) -> None:
        """The request may join the batch, unless it was cancelled."""
        sequence = self._expected.pop(number, None)
        if sequence is not None:
            self._waiting.append(sequence)
            self._batch.join(self._waiting)

    def dropped(self, arrival: Arrival, cause: str) -> None:
        """The KV of a request will not be completed: the receiver, its sender or the router gave it up."""
        number = arrival.number
        self._journal.note(
            "kv_dropped",
            time.monotonic_ns(),
            id=config.request_of(number),
            attempt=config.attempt_of(number),
            received_bytes=arrival.received_bytes,
            checksum_errors=arrival.checksum_errors,
            cause=cause,
        )
        if self._expected.pop(number, None) is not None:
            self._tell("failed", id=number, cause=cause)
        self._look_if_idle()

    def look(self, now_ns: int) -> None:
        """Give up KV of which nothing came for too long."""
        for arrival in self._receiver.stalled(now_ns):
            waited_s = (now_ns - arrival.moved_ns) / 1e9
            self._receiver.drop(arrival.number, f"nothing of its KV came for {waited_s:.1f} s")

    def _admit(self) -> None:
        """The batch may have room."""
        self._batch.join(self._waiting)
        self._look_if_idle()

    def _finished(self, sequence: Sequence) -> None:
        self._receiver.release(sequence.id)
        self._journal.note(
            "decode",
            sequence.joined_ns,
            id=config.request_of(sequence.id),
            attempt=config.attempt_of(sequence.id),
            t_first_ns=sequence.first_ns,
            t_last_ns=sequence.last_ns,
            tokens=sequence.output_tokens,
            **_computed(sequence),
        )


def _computed(sequence: Sequence) -> dict[str, object]:
    """What real kernels have to show."""
    if sequence.token_ids is None:
        return {}
    return {"token_ids": sequence.token_ids, "logits_digest": sequence.logits_digest}
