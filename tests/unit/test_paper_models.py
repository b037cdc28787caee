"""KV sizes, prefill times and egress of the paper's models against tables 1, 3 and 5 of arXiv 2604.15039."""

import pytest

from agents.model import cluster_egress_bps
from agents.profiles import MIB, MODELS, PROFILES, TABLE_TOKENS

PUBLIC = {
    # bytes per token, fixed MiB, layers full / linear / window, then KV Gbps and seconds for TABLE_TOKENS
    "kimi_linear_48b": (8064, 41.4, (7, 20, 0), (1.19, 2.29, 3.87, 4.88), (0.347, 0.382, 0.636, 1.804)),
    "mimo_v2_flash": (23040, 24.4, (9, 0, 39), (0.82, 2.85, 4.66, 4.71), (0.480, 0.602, 1.340, 5.173)),
    "qwen3_5_397b": (30720, 183.2, (15, 45, 0), (4.13, 6.28, 8.25, 7.47), (0.433, 0.565, 1.162, 4.518)),
    "ring_2_5_1t": (11520, 280.0, (10, 70, 0), (7.27, 4.47, 2.59, 1.46), (0.336, 0.694, 2.073, 9.882)),
    "minimax_m2_5": (253952, 0.0, (62, 0, 0), (4.94, 32.87, 59.93, 47.82), (0.421, 0.506, 1.111, 5.569)),
    "qwen3_235b": (192512, 0.0, (94, 0, 0), (4.12, 22.42, 33.35, 21.50), (0.383, 0.563, 1.513, 9.389)),
}
PERIODS = {
    # layers of one kind for each full one, table 1
    "internal_1t": 3,
    "kimi_linear_48b": 3,
    "mimo_v2_flash": 5,
    "qwen3_5_397b": 3,
    "ring_2_5_1t": 7,
    "minimax_m2_5": 0,
    "qwen3_235b": 0,
}


def test_every_model_is_checked_here() -> None:
    """The paper's models all have a row here, so a test; names are the keys, sources are told."""
    assert set(MODELS) - {"tiny_hybrid"} == set(PERIODS) == {*PUBLIC, "internal_1t"}
    assert all(name == model.name and model.source for name, model in MODELS.items())
    assert all("arXiv" in MODELS[name].source for name in PERIODS)
    assert set(PROFILES) == {"h200", "h20", *(f"h200_{name}" for name in PUBLIC)}
    assert all(name == profile.name and profile.source for name, profile in PROFILES.items())


@pytest.mark.parametrize("name", PUBLIC)
def test_layouts_have_the_derived_sizes(name: str) -> None:
    """Bytes per token are exact, what does not grow is right to its printed digit."""
    bytes_per_token, fixed_mib, kinds, _, _ = PUBLIC[name]
    model = MODELS[name]
    assert model.bytes_per_token == bytes_per_token
    assert model.fixed_bytes / MIB == pytest.approx(fixed_mib, abs=0.05)
    found = [layer.kind for layer in model.layers]
    assert tuple(found.count(kind) for kind in ("full", "linear", "window")) == kinds


@pytest.mark.parametrize(("name", "period"), PERIODS.items())
def test_layers_alternate_in_the_printed_ratio(name: str, period: int) -> None:
    """Before each full layer stand as many others as table 1 says, one fewer at most twice, at the ends."""
    gaps, since = [], 0
    for layer in MODELS[name].layers:
        if layer.kind == "full":
            gaps.append(since)
            since = 0
        else:
            since += 1
    assert since == 0
    ends = {"kimi_linear_48b": [*[3] * 6, 2], "mimo_v2_flash": [0, 4, *[5] * 7]}
    assert gaps == ends.get(name, [period] * len(gaps))


@pytest.mark.parametrize("name", PUBLIC)
def test_prefill_times_follow_from_table_3(name: str) -> None:
    """Size over printed throughput gives the derived times, rounded to a millisecond."""
    _, _, _, kv_gbps, seconds = PUBLIC[name]
    model, profile = MODELS[name], PROFILES[f"h200_{name}"]
    for tokens, gbps, prefill_s in zip(TABLE_TOKENS, kv_gbps, seconds, strict=True):
        assert profile.prefill_s(tokens) == pytest.approx(prefill_s, abs=0.00051)
        assert 8 * model.kv_bytes(tokens) / profile.prefill_s(tokens) == pytest.approx(gbps * 1e9)
    assert profile.bs_max == 0


def test_a_window_holds_no_more_than_its_tokens() -> None:
    """MiMo's sliding layers grow to 128 tokens of 8 heads x (192 + 128) x 2 bytes, then stop."""
    model = MODELS["mimo_v2_flash"]
    assert (model.layers[0].kind, model.layers[1].kind) == ("full", "window")
    assert [model.layer_bytes(1, tokens) for tokens in (0, 100, 128, 5000)] == [0, 512000, 655360, 655360]
    assert model.kv_bytes(5000) == 5000 * model.bytes_per_token + model.fixed_bytes
    assert model.kv_bytes(100) == 100 * (9 * 2560 + 39 * 5120)


@pytest.mark.parametrize(
    ("name", "tokens", "gbps", "tolerance"),
    [
        ("minimax_m2_5", 32768, 3800, 0.02),
        ("qwen3_235b", 32768, 2100, 0.02),
        ("ring_2_5_1t", 32768, 170, 0.03),
        ("ring_2_5_1t", 131072, 93.4, 0.01),
    ],
)
def test_egress_of_512_gpus(name: str, tokens: int, gbps: float, tolerance: float) -> None:
    """64 instances of 8 GPUs send 3.8 Tbps, 2.1 Tbps, about 170 Gbps; Ring at 128K stays below 100 Gbps."""
    egress = cluster_egress_bps(MODELS[name], PROFILES[f"h200_{name}"], tokens, instances=64)
    assert egress == pytest.approx(gbps * 1e9, rel=tolerance)


@pytest.mark.parametrize(
    ("tokens", "gbps", "tolerance"),
    [(1024, 3.61, 0.02), (8192, 3.59, 0.02), (32768, 3.19, 0.03), (131072, 2.62, 0.02)],
)
def test_internal_model_produces_table_5(tokens: int, gbps: float, tolerance: float) -> None:
    """KV throughput of one instance is the printed one, within what the KV sizes leave the line."""
    produced = cluster_egress_bps(MODELS["internal_1t"], PROFILES["h200"], tokens, instances=1)
    assert produced == pytest.approx(gbps * 1e9, rel=tolerance)
