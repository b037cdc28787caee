"""Sizes of models, layer by layer: what it takes to compute them, and the KV cache that follows from it.

Sizes are those of each model's public config.json, as far as they matter for what a token costs; where one is
not certain, `source` says assumed. Simplified for all: a mixture of experts is a dense MLP with the
multiply-adds of the experts that one token meets; queries have no low-rank projection, attention no bias,
sink or output gate.
"""

from typing import Literal

import msgspec

from agents.kv_layouts import BF16_BYTES, FP32_BYTES, LayerKv

Kind = Literal["gqa", "window", "mla", "kda", "gdn", "lightning"]

CONVOLUTION_WIDTH = 4
"""Inputs that the short convolution of KDA and GDN sees: the present token's and three before."""


class Attention(msgspec.Struct, frozen=True):
    """How one layer mixes tokens.

    `heads` of queries (linear kinds: of states) with keys of `key_dim` and values of `value_dim`. `kv_heads`:
    heads of keys and values (gqa, window), or of queries and keys (kda, gdn, lightning). `rope_dim` of a key
    are rotated: a part of `key_dim` (gqa, window), or one more part that all heads share (mla). `latent_dim`
    is what mla caches in place of keys and values; a window sees `window_tokens`, the present one included.
    """

    kind: Kind
    heads: int
    key_dim: int
    value_dim: int
    kv_heads: int = 0
    rope_dim: int = 0
    latent_dim: int = 0
    window_tokens: int = 0

    @property
    def convolution_channels(self) -> int:
        """Channels of q, k and v together that pass the short convolution: 0 where the kind has none."""
        if self.kind not in {"kda", "gdn"}:
            return 0
        return 2 * self.kv_heads * self.key_dim + self.heads * self.value_dim

    @property
    def row_dim(self) -> int:
        """Numbers that one token adds to the cache: 0 where a state is all there is."""
        if self.kind == "mla":
            return self.latent_dim + self.rope_dim
        if self.kind in {"gqa", "window"}:
            return self.kv_heads * (self.key_dim + self.value_dim)
        return 0

    @property
    def layer_kv(self) -> LayerKv:
        """KV cache of a layer of this kind."""
        if self.row_dim:
            return LayerKv(self.row_dim * BF16_BYTES, fixed_bytes=0, window_tokens=self.window_tokens)
        state_bytes = self.heads * self.key_dim * self.value_dim * FP32_BYTES
        inputs_bytes = (CONVOLUTION_WIDTH - 1) * self.convolution_channels * BF16_BYTES
        return LayerKv(bytes_per_token=0, fixed_bytes=state_bytes + inputs_bytes)


class Shape(msgspec.Struct, frozen=True):
    """Sizes of one model. `layers` are in the order in which they are computed."""

    name: str
    source: str
    hidden_dim: int
    ffn_dim: int
    vocab: int
    layers: tuple[Attention, ...]

    def first(self, layers: int) -> "Shape":
        """The same model, cut off behind its first so many layers.

        Raises:
            ValueError: the model has no such number of layers.
        """
        if not 1 <= layers <= len(self.layers):
            raise ValueError(f"{self.name}: {layers} layers of 1 to {len(self.layers)}")
        return msgspec.structs.replace(self, layers=self.layers[:layers])


def _gqa(heads: int, kv_heads: int, key_dim: int, value_dim: int, rope_dim: int) -> Attention:
    return Attention("gqa", heads, key_dim, value_dim, kv_heads=kv_heads, rope_dim=rope_dim)


def _mla(heads: int, latent_dim: int = 512, rope_dim: int = 64, head_dim: int = 128) -> Attention:
    return Attention("mla", heads, head_dim, head_dim, rope_dim=rope_dim, latent_dim=latent_dim)


def _linear(kind: Kind, heads: int, key_heads: int, head_dim: int = 128) -> Attention:
    return Attention(kind, heads, head_dim, head_dim, kv_heads=key_heads)


