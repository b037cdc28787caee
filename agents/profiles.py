"""What computing costs: profiled hardware. What the KV cache weighs is in `kv_layouts`, read through here.

Everything here is plain arithmetic on numbers measured by others; each table names its source. `h200` and
the throughputs of the public models are from the paper (arXiv 2604.15039); `h20` is solved from the paper's
results, as its docstring says.
"""

from bisect import bisect_right
from itertools import pairwise
from math import exp, log

import msgspec

from agents.kv_layouts import COMPRESSIONS, MIB, MODELS, Compression, LayerKv, ModelProfile

__all__ = [
    "COMPRESSIONS",
    "MIB",
    "MODELS",
    "PROFILES",
    "TABLE_TOKENS",
    "Compression",
    "ComputeProfile",
    "LayerKv",
    "ModelProfile",
    "PowerLaw",
]

TABLE_TOKENS = (1024, 8192, 32768, 131072)
"""Prompt lengths of tables 3 and 5, in tokens."""


class PowerLaw(msgspec.Struct, frozen=True):
    """Prefill time of `factor_s` * tokens ** `exponent` seconds for above_tokens < tokens <= up_to_tokens."""

    above_tokens: float
    up_to_tokens: float
    factor_s: float
    exponent: float


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

    def power_laws(self) -> tuple[PowerLaw, ...]:
        """What `prefill_s` is made of: a power law per segment, the first from 0 on, the last to the end."""
        laws = []
        for number, ((tokens_0, seconds_0), (tokens_1, seconds_1)) in enumerate(pairwise(self.knots)):
            exponent = log(seconds_1 / seconds_0) / log(tokens_1 / tokens_0)
            factor_s = seconds_0 / tokens_0**exponent
            laws.append(PowerLaw(tokens_0 if number else 0.0, tokens_1, factor_s, exponent))
        return tuple(laws)

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


def _h200_by_model(name: str, kv_gbps: tuple[float, float, float, float]) -> ComputeProfile:
    """8 x H200 running a public model, prefill only: its KV size over the KV throughput of table 3.

    `kv_gbps` is printed for the lengths of TABLE_TOKENS; all of them are longer than any window.
    """
    model = MODELS[name]
    return ComputeProfile(
        name=h200_for(name),
        source="arXiv 2604.15039, table 3, 8 x H200, SGLang 0.5.9: KV size / printed KV throughput",
        knots=tuple(
            (tokens, 8 * (model.bytes_per_token * tokens + model.fixed_bytes) / (gbps * 1e9))
            for tokens, gbps in zip(TABLE_TOKENS, kv_gbps, strict=True)
        ),
    )


def h200_for(model: str) -> str:
    """The key in `PROFILES` of 8 x H200 running this model: `h200` runs the paper's own."""
    return "h200" if model == "internal_1t" else f"h200_{model}"


PROFILES: dict[str, ComputeProfile] = {
    profile.name: profile
    for profile in (
        _h200(),
        _h20(),
        _h200_by_model("kimi_linear_48b", (1.19, 2.29, 3.87, 4.88)),
        _h200_by_model("mimo_v2_flash", (0.82, 2.85, 4.66, 4.71)),
        _h200_by_model("qwen3_5_397b", (4.13, 6.28, 8.25, 7.47)),
        _h200_by_model("ring_2_5_1t", (7.27, 4.47, 2.59, 1.46)),
        _h200_by_model("minimax_m2_5", (4.94, 32.87, 59.93, 47.82)),
        _h200_by_model("qwen3_235b", (4.12, 22.42, 33.35, 21.50)),
    )
}
