"""What KV cache weighs: layouts of models layer by layer, and what compressing them saves.

Layouts are built from head counts, element sizes and state shapes. Keys and values are bf16, the states of
linear attention fp32, its convolution states bf16. Which kinds of layers alternate, and in what ratio, is
printed in the paper (arXiv 2604.15039, table 1); counts of layers and heads are those of each model's public
config.json.
"""

from functools import cached_property
from typing import Literal

import msgspec

MIB = 1024 * 1024
BF16_BYTES = 2
FP32_BYTES = 4

LayerKind = Literal["full", "linear", "window"]


class LayerKv(msgspec.Struct, frozen=True):
    """KV cache of one layer at scale 1.

    `bytes_per_token` of keys and values, for all tokens or, where `window_tokens` is above 0, for the last so
    many; `fixed_bytes` of linear state.
    """

    bytes_per_token: int
    fixed_bytes: int
    window_tokens: int = 0

    @property
    def kind(self) -> LayerKind:
        """`full` grows with the prompt, `linear` never does, `window` does up to its window.

        Full layers can be reused from any prefix, the others only at exactly the cached length.
        """
        if self.window_tokens:
            return "window"
        return "full" if self.bytes_per_token else "linear"

    def size_bytes(self, tokens: int) -> int:
        """Bytes for a prompt of `tokens`."""
        held = min(tokens, self.window_tokens) if self.window_tokens else tokens
        return self.bytes_per_token * held + self.fixed_bytes


class ModelProfile(msgspec.Struct, frozen=True, dict=True):
    """KV cache layout of one model, layer by layer in the order in which prefill computes them."""

    name: str
    source: str
    layers: tuple[LayerKv, ...]

    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes that one more token adds to the KV cache at scale 1: all full layers, windows being full."""
        return sum(layer.bytes_per_token for layer in self.layers if layer.kind == "full")

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes of a request's KV cache that do not depend on its length at scale 1: states, full windows."""
        return sum(layer.size_bytes(layer.window_tokens) for layer in self.layers)

    def layer_bytes(self, layer: int, tokens: int, scale: float = 1.0) -> int:
        """Bytes that layer number `layer` (from 0) of a `tokens` long prompt puts on the wire, at `scale`.

        Raises:
            ValueError: `tokens` is negative or `scale` is not above 0.
            IndexError: the model has no such layer.
        """
        if tokens < 0 or scale <= 0:
            raise ValueError(f"{self.name}: KV of {tokens} tokens at scale {scale}")
        exact = self.layers[layer].size_bytes(tokens)
        return exact if scale == 1.0 else round(exact * scale)

    def kv_bytes(self, tokens: int, scale: float = 1.0) -> int:
        """Bytes of the whole KV cache: exactly the sum of `layer_bytes`, whose errors it shares."""
        return sum(self.layer_bytes(layer, tokens, scale) for layer in range(len(self.layers)))

    def end_bytes(self, layer: int, tokens: int, prompt_tokens: int, scale: float = 1.0) -> int:
        """Bytes of one layer for the last `tokens` of a prompt: a window or a state is sent whole.

        Raises:
            ValueError, IndexError: as `layer_bytes`.
        """
        window = min(self.layers[layer].window_tokens, prompt_tokens)
        return self.layer_bytes(layer, max(tokens, window), scale)


class Compression(msgspec.Struct, frozen=True):
    """A way to shrink KV cache before it crosses the WAN.

    `ratio` is uncompressed / compressed size; both rates count uncompressed bytes, per instance of 8 GPUs.
    """

    name: str
    source: str
    ratio: float
    compress_bytes_per_s: float
    decompress_bytes_per_s: float


def _mla() -> LayerKv:
    """Multi-head latent attention: 512 latent and 64 rotary values a token."""
    return LayerKv(bytes_per_token=(512 + 64) * BF16_BYTES, fixed_bytes=0)


def _gqa(kv_heads: int, key_dim: int, value_dim: int, window_tokens: int = 0) -> LayerKv:
    """Grouped-query attention: a key and a value per KV head, in a window where one is given."""
    return LayerKv(kv_heads * (key_dim + value_dim) * BF16_BYTES, fixed_bytes=0, window_tokens=window_tokens)


def _linear(heads: int, convolution_channels: int = 0, head_dim: int = 128) -> LayerKv:
    """Linear attention: a square state per head, and three past inputs of a convolution of width 4."""
    state = heads * head_dim * head_dim * FP32_BYTES
    return LayerKv(bytes_per_token=0, fixed_bytes=state + 3 * convolution_channels * BF16_BYTES)


