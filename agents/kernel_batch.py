"""The batch of a decode instance with real kernels: a step takes what it takes, and leaves tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agents import config
from agents.batch import Sequence, next_told
from agents.prefix_files import LostError
from agents.profiles import find

if TYPE_CHECKING:  # torch is loaded where something is computed, and nowhere else
    from agents.compute.engine import Answer, Kernels


class _Running(msgspec.Struct):
    sequence: Sequence
    answer: Answer | None = None


class KernelBatch:
    """As `agents.batch.Batch`: the same calls, and the same that `tell`, `finished` and `woke` hear.

    What joins does so before the next step. A request's KV is read into tensors when it joins; `lost` hears
    of one whose cached prefix cannot be read, and why.
    """

    def __init__(
        self,
        settings: config.Config,
        kernels: Kernels,
        tell: Callable[..., None],
        finished: Callable[[Sequence], None],
        woke: Callable[[], None],
        *,
        lost: Callable[[Sequence, str], None],
    ) -> None:
        self._kernels, self._tell, self._finished, self._woke = kernels, tell, finished, woke
        self._lost = lost
        self._bs_max = find(settings.me.profile, settings.profiles).bs_max
        self._interval = settings.stream_interval_tokens
        self._running: dict[int, _Running] = {}
        self._slowness = 1.0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Places that are taken; by cancelled requests, too, until the step is over."""
        return len(self._running)

    def numbers(self) -> list[int]:
        """The jobs in the batch."""
        return list(self._running)

    def cancel(self, number: int) -> bool:
        """Let a job get no more tokens; whether it is here."""
        running = self._running.get(number)
        if running is None:
            return False
        running.sequence.cancelled = True
        return True

    def slow(self, factor: float) -> None:
        """From now on a step takes so many times what it would."""
        self._slowness = factor

    def join(self, waiting: deque[Sequence]) -> None:
        """Take from the left of `waiting` as many as there is room for."""
        while waiting and len(self._running) < self._bs_max:
            sequence = waiting.popleft()
            self._running[sequence.id] = _Running(sequence)
        if self._running and self._task is None:
            self._task = asyncio.create_task(self._steps())
            self._task.add_done_callback(lambda task: task.result())

    async def _steps(self) -> None:
        """Step after step, as long as there is somebody in the batch."""
        while self._running:
            start_ns = time.monotonic_ns()
            batch = [
                one
                for one in list(self._running.values())
                if not one.sequence.cancelled and await self._ready(one, start_ns)
            ]
            answers = [one.answer for one in batch if one.answer is not None]
            if answers:
                await self._kernels.run(partial(self._kernels.step, answers))
            took_s = (time.monotonic_ns() - start_ns) / 1e9
            await asyncio.sleep((self._slowness - 1) * took_s)
            self._stepped(batch, time.monotonic_ns())
        self._task = None

    async def _ready(self, running: _Running, now_ns: int) -> bool:
        """Whether a request can go on; its KV is read before its first step."""
        sequence = running.sequence
        if running.answer is not None:
            return True
        sequence.joined_ns = now_ns
        assert sequence.kv is not None
        read = partial(
            self._kernels.answer,
            sequence.kv,
            sequence.context_tokens,
            sequence.kv_tokens,
            sequence.chain,
        )
        try:
            running.answer, sequence.kv = await self._kernels.run(read), None
        except LostError as error:
            del self._running[sequence.id]
            self._lost(sequence, str(error))
            return False
        return True

    def _stepped(self, batch: list[_Running], now_ns: int) -> None:
        """Tell of tokens that are due; let go of who has all of them, or was cancelled."""
        items: list[list[object]] = []
        for running in batch:
            sequence, answer = running.sequence, running.answer
            assert answer is not None
            sequence.had += 1
            if sequence.cancelled or sequence.had < next_told(sequence, self._interval):
                continue
            if not sequence.told:
                sequence.first_ns = now_ns
            new, sequence.told = answer.token_ids[sequence.told :], sequence.had
            last = sequence.had == sequence.output_tokens
            items.append([sequence.id, sequence.had, last, new])
            if last:
                sequence.last_ns, sequence.token_ids = now_ns, answer.token_ids
                sequence.logits_digest = answer.logits_digest
                del self._running[sequence.id]
                self._finished(sequence)
        for number in [number for number, one in self._running.items() if one.sequence.cancelled]:
            del self._running[number]
        if items:
            self._tell("tokens", items=items)
        self._woke()
