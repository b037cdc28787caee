"""Profiles against the tables they come from."""

import pytest

from agents.profiles import MIB, MODELS, PROFILES

H200, H20, MODEL = PROFILES["h200"], PROFILES["h20"], MODELS["internal_1t"]


@pytest.mark.parametrize(("tokens", "seconds"), [(1024, 0.44), (8192, 0.72), (32768, 1.84), (131072, 7.40)])
def test_prefill_meets_table_5(tokens: int, seconds: float) -> None:
    """At the paper's lengths an H200 instance takes the paper's times."""
    assert H200.prefill_s(tokens) == pytest.approx(seconds, rel=1e-12)


def test_prefill_is_a_power_law_between_knots() -> None:
    """Halfway between two knots, in logarithms, the time is the geometric mean of theirs."""
    assert H200.prefill_s((8192 * 32768) ** 0.5) == pytest.approx((0.72 * 1.84) ** 0.5)


def test_prefill_below_the_first_knot_keeps_the_first_slope() -> None:
    """From 128 to 1,024 tokens time grows by the same factor as from 1,024 to 8,192."""
    assert H200.prefill_s(1024) / H200.prefill_s(128) == pytest.approx(0.72 / 0.44)


@pytest.mark.parametrize("tokens", [-1, 0, 0.5, 131073])
def test_prefill_outside_the_profile_is_refused(tokens: float) -> None:
    """Nobody measured below one token or above 128K, so asking for it is an error that names the range."""
    with pytest.raises(ValueError, match="1 to 131072"):
        H200.prefill_s(tokens)


def test_decode_is_one_step_for_up_to_bs_max_requests() -> None:
    """An H20 instance generates 800 tokens per second with its 20 requests."""
    assert H20.bs_max / H20.step_s(H20.bs_max) == 800
    for batch in (0, 21):
        with pytest.raises(ValueError, match="outside 1 to 20"):
            H20.step_s(batch)


def test_decode_that_was_not_profiled_is_refused() -> None:
    """H200 instances serve prefill only."""
    with pytest.raises(ValueError, match="decode was not profiled"):
        H200.step_s(1)


@pytest.mark.parametrize(
    ("tokens", "mib", "tolerance"),
    [(1024, 190.8, 0.01), (8192, 308.9, 0.01), (32768, 701.3, 0.02), (131072, 2316.3, 0.01)],
)
def test_kv_size_meets_table_5(tokens: int, mib: float, tolerance: float) -> None:
    """KV sizes are the paper's within 1 %; within 2 % at 32K, where its own figures leave the line."""
    assert MODEL.kv_bytes(tokens) / MIB == pytest.approx(mib, rel=tolerance)


def test_layers_are_in_the_model_order() -> None:
    """Three KDA layers come before each of the 15 MLA layers, which alone grow with the prompt."""
    assert [layer.bytes_per_token for layer in MODEL.layers] == [0, 0, 0, 1152] * 15
    assert MODEL.bytes_per_token == 17280
    assert MODEL.fixed_bytes / MIB == pytest.approx(173.9, rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.037])
def test_kv_is_exactly_the_sum_of_its_layers(scale: float) -> None:
    """Layer sizes are whole bytes and add up to the whole KV cache, at any scale."""
    layers = [MODEL.layer_bytes(layer, 12345, scale) for layer in range(len(MODEL.layers))]
    assert all(type(size) is int for size in layers)
    assert MODEL.kv_bytes(12345, scale) == sum(layers)
    assert sum(layers) == pytest.approx(scale * MODEL.kv_bytes(12345), rel=1e-6)


@pytest.mark.parametrize(("tokens", "scale"), [(-1, 1.0), (1, 0.0), (1, -0.5)])
def test_kv_of_nonsense_is_refused(tokens: int, scale: float) -> None:
    """Negative lengths and scales that are not above 0 are errors."""
    with pytest.raises(ValueError, match="internal_1t"):
        MODEL.kv_bytes(tokens, scale)


def test_the_end_of_a_prompt_takes_its_windows_along() -> None:
    """Ten tokens of a long prompt: their KV of full layers, whole windows; of a short one what there is."""
    model = MODELS["mimo_v2_flash"]
    layers = range(len(model.layers))
    assert (
        sum(model.end_bytes(layer, 10, 8202) for layer in layers)
        == 10 * model.bytes_per_token + model.fixed_bytes
    )
    assert sum(model.end_bytes(layer, 64, 64) for layer in layers) == model.kv_bytes(64)
    plain = MODELS["internal_1t"]
    assert all(plain.end_bytes(layer, 10, 8202) == plain.layer_bytes(layer, 10) for layer in range(60))
