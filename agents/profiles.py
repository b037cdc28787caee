"""What computing costs and what KV cache weighs: profiled hardware and model layouts.

Everything here is plain arithmetic on numbers measured by others; each table names its source. `h200` and
`internal_1t` are from the paper (arXiv 2604.15039); `h20` is solved from the paper's results, as its
docstring says.
"""

from bisect import bisect_right
from math import exp, log

import msgspec

MIB = 1024 * 1024


class ComputeProfile(msgspec.Struct, frozen=True):
    """Time one instance needs: prefill by length, decode by step.

    `knots` are (tokens, seconds), ascending in both; `bs_max` is 0 and `decode_step_s` None where decode was
    not profiled (the hardware serves prefill only).
    """

    name: str
    source: str
    knots: tuple[tuple[int, float], ...]
    bs_max: int = 0
    decode_step_s: float | None = None

    @property
    def max_tokens(self) -> int:
        """Longest prompt the profile covers, in tokens."""
        return self.knots[-1][0]

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill `tokens` uncached tokens, interpolated log-log between the knots.

        Below the first knot the first segment is extended with its slope down to 1 token: the fixed cost of a
        forward pass dominates there, and the slope (0.24 for h200) keeps it. Above the last knot nothing is
        known.

        Raises:
            ValueError: `tokens` is below 1 or above `max_tokens`.
        """
        if not 1 <= tokens <= self.max_tokens:
            raise ValueError(
                f"{self.name}: prefill of {tokens} tokens is outside the profile, 1 to {self.max_tokens}"
            )
        right = bisect_right(self.knots, tokens, key=lambda knot: knot[0])
        right = min(max(right, 1), len(self.knots) - 1)
        (tokens_0, seconds_0), (tokens_1, seconds_1) = self.knots[right - 1], self.knots[right]
        slope = log(seconds_1 / seconds_0) / log(tokens_1 / tokens_0)
        return seconds_0 * exp(slope * log(tokens / tokens_0))

    def step_s(self, batch: int) -> float:
        """Seconds of one decode step for `batch` requests: the paper gives one value for any batch that fits.

        Raises:
            ValueError: decode was not profiled, or `batch` is outside 1 to `bs_max`.
        """
        if self.decode_step_s is None:
            raise ValueError(f"{self.name}: decode was not profiled")
        if not 1 <= batch <= self.bs_max:
            raise ValueError(f"{self.name}: a decode batch of {batch} is outside 1 to {self.bs_max}")
        return self.decode_step_s


class LayerKv(msgspec.Struct, frozen=True):
    """KV cache of one layer at scale 1: `bytes_per_token` of cache and `fixed_bytes` of linear state."""

    bytes_per_token: int
    fixed_bytes: int


class ModelProfile(msgspec.Struct, frozen=True):
    """KV cache layout of one model, layer by layer in the order in which prefill computes them."""

    name: str
    source: str
    layers: tuple[LayerKv, ...]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token adds to the KV cache, all layers, at scale 1."""
        return sum(layer.bytes_per_token for layer in self.layers)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a request's KV cache that do not depend on its length, all layers, at scale 1."""
        return sum(layer.fixed_bytes for layer in self.layers)

    def layer_bytes(self, layer: int, tokens: int, scale: float = 1.0) -> int:
        """Bytes that layer number `layer` (from 0) of a `tokens` long prompt puts on the wire, at `scale`.

        Raises:
            ValueError: `tokens` is negative or `scale` is not above 0.
            IndexError: the model has no such layer.
        """
        if tokens < 0 or scale <= 0:
            raise ValueError(f"{self.name}: KV of {tokens} tokens at scale {scale}")
        kv = self.layers[layer]
        exact = kv.bytes_per_token * tokens + kv.fixed_bytes
        return exact if scale == 1.0 else round(exact * scale)

    def kv_bytes(self, tokens: int, scale: float = 1.0) -> int:
        """Bytes of the whole KV cache: exactly the sum of `layer_bytes`, whose errors it shares."""
        return sum(self.layer_bytes(layer, tokens, scale) for layer in range(len(self.layers)))


def _h200() -> ComputeProfile:
    """8 x H200 running the paper's internal 1T model, prefill only (table 5: 0.44, 0.72, 1.84, 7.40 s)."""
    return ComputeProfile(
        name="h200",
        source="arXiv 2604.15039, table 5, 8 x H200",
        knots=((1024, 0.44), (8192, 0.72), (32768, 1.84), (131072, 7.40)),
    )


def _h20() -> ComputeProfile:
    """8 x H20 running the same model; the paper prints no profile.

    Prefill is solved from four throughputs of table 6; the 1K knot is
    weakly determined. Decode is 20 requests in 25 ms: 800 tokens/s per instance from theta_d = 3.91 with 5
    instances and 1,024 output tokens, at the objective of 40 tokens/s a request.
    """
    return ComputeProfile(
        name="h20",
        source="derived from arXiv 2604.15039, table 6 and its objective of 40 tokens/s, 8 x H20",
        knots=((1024, 0.655), (8192, 1.513), (32768, 4.958), (131072, 21.151)),
        bs_max=20,
        decode_step_s=0.025,
    )


def _internal_1t() -> ModelProfile:
    """The paper's internal 1T model: 60 layers, KDA:MLA 3:1 (table 1), KV size as in table 5.

    15 MLA layers hold 1,152 bytes a token each (512 + 64 bf16 values): 17,280 bytes a token. 45 KDA layers
    share the 173.9 MiB that table 5 leaves at length 0. The sum meets table 5 within 1 % at 1K, 8K and 128K
    and lies 1.8 % above it at 32K, where the printed sizes themselves leave the line.
    """
    kda = LayerKv(bytes_per_token=0, fixed_bytes=round(173.9 * MIB / 45))
    mla = LayerKv(bytes_per_token=1152, fixed_bytes=0)
    return ModelProfile(
        name="internal_1t",
        source="arXiv 2604.15039, tables 1 and 5; split into layers derived",
        layers=(kda, kda, kda, mla) * 15,
    )


PROFILES: dict[str, ComputeProfile] = {"h200": _h200(), "h20": _h20()}
MODELS: dict[str, ModelProfile] = {"internal_1t": _internal_1t()}
