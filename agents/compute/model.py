"""A hybrid model with random weights: prefill layer by layer, and decode steps of a batch.

Layers are pre-norm: x += mixer(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x))). fp32 on the CPU, bf16
elsewhere. The KV cache is bf16, and prefill, too, looks at what was rounded to it, so that decode sees the
same.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from agents.compute.cache import Cache, FullCache, as_bytes
from agents.compute.mixers import SEGMENT_TOKENS, mixer, rms_norm
from agents.compute.weights import Draw
from agents.shapes import Shape

START_TOKEN = 1
"""What decode is given first, behind any prompt, as a chat template would: nothing but KV has to cross."""


class _Layer:
    """One layer: a mixer and a gated MLP."""

    def __init__(self, shape: Shape, number: int, draw: Draw) -> None:
        self.mixer = mixer(shape.layers[number], shape.hidden_dim, draw)
        self._up = draw.matrix(shape.hidden_dim, 2 * shape.ffn_dim)
        self._down = draw.matrix(shape.ffn_dim, shape.hidden_dim)

    def behind_mixer(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What leaves the layer: [tokens, hidden]."""
        x = x + mixed
        gate, up = (rms_norm(x) @ self._up).chunk(2, dim=-1)
        return x + (functional.silu(gate) * up) @ self._down


class Model:
    """A model of `shape` with the random weights of `seed`, on `device`: "cpu" or "cuda".

    `exact`: each row of a batch is computed by itself, so that no token depends on who else is in the batch;
    else matrix products are batched, as an engine would. `dtype` is of weights and activations, where it is
    given.
    """

    def __init__(
        self, shape: Shape, *, seed: int, device: str, exact: bool = True, dtype: torch.dtype | None = None
    ) -> None:
        self.shape = shape
        self.device, self._exact = device, exact
        dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        draw = Draw(seed, dtype, device)
        self._embedding = draw.matrix(shape.hidden_dim, shape.vocab).t()
        self._head = draw.matrix(shape.hidden_dim, shape.vocab)
        self._layers = [_Layer(shape, number, draw) for number in range(len(shape.layers))]

    def prefill(
        self, prompt: Sequence[int], cache: Cache, keep: Mapping[int, Cache] | None = None
    ) -> Iterator[int]:
        """Fill `cache` with a prompt, of which it may hold a prefix; yields each layer's number when done.

        Segments of SEGMENT_TOKENS are counted from the prompt's start, so a prefix of whole segments leaves
        all others bit for bit the same; behind any other the first segment is shorter, and results differ by
        rounding. `keep` are caches to fill with the states and windows behind prefixes of such lengths; rows
        of full layers stay in `cache` and are not copied.

        Raises:
            ValueError: `cache` holds more than the prompt; a length in `keep` is not where a segment ends.
        """
        start, end = cache.tokens, len(prompt)
        if start > end:
            raise ValueError(f"a prompt of {end} tokens, of which {start} are cached")
        ends = [*range(start - start % SEGMENT_TOKENS + SEGMENT_TOKENS, end, SEGMENT_TOKENS), end]
        segments = [slice(left - start, right - start) for left, right in pairwise((start, *ends))]
        keep = keep or {}
        if wrong := set(keep) - set(ends):
            raise ValueError(f"nothing to keep at {sorted(wrong)} tokens: segments end at {ends}")
        x = self._embed(prompt[start:])
        for number, layer in enumerate(self._layers):
            if start < end:
                held = cache.layers[number]
                mixed = layer.mixer.prompt((rms_norm(x[segment]) for segment in segments), held)
                for segment, part in zip(segments, mixed, strict=True):
                    x[segment] = layer.behind_mixer(x[segment], part)
                    if held.tokens in keep and not isinstance(held, FullCache):
                        keep[held.tokens].layers[number] = held.copy()
            yield number

    def step(self, tokens: Sequence[int], caches: Sequence[Cache]) -> tuple[list[int], list[memoryview]]:
        """One decode step: from a token of each request its next one, greedily, and the fp32 logits."""
        if self._exact:
            logits = [self._logits([token], [cache]) for token, cache in zip(tokens, caches, strict=True)]
        else:
            logits = list(self._logits(tokens, caches).unsqueeze(1))
        chosen = [int(row.argmax()) for row in logits]
        return chosen, [as_bytes(row) for row in logits]

    def _logits(self, tokens: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        """[requests, vocab] in fp32, or wider where the model is."""
        x = self._embed(tokens)
        for number, layer in enumerate(self._layers):
            mixed = layer.mixer.step(rms_norm(x), [cache.layers[number] for cache in caches])
            x = layer.behind_mixer(x, mixed)
        logits = rms_norm(x) @ self._head
        return logits if logits.dtype == torch.float64 else logits.float()

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, hidden], of mean square about 1."""
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return rms_norm(self._embedding.index_select(0, ids))
