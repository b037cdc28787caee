"""What an instance computes with: one model, and one thread beside the event loop that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from xxhash import xxh3_64

from agents import config
from agents.compute.cache import Cache
from agents.compute.model import START_TOKEN, Model
from agents.shapes import SHAPES

T = TypeVar("T")
THREADS = 1
"""Of torch on the CPU: with another number sums are made in another order, and have other bits."""


class Prompt:
    """A prompt that is being computed, layer by layer."""

    def __init__(self, model: Model, tokens: Sequence[int]) -> None:
        self.cache = Cache(model.shape, model.device)
        self._tokens = len(tokens)
        self._layers = model.prefill(tokens, self.cache)

    def compute(self, layers: range) -> bytes:
        """Compute the next layers; their KV, as it crosses."""
        for layer in layers:
            assert next(self._layers) == layer
        return b"".join(self.cache.pack(layer, self._tokens) for layer in layers)


class Answer:
    """An answer that grows by a token with each step, from KV that is complete."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.next = START_TOKEN
        self.token_ids: list[int] = []
        self._logits = xxh3_64()

    def take(self, token: int, logits: memoryview) -> None:
        """One step's token, and all of its logits."""
        self.next = token
        self.token_ids.append(token)
        self._logits.update(logits)

    @property
    def logits_digest(self) -> str:
        """Over the logits of all steps so far: xxh3-64 of their bits, as 16 hexadecimal digits."""
        return self._logits.hexdigest()


class Kernels:
    """The model of `settings`, on a GPU where there is one, and everything that is done with it.

    Nothing here may run beside itself: whatever computes goes through `run`.
    """

    def __init__(self, settings: config.Config) -> None:
        assert settings.compute is not None
        torch.set_num_threads(THREADS)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Model(SHAPES[settings.model], seed=settings.compute.seed, device=device)
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in the thread, behind whatever is being done there."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def prompt(self, tokens: Sequence[int]) -> Prompt:
        """A prompt to compute."""
        return Prompt(self.model, tokens)

    def answer(self, kv: memoryview, tokens: int) -> Answer:
        """An answer to a prompt of `tokens` whose KV has arrived; `kv` is not needed any more afterwards."""
        cache, start = Cache(self.model.shape, self.model.device), 0
        for layer, attention in enumerate(self.model.shape.layers):
            size = attention.layer_kv.size_bytes(tokens)
            cache.fill(layer, kv[start : start + size], tokens)
            start += size
        assert start == len(kv)
        return Answer(cache)

    def step(self, answers: Sequence[Answer]) -> None:
        """One more token for each."""
        tokens, logits = self.model.step([one.next for one in answers], [one.cache for one in answers])
        for answer, token, bits in zip(answers, tokens, logits, strict=True):
            answer.take(token, bits)
