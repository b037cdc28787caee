"""The KV cache of one request as tensors, and as the bytes that cross the link.

Keys, values and latents are bf16, a row per token; linear states fp32, the inputs of their convolutions bf16.
A layer's bytes are exactly `agents.kv_layouts.ModelProfile.end_bytes`. Layers fill one after another, so each
knows how many tokens it has seen.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.shapes import CONVOLUTION_WIDTH, Attention, Shape

ROOM_TOKENS = 512
"""Beyond what is there, so that the first steps of an answer do not copy its prompt."""


class LayerCache(Protocol):
    """What one layer keeps of the tokens that it has seen."""

    tokens: int

    def parts(self, last_tokens: int) -> list[Tensor]:
        """Tensors whose bytes, one after another, are this layer's for the last so many tokens."""

    def fill(self, data: Tensor, tokens: int) -> None:
        """Take such bytes, after which the layer holds `tokens`."""

    def copy(self) -> "LayerCache":
        """One that does not change when this one does."""


class FullCache:
    """A row per token, for all of them."""

    def __init__(self, row_dim: int, device: str) -> None:
        self.tokens = 0
        self._rows = torch.empty((0, row_dim), dtype=torch.bfloat16, device=device)

    def extend(self, rows: Tensor) -> Tensor:
        """Append `rows` [new, row_dim]; all rows that the new tokens may look at: [held + new, row_dim]."""
        self._make_room(self.tokens + rows.shape[0])
        self._rows[self.tokens : self.tokens + rows.shape[0]] = rows
        self.tokens += rows.shape[0]
        return self._rows[: self.tokens]

    def parts(self, last_tokens: int) -> list[Tensor]:
        return [self._rows[self.tokens - last_tokens : self.tokens]]

    def fill(self, data: Tensor, tokens: int) -> None:
        rows = _as_rows(data, self._rows)
        start = tokens - rows.shape[0]
        if not 0 <= start <= self.tokens:
            raise ValueError(f"{rows.shape[0]} rows up to token {tokens}, behind the {self.tokens} held")
        self.tokens = start
        self.extend(rows)

    def copy(self) -> "FullCache":
        other = FullCache(self._rows.shape[1], str(self._rows.device))
        other.extend(self._rows[: self.tokens])
        return other

    def _make_room(self, tokens: int) -> None:
        if tokens > self._rows.shape[0]:
            room = max(tokens + ROOM_TOKENS, 2 * self._rows.shape[0])
            grown = self._rows.new_empty((room, self._rows.shape[1]))
            grown[: self.tokens] = self._rows[: self.tokens]
            self._rows = grown


class WindowCache:
    """A row per token, for the last of them; the oldest stands first."""

    def __init__(self, row_dim: int, window_tokens: int, device: str) -> None:
        self.tokens = 0
        self._window_tokens = window_tokens
        self._rows = torch.empty((0, row_dim), dtype=torch.bfloat16, device=device)

    def extend(self, rows: Tensor) -> Tensor:
        """As `FullCache.extend`; what no new token can see any more is left out."""
        earlier = self._rows[max(self._rows.shape[0] - self._window_tokens + 1, 0) :]
        seen = self._rows.new_empty((len(earlier) + len(rows), rows.shape[1]))
        seen[: len(earlier)], seen[len(earlier) :] = earlier, rows
        # A copy where rows fall out: the end of a long segment need not keep all of it.
        self._rows = seen[-self._window_tokens :].clone() if len(seen) > self._window_tokens else seen
        self.tokens += rows.shape[0]
        return seen

    def parts(self, last_tokens: int) -> list[Tensor]:  # noqa: ARG002 - a window goes whole
        return [self._rows]

    def fill(self, data: Tensor, tokens: int) -> None:
        rows = _as_rows(data, self._rows)
        if rows.shape[0] != min(self._window_tokens, tokens):
            raise ValueError(
                f"{rows.shape[0]} rows for a window of {self._window_tokens}, {tokens} tokens in"
            )
        self._rows, self.tokens = rows, tokens

    def copy(self) -> "WindowCache":
        other = WindowCache(self._rows.shape[1], self._window_tokens, str(self._rows.device))
        # Rows are replaced, never written into.
        other._rows, other.tokens = self._rows, self.tokens
        return other


