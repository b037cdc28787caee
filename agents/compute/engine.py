"""What an instance computes with: one model, and one thread beside the event loop that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from xxhash import xxh3_64

from agents import config
from agents.cache.pool import BLOCK_TOKENS
from agents.compute.cache import Cache
from agents.compute.model import START_TOKEN, Model
from agents.prefix_files import NO_REUSE, PrefixFiles, Reuse, ends
from agents.profiles import MODELS
from agents.shapes import SHAPES

T = TypeVar("T")
THREADS = 1
"""Of torch on the CPU: with another number sums are made in another order, and have other bits."""


class Prompt:
    """A prompt that is being computed, layer by layer; the KV of its last `kv_tokens` is to cross.

    Raises:
        LostError: what it starts from cannot be read.
    """

    def __init__(
        self, model: Model, tokens: Sequence[int], kv_tokens: int, reuse: Reuse, files: PrefixFiles | None
    ) -> None:
        self.cache = Cache(model.shape, model.device)
        self._tokens, self._kv_tokens = len(tokens), kv_tokens
        self._reuse, self._files = reuse, files
        if reuse.cached_tokens:
            assert files is not None
            parts = files.read(reuse.chain, reuse.cached_tokens, reuse.cached_tokens)
            for layer, part in enumerate(parts):
                self.cache.fill(layer, part, reuse.cached_tokens)
        self._states = {length: Cache(model.shape, model.device) for length in reuse.state_tokens}
        self._layers = model.prefill(tokens, self.cache, self._states)

    def compute(self, layers: range) -> bytes:
        """Compute the next layers; their KV, as it crosses. With the last one new blocks and states are in
        the cluster's files, before anybody can hear that they are computed.

        Raises:
            LostError: there is no room for them.
        """
        for layer in layers:
            assert next(self._layers) == layer
        if layers.stop == len(self.cache.layers) and self._files is not None:
            self._keep(self._files)
        return b"".join(self.cache.pack(layer, self._kv_tokens) for layer in layers)

    def _keep(self, files: PrefixFiles) -> None:
        chain, new_tokens = self._reuse.chain, self._tokens - self._reuse.cached_tokens
        ends = [self.cache.pack(layer, new_tokens) for layer in range(len(self.cache.layers))]
        files.write_rows(chain, self._tokens, ends, new_tokens)
        for length, states in self._states.items():
            held = [layer for layer, one in enumerate(states.layers) if one.tokens]
            files.write_states(chain, length, {layer: states.pack(layer, 0) for layer in held})


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
        self.files = PrefixFiles(settings) if settings.compute.prefixes else None
        """Its cluster's cached prefixes, where there are any."""
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in the thread, behind whatever is being done there."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def warm_up(self, tokens: int) -> None:
        """Compute a prompt of so many tokens and a step behind it, twice, for nothing.

        What is computed first gets its memory from the kernel, page by page: a quarter more time.
        """
        for _ in range(2):
            cache = Cache(self.model.shape, self.model.device)
            for _ in self.model.prefill([START_TOKEN] * tokens, cache):
                pass
            self.step([Answer(cache)])

    def prompt(self, tokens: Sequence[int], kv_tokens: int, reuse: Reuse = NO_REUSE) -> Prompt:
        """A prompt to compute, see `Prompt`."""
        return Prompt(self.model, tokens, kv_tokens, reuse, self.files)

    def answer(self, kv: memoryview, tokens: int, kv_tokens: int, chain: Sequence[int] = ()) -> Answer:
        """An answer to a prompt of `tokens`, of whose last `kv_tokens` the KV has arrived. What is before
        them is in the files, as blocks of `chain`. `kv` is not needed any more afterwards.

        Raises:
            LostError: that cannot be read.
        """
        cache, held = Cache(self.model.shape, self.model.device), tokens - kv_tokens
        if held:
            assert self.files is not None
            whole = held + -held % BLOCK_TOKENS
            for layer, rows in enumerate(self.files.read_rows(chain, whole, whole)):
                if rows:
                    cache.fill(layer, rows, whole)
        for layer, part in enumerate(ends(MODELS[self.model.shape.name], kv, tokens, kv_tokens)):
            cache.fill(layer, part, tokens)
        return Answer(cache)

    def step(self, answers: Sequence[Answer]) -> None:
        """One more token for each."""
        tokens, logits = self.model.step([one.next for one in answers], [one.cache for one in answers])
        for answer, token, bits in zip(answers, tokens, logits, strict=True):
            answer.take(token, bits)
