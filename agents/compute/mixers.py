"""How layers mix tokens: projections around the kernels of `attention` and `linear`, for each kind of layer.

Every mixer computes a segment of one prompt, and one token each of a batch. Softmax kinds have queries and
keys of norm 1 per number (RMS), and rotary embedding; KDA, GDN and Lightning have no positions: SiLU on q, k
and v, behind a short convolution but for Lightning, q and k of length 1 for the delta rule, and a norm and an
output gate per head. Linear kernels compute in the state's dtype, everything else in the weights'.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from agents.compute.attention import attend, attend_absorbed, attend_expanded, rotate
from agents.compute.cache import FullCache, LayerCache, LinearCache, WindowCache
from agents.compute.linear import chunked, recur
from agents.compute.weights import Draw
from agents.shapes import CONVOLUTION_WIDTH, Attention

SEGMENT_TOKENS = 512
"""Tokens of a prompt that are computed together, counted from its start."""
EPSILON = 1e-6


def mixer(attention: Attention, hidden_dim: int, draw: Draw) -> "Mixer":
    """The mixer for a kind of layer, with random weights."""
    if attention.kind == "mla":
        return Mla(attention, hidden_dim, draw)
    kind = Softmax if attention.row_dim else Linear
    return kind(attention, hidden_dim, draw)


def rms_norm(x: Tensor) -> Tensor:
    """The last dimension scaled to a mean square of 1, computed in fp32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


class Mixer(ABC):
    """One layer's mixing of tokens: x [tokens, hidden], normed, to what is added to the residual."""

    @abstractmethod
    def prompt(self, segments: Iterable[Tensor], cache: LayerCache) -> Iterator[Tensor]:
        """The next tokens of one prompt, behind what `cache` holds; it takes them up, segment by segment."""

    @abstractmethod
    def step(self, x: Tensor, caches: Sequence[LayerCache]) -> Tensor:
        """One token of each request."""


class Softmax(Mixer):
    """Grouped queries over all tokens or a window; a row is the keys of all heads, then their values."""

    def __init__(self, attention: Attention, hidden_dim: int, draw: Draw) -> None:
        self._attention = attention
        self._queries = draw.matrix(hidden_dim, attention.heads * attention.key_dim)
        self._rows = draw.matrix(hidden_dim, attention.row_dim)
        self._out = draw.matrix(attention.heads * attention.value_dim, hidden_dim)

    def prompt(self, segments: Iterable[Tensor], cache: LayerCache) -> Iterator[Tensor]:
        assert isinstance(cache, FullCache | WindowCache)
        for x in segments:
            positions = torch.arange(cache.tokens, cache.tokens + x.shape[0], device=x.device)
            queries, rows = self._project(x, positions)
            yield self._attend(queries, cache.extend(rows)).flatten(1) @ self._out

    def step(self, x: Tensor, caches: Sequence[LayerCache]) -> Tensor:
        held = cast("Sequence[FullCache | WindowCache]", caches)
        positions = torch.tensor([cache.tokens for cache in held], device=x.device)
        queries, rows = self._project(x, positions)
        outputs = [
            self._attend(queries[row : row + 1], cache.extend(rows[row : row + 1]))
            for row, cache in enumerate(held)
        ]
        return torch.cat(outputs).flatten(1) @ self._out

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [tokens, heads, key], and rows as they are cached."""
        sizes = self._attention
        queries = (x @ self._queries).view(-1, sizes.heads, sizes.key_dim)
        keys, values = self._split(x @ self._rows)
        keys = rotate(rms_norm(keys), positions, sizes.rope_dim)
        rows = torch.cat((keys.flatten(1), values.flatten(1)), dim=1)
        return rotate(rms_norm(queries), positions, sizes.rope_dim), rows

    def _attend(self, queries: Tensor, rows: Tensor) -> Tensor:
        sizes = self._attention
        keys, values = self._split(rows.to(queries.dtype))
        return attend(queries, keys, values, sizes.key_dim**-0.5, sizes.window_tokens)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [tokens, heads, key] and values [tokens, heads, value] of rows."""
        sizes, tokens = self._attention, rows.shape[0]
        keys = rows[:, : sizes.kv_heads * sizes.key_dim]
        values = rows[:, sizes.kv_heads * sizes.key_dim :]
        return (
            keys.reshape(tokens, sizes.kv_heads, sizes.key_dim),
            values.reshape(tokens, sizes.kv_heads, sizes.value_dim),
        )