def _internal_1t() -> ModelProfile:
    """The paper's internal 1T model: 60 layers, KDA:MLA 3:1 (table 1), KV size as in table 5.

    15 MLA layers hold 17,280 bytes a token. 45 KDA layers share the 173.9 MiB that table 5 leaves at length
    0. The sum meets table 5 within 1 % at 1K, 8K and 128K and lies 1.8 % above it at 32K, where the printed
    sizes themselves leave the line.
    """
    kda = LayerKv(bytes_per_token=0, fixed_bytes=round(173.9 * MIB / 45))
    return ModelProfile(
        name="internal_1t",
        source="arXiv 2604.15039, tables 1 and 5; split into layers derived",
        layers=(kda, kda, kda, _mla()) * 15,
    )


def _public(name: str, printed_name: str, layers: tuple[LayerKv, ...], assumed: str = "") -> ModelProfile:
    """A public model of table 1."""
    source = f"{printed_name}: ratio of layers arXiv 2604.15039, table 1; counts, sizes: public config.json"
    return ModelProfile(name=name, source=f"{source}{assumed}", layers=layers)


def _kimi_linear_48b() -> ModelProfile:
    """27 layers, KDA:MLA 3:1; the last is MLA in the place of a third KDA. 32 heads, convolved q, k and v."""
    kda = _linear(heads=32, convolution_channels=3 * 32 * 128)
    layers = (kda, kda, kda, _mla()) * 6 + (kda, kda, _mla())
    return _public("kimi_linear_48b", "Kimi-Linear-48B", layers)


def _mimo_v2_flash() -> ModelProfile:
    """48 layers, windows of 128 tokens to full attention 5:1, but the first layer is full, too."""
    full, window = _gqa(4, 192, 128), _gqa(8, 192, 128, window_tokens=128)
    layers = (full, *(window,) * 4, full) + (*(window,) * 5, full) * 7
    return _public("mimo_v2_flash", "MiMo-V2-Flash", layers)


def _qwen3_5_397b() -> ModelProfile:
    """60 layers, GDN:GQA 3:1. GDN: 64 value heads; q and k of 16 heads and v are convolved."""
    gdn = _linear(heads=64, convolution_channels=(16 + 16 + 64) * 128)
    return _public("qwen3_5_397b", "Qwen3.5-397B", (gdn, gdn, gdn, _gqa(2, 256, 256)) * 15)


def _ring_2_5_1t() -> ModelProfile:
    """80 layers, Lightning:MLA 7:1, no convolution."""
    layers = (*(_linear(heads=64),) * 7, _mla()) * 10
    return _public("ring_2_5_1t", "Ring-2.5-1T", layers, assumed="; 70 + 10 of 80 layers assumed")


def _minimax_m2_5() -> ModelProfile:
    """62 layers, all full attention."""
    return _public("minimax_m2_5", "MiniMax-M2.5", (_gqa(8, 128, 128),) * 62)


def _qwen3_235b() -> ModelProfile:
    """94 layers, all full attention."""
    return _public("qwen3_235b", "Qwen3-235B", (_gqa(4, 128, 128),) * 94)


def _tiny_hybrid() -> ModelProfile:
    """Ten layers of every kind, for CPUs: `agents/shapes.py` has what computes them."""
    kda, gdn = _linear(4, 3 * 4 * 32, head_dim=32), _linear(4, (2 + 2 + 4) * 64, head_dim=64)
    lightning, mla = _linear(4, head_dim=64), LayerKv((256 + 32) * BF16_BYTES, fixed_bytes=0)
    window, gqa = _gqa(2, 64, 64, window_tokens=128), _gqa(2, 64, 64)
    layers = (kda, kda, gdn, mla, gdn, window, gqa, lightning, lightning, mla)
    return ModelProfile("tiny_hybrid", "made up: every kind of layer, small enough for a CPU", layers)


MODELS: dict[str, ModelProfile] = {
    model.name: model
    for model in (
        _internal_1t(),
        _kimi_linear_48b(),
        _mimo_v2_flash(),
        _qwen3_5_397b(),
        _ring_2_5_1t(),
        _minimax_m2_5(),
        _qwen3_235b(),
        _tiny_hybrid(),
    )
}

COMPRESSIONS: dict[str, Compression] = {
    "cachegen": Compression(
        name="cachegen",
        source="CacheGen, SIGCOMM 2024: 3.5 to 4.3 times smaller, the lower end taken, decoding negligible; "
        "its use on linear states and both rates (1 GB/s per GPU) assumed",
        ratio=3.5,
        compress_bytes_per_s=8e9,
        decompress_bytes_per_s=8e9,
    ),
    "half": Compression(
        name="half",
        source="half the bits of every element (bf16 to fp8, fp32 to bf16): ratio exact; "
        "both rates assumed, a fortieth of the memory bandwidth of 8 x H200 (38 TB/s)",
        ratio=2.0,
        compress_bytes_per_s=1e12,
        decompress_bytes_per_s=1e12,
    ),
}