class LinearCache:
    """A state [heads, key, value] and the convolution's past inputs [3, channels], oldest first.

    Both are replaced as tokens come, never written into.
    """

    def __init__(self, attention: Attention, device: str, state_dtype: torch.dtype) -> None:
        self.tokens = 0
        sizes = (attention.heads, attention.key_dim, attention.value_dim)
        self.state = torch.zeros(sizes, dtype=state_dtype, device=device)
        past = (CONVOLUTION_WIDTH - 1, attention.convolution_channels)
        self.inputs = torch.zeros(past, dtype=torch.bfloat16, device=device)

    def parts(self, last_tokens: int) -> list[Tensor]:  # noqa: ARG002 - a state goes whole
        return [self.state, self.inputs]

    def fill(self, data: Tensor, tokens: int) -> None:
        state, inputs = (part.numel() * part.element_size() for part in (self.state, self.inputs))
        if data.numel() != state + inputs:
            raise ValueError(f"{data.numel()} bytes for a state of {state + inputs}")
        self.state = data[:state].view(self.state.dtype).view_as(self.state)
        self.inputs = data[state:].view(torch.bfloat16).view_as(self.inputs)
        self.tokens = tokens

    def copy(self) -> "LinearCache":
        other = LinearCache.__new__(LinearCache)
        other.tokens, other.state, other.inputs = self.tokens, self.state, self.inputs
        return other


class Cache:
    """The KV cache of one request, on a device of torch; on "meta" it has sizes only.

    A `state_dtype` other than fp32 makes states of other bytes than those of the layout.
    """

    def __init__(self, shape: Shape, device: str, *, state_dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.layers: list[LayerCache] = [_layer(layer, device, state_dtype) for layer in shape.layers]

    @property
    def tokens(self) -> int:
        """Tokens that all layers have seen: layers are computed, and may be filled, in order."""
        return min(layer.tokens for layer in self.layers)

    def pack(self, layer: int, last_tokens: int) -> memoryview:
        """The bytes of one layer for the last so many of its tokens; windows and states are whole.

        They may share memory with the cache: rows that are in it stay as they are.

        Raises:
            ValueError: the layer does not hold so many tokens.
        """
        return as_bytes(*self._parts(layer, last_tokens))

    def size_bytes(self, layer: int, last_tokens: int) -> int:
        """How long `pack` would be, from the tensors' shapes: on any device, meta too. Raises as `pack`."""
        return sum(part.numel() * part.element_size() for part in self._parts(layer, last_tokens))

    def fill(self, layer: int, data: bytes | bytearray | memoryview, tokens: int) -> None:
        """Take what `pack` gave; the layer holds `tokens` afterwards. `data` may be reused at once.

        Rows of a full layer join those before them, which must be there; any from there on are overwritten.

        Raises:
            ValueError: the bytes are not those of so many tokens, or do not join what is held.
        """
        source = memoryview(data).cast("B")
        # Into memory that is laid out as a computed tensor's, so that no kernel takes another path.
        copied = torch.empty(len(source), dtype=torch.uint8)
        np.copyto(copied.numpy(), np.frombuffer(source, dtype=np.uint8))
        self.layers[layer].fill(copied.to(self.device), tokens)

    def copy(self) -> "Cache":
        """One that holds the same and does not change when this one does."""
        other = Cache.__new__(Cache)
        other.device, other.layers = self.device, [layer.copy() for layer in self.layers]
        return other

    def _parts(self, layer: int, last_tokens: int) -> list[Tensor]:
        held = self.layers[layer]
        if not 0 <= last_tokens <= held.tokens:
            raise ValueError(f"the last {last_tokens} of {held.tokens} tokens")
        return held.parts(last_tokens)


def _layer(attention: Attention, device: str, state_dtype: torch.dtype) -> LayerCache:
    if attention.window_tokens:
        return WindowCache(attention.row_dim, attention.window_tokens, device)
    if attention.row_dim:
        return FullCache(attention.row_dim, device)
    return LinearCache(attention, device, state_dtype)


def as_bytes(*parts: Tensor) -> memoryview:
    """The bytes of tensors, one after another; those of a single one on the CPU are not copied."""
    flat = [part.contiguous().flatten().view(torch.uint8) for part in parts]
    array: NDArray[np.uint8] = (flat[0] if len(flat) == 1 else torch.cat(flat)).cpu().numpy()
    return array.data.toreadonly()


def _as_rows(data: Tensor, like: Tensor) -> Tensor:
    """Bytes as bf16 rows as wide as those of `like`."""
    width = like.shape[1] * like.element_size()
    if data.numel() % width:
        raise ValueError(f"{data.numel()} bytes for rows of {width}")
    return data.view(torch.bfloat16).view(-1, like.shape[1])