class Mla(Mixer):
    """Multi-head latent attention; a row is the normed latent, then a rotated key that all heads share.

    Prefill makes keys and values from the latents, each once, and keeps them for the layer's other segments;
    decode stays with the latents.
    """

    def __init__(self, attention: Attention, hidden_dim: int, draw: Draw) -> None:
        self._attention = attention
        heads, head_dim = attention.heads, attention.key_dim + attention.value_dim
        self._scale = (attention.key_dim + attention.rope_dim) ** -0.5
        self._queries = draw.matrix(hidden_dim, heads * (attention.key_dim + attention.rope_dim))
        self._rows = draw.matrix(hidden_dim, attention.row_dim)
        self._up = draw.matrix(attention.latent_dim, heads * head_dim).view(-1, heads, head_dim)
        self._out = draw.matrix(heads * attention.value_dim, hidden_dim)

    def prompt(self, segments: Iterable[Tensor], cache: LayerCache) -> Iterator[Tensor]:
        assert isinstance(cache, FullCache)
        expanded: list[Tensor] = []
        for x in segments:
            start = cache.tokens if expanded else 0
            positions = torch.arange(cache.tokens, cache.tokens + x.shape[0], device=x.device)
            queries, rows = self._project(x, positions)
            latents, rope_keys = self._split(cache.extend(rows).to(x.dtype))
            # A cached prefix is expanded in the pieces that it was computed in: bit for bit the same.
            more = [self._expand(piece) for piece in torch.split(latents[start:], SEGMENT_TOKENS)]
            expanded = [torch.cat((*expanded, *more))]
            out = attend_expanded(queries, rope_keys, expanded[0], self._attention.key_dim, self._scale)
            yield out.flatten(1) @ self._out

    def step(self, x: Tensor, caches: Sequence[LayerCache]) -> Tensor:
        held = cast("Sequence[FullCache]", caches)
        positions = torch.tensor([cache.tokens for cache in held], device=x.device)
        queries, rows = self._project(x, positions)
        outputs = []
        for row, cache in enumerate(held):
            seen = cache.extend(rows[row : row + 1]).to(x.dtype)
            query = queries[row : row + 1]
            outputs.append(attend_absorbed(query, seen, self._up, self._attention.key_dim, self._scale))
        return torch.cat(outputs).flatten(1) @ self._out

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        sizes = self._attention
        queries = (x @ self._queries).view(-1, sizes.heads, sizes.key_dim + sizes.rope_dim)
        latents, keys = self._split(x @ self._rows)
        keys = rotate(rms_norm(keys).unsqueeze(1), positions, sizes.rope_dim).squeeze(1)
        rows = torch.cat((rms_norm(latents), keys), dim=1)
        return rotate(rms_norm(queries), positions, sizes.rope_dim), rows

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Latents [tokens, latent] and rotated keys [tokens, rope] of rows."""
        return rows[:, : self._attention.latent_dim], rows[:, self._attention.latent_dim :]

    def _expand(self, latents: Tensor) -> Tensor:
        """[tokens, heads, key + value]."""
        return (latents @ self._up.flatten(1)).view(-1, *self._up.shape[1:])


class Linear(Mixer):
    """KDA, GDN and Lightning: see `agents.compute.linear`."""

    def __init__(self, attention: Attention, hidden_dim: int, draw: Draw) -> None:
        self._attention = attention
        heads, values = attention.heads, attention.heads * attention.value_dim
        self._key_channels = attention.kv_heads * attention.key_dim
        self._qkv = draw.matrix(hidden_dim, 2 * self._key_channels + values)
        self._gate = draw.matrix(hidden_dim, values)
        self._out = draw.matrix(values, hidden_dim)
        self._delta = attention.kind != "lightning"
        if not self._delta:
            # Geometric from head to head, down to 2^-8, as the slopes of ALiBi and of Lightning Attention.
            self._rate = draw.constant([-(2.0 ** (-8 * (head + 1) / heads)) for head in range(heads)])
            return
        self._filter = draw.matrix(CONVOLUTION_WIDTH, attention.convolution_channels)
        self._beta = draw.matrix(hidden_dim, heads)
        # KDA's decay per channel comes by way of a low rank, as in Kimi Linear.
        low_dim = attention.key_dim if attention.kind == "kda" else hidden_dim
        decays = heads * (attention.key_dim if attention.kind == "kda" else 1)
        self._down = draw.matrix(hidden_dim, low_dim) if attention.kind == "kda" else None
        self._decay = draw.matrix(low_dim, decays)
        # Decays start as in Mamba 2 (arXiv 2405.21060): rates of 1 to 16, steps of 0.001 to 0.1.
        self._rate = draw.constant([-(16.0 ** (head / max(heads - 1, 1))) for head in range(heads)])
        steps = [0.001 * 100 ** (number / max(decays - 1, 1)) for number in range(decays)]
        self._bias = draw.constant([math.log(math.expm1(step)) for step in steps])

    def prompt(self, segments: Iterable[Tensor], cache: LayerCache) -> Iterator[Tensor]:
        assert isinstance(cache, LinearCache)
        for x in segments:
            inputs = x @ self._qkv
            if self._delta:
                padded = torch.cat((cache.inputs, inputs.to(torch.bfloat16)))
                cache.inputs = padded[1 - CONVOLUTION_WIDTH :].clone()
                inputs = self._convolve(padded.to(x.dtype).unfold(0, CONVOLUTION_WIDTH, 1))
            parts = [part.transpose(0, 1) for part in self._parts(x, inputs, cache.state.dtype)]
            out, cache.state = chunked(*parts, state=cache.state)
            cache.tokens += x.shape[0]
            yield self._finish(x, out.transpose(0, 1))

    def step(self, x: Tensor, caches: Sequence[LayerCache]) -> Tensor:
        held = cast("Sequence[LinearCache]", caches)
        inputs = x @ self._qkv
        if self._delta:
            past = torch.stack([cache.inputs for cache in held])
            windows = torch.cat((past, inputs.to(torch.bfloat16).unsqueeze(1)), dim=1)
            inputs = self._convolve(windows.to(x.dtype).transpose(1, 2))
            for cache, window in zip(held, windows, strict=True):
                cache.inputs = window[1:]
        state = torch.stack([cache.state for cache in held])
        parts = [part.unsqueeze(2) for part in self._parts(x, inputs, state.dtype)]
        out, states = recur(*parts, state=state)
        for cache, own in zip(held, states, strict=True):
            cache.state = own
            cache.tokens += 1
        return self._finish(x, out.squeeze(2))

    def _convolve(self, windows: Tensor) -> Tensor:
        """[tokens, channels] of [tokens, channels, width]: each channel has its own weights."""
        return (windows * self._filter.t()).sum(-1)

    def _parts(self, x: Tensor, inputs: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """What the kernel takes in front of the state, tokens before heads; without the delta rule no b."""
        sizes, tokens = self._attention, x.shape[0]
        values = sizes.heads * sizes.value_dim
        split = torch.split(functional.silu(inputs), [self._key_channels, self._key_channels, values], dim=1)
        q, k = (part.to(dtype).view(tokens, sizes.kv_heads, sizes.key_dim) for part in split[:2])
        v = split[2].to(dtype).view(tokens, sizes.heads, sizes.value_dim)
        if self._delta:
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        shared = sizes.heads // sizes.kv_heads
        q, k = (part.repeat_interleave(shared, dim=1) for part in (q * sizes.key_dim**-0.5, k))
        if not self._delta:
            return [q, k, v, self._rate.to(dtype).view(1, -1, 1).expand(tokens, -1, 1)]
        low = x if self._down is None else x @ self._down
        steps = functional.softplus((low @ self._decay).to(dtype) + self._bias.to(dtype))
        g = self._rate.to(dtype).view(1, -1, 1) * steps.view(tokens, sizes.heads, -1)
        return [q, k, v, g, (x @ self._beta).to(dtype).sigmoid()]

    def _finish(self, x: Tensor, out: Tensor) -> Tensor:
        """Norm and gate per head, and the way back to [tokens, hidden]."""
        gate = (x @ self._gate).sigmoid()
        return (rms_norm(out).flatten(1).to(x.dtype) * gate) @ self._out