def _kimi_linear_48b() -> Shape:
    """27 layers; MLP of 8 experts and a shared one of 1,024 each, as its dense first layer."""
    kda, mla = _linear("kda", 32, 32), _mla(32)
    return Shape(
        name="kimi_linear_48b",
        source="Kimi-Linear-48B-A3B: public config.json; full-rank output gate, rotated MLA keys assumed",
        hidden_dim=2304,
        ffn_dim=9 * 1024,
        vocab=163_840,
        layers=(kda, kda, kda, mla) * 6 + (kda, kda, mla),
    )


def _mimo_v2_flash() -> Shape:
    """48 layers; 8 experts of 2,048, a third of each key of 192 is rotated."""
    full = _gqa(64, 4, 192, 128, rope_dim=64)
    window = msgspec.structs.replace(full, kind="window", kv_heads=8, window_tokens=128)
    return Shape(
        name="mimo_v2_flash",
        source="MiMo-V2-Flash: public config.json; 8 experts of 2,048, vocabulary assumed",
        hidden_dim=4096,
        ffn_dim=8 * 2048,
        vocab=152_576,
        layers=(full, *(window,) * 4, full) + (*(window,) * 5, full) * 7,
    )


def _qwen3_5_397b() -> Shape:
    """60 layers; 10 experts and a shared one of 1,024 each, a quarter of each key is rotated."""
    gdn = _linear("gdn", 64, 16)
    return Shape(
        name="qwen3_5_397b",
        source="Qwen3.5-397B-A17B: public config.json",
        hidden_dim=4096,
        ffn_dim=11 * 1024,
        vocab=248_320,
        layers=(gdn, gdn, gdn, _gqa(32, 2, 256, 256, rope_dim=64)) * 15,
    )


def _ring_2_5_1t() -> Shape:
    """80 layers; 8 experts and a shared one of 2,048 each."""
    return Shape(
        name="ring_2_5_1t",
        source="Ring-2.5-1T: layers as in agents/kv_layouts.py; all other sizes assumed, as of Ling/Ring-1T",
        hidden_dim=8192,
        ffn_dim=9 * 2048,
        vocab=157_184,
        layers=(*(_linear("lightning", 64, 64),) * 7, _mla(64)) * 10,
    )


def _minimax_m2_5() -> Shape:
    """62 layers; 8 experts of 1,536, half of each key is rotated."""
    return Shape(
        name="minimax_m2_5",
        source="MiniMax-M2.5: public config.json",
        hidden_dim=3072,
        ffn_dim=8 * 1536,
        vocab=200_064,
        layers=(_gqa(48, 8, 128, 128, rope_dim=64),) * 62,
    )


def _qwen3_235b() -> Shape:
    """94 layers; 8 experts of 1,536, keys are rotated whole."""
    return Shape(
        name="qwen3_235b",
        source="Qwen3-235B-A22B: public config.json",
        hidden_dim=4096,
        ffn_dim=8 * 1536,
        vocab=151_936,
        layers=(_gqa(64, 4, 128, 128, rope_dim=128),) * 94,
    )


def _tiny_hybrid() -> Shape:
    """Ten layers with every kind, small enough for one CPU core."""
    kda, gdn, lightning = _linear("kda", 4, 4, 32), _linear("gdn", 4, 2, 64), _linear("lightning", 4, 4, 64)
    gqa = _gqa(4, 2, 64, 64, rope_dim=32)
    window = msgspec.structs.replace(gqa, kind="window", window_tokens=128)
    mla = msgspec.structs.replace(_mla(4, latent_dim=256, rope_dim=32, head_dim=64), key_dim=32)
    return Shape(
        name="tiny_hybrid",
        source="made up: every kind of layer, for CPUs",
        hidden_dim=256,
        ffn_dim=512,
        vocab=2048,
        layers=(kda, kda, gdn, mla, gdn, window, gqa, lightning, lightning, mla),
    )


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _kimi_linear_48b(),
        _mimo_v2_flash(),
        _qwen3_5_397b(),
        _ring_2_5_1t(),
        _minimax_m2_5(),
        _qwen3_235b(),
        _tiny_hybrid(),
    )
}
