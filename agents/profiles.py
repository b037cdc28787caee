"""What computing costs: the hardware that everybody has. What the KV cache weighs is in `kv_layouts`, read
through here; profiles that a user recorded come from files (`testbed.profiles`).

Everything here is plain arithmetic on numbers measured by others; each table names its source. `h200` and
the throughputs of the public models are from the paper (arXiv 2604.15039); `h20` is solved from the paper's
results, as its docstring says.
"""

from collections.abc import Mapping

from agents.compute_profile import ComputeProfile, PowerLaw
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
    "find",
]

TABLE_TOKENS = (1024, 8192, 32768, 131072)
"""Prompt lengths of tables 3 and 5, in tokens."""


def find(name: str, own: Mapping[str, ComputeProfile]) -> ComputeProfile:
    """The profile of this name: the run's own (`Config.profiles`), else one of `PROFILES`; KeyError."""
    return own[name] if name in own else PROFILES[name]


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
