"""Whole models: prefill, decode and cached prefixes agree, most of it bit for bit."""

import numpy as np
import pytest
import torch

from agents.compute import SEGMENT_TOKENS, Cache, Model
from agents.shapes import SHAPES
from tests.unit.small_shapes import START, decoded, packed, prefilled, prompt_of, shrunk, tiny

STEPS = 6


@pytest.fixture(scope="module")
def model() -> Model:
    """Every kind of layer, in fp32."""
    return Model(tiny(), seed=1, device="cpu")


def kinds_of_tiny() -> list[str]:
    return [layer.kind for layer in tiny().layers]


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_then_steps_is_token_by_token(name: str) -> None:
    """In float64 a prompt prefilled gives the logits of the same tokens stepped, to 1e-8.

    The cache is bf16 in both, so that a number may in principle fall on either side of a rounding.
    """
    shape = shrunk(name, 10 if name == "tiny_hybrid" else 4)
    model = Model(shape, seed=2, device="cpu", dtype=torch.float64)
    prompt = prompt_of(SEGMENT_TOKENS + 20 if name == "tiny_hybrid" else 140)
    at_once = prefilled(model, prompt, Cache(shape, "cpu", state_dtype=torch.float64))
    stepped = Cache(shape, "cpu", state_dtype=torch.float64)
    for token in prompt:
        model.step([token], [stepped])
    tokens, logits = decoded(model, at_once, STEPS)
    expected_tokens, expected_logits = decoded(model, stepped, STEPS)
    assert tokens == expected_tokens
    for row, expected in zip(logits, expected_logits, strict=True):
        assert np.abs(np.frombuffer(row) - np.frombuffer(expected)).max() < 1e-8


@pytest.mark.parametrize("name", SHAPES)
def test_bytes_that_crossed_decode_to_the_same_bits(name: str) -> None:
    """Packed, filled into an empty cache and decoded by a second model: the same logits, bit for bit."""
    shape = shrunk(name, 10 if name == "tiny_hybrid" else 4)
    cache = prefilled(Model(shape, seed=3, device="cpu"), prompt_of(300))
    other = Cache(shape, "cpu")
    for layer, data in enumerate(packed(cache)):
        other.fill(layer, data, 300)
    assert other.tokens == 300
    tokens, logits = decoded(Model(shape, seed=3, device="cpu"), cache, STEPS)
    assert decoded(Model(shape, seed=3, device="cpu"), other, STEPS) == (tokens, logits)
    assert len(logits[0]) == 4 * shape.vocab


def test_a_prefix_of_whole_segments_changes_no_bit(model: Model) -> None:
    """States kept behind a segment, and what is computed from there, are the whole prompt's."""
    prompt = prompt_of(2 * SEGMENT_TOKENS + 100)
    kept = Cache(model.shape, "cpu")
    whole = Cache(model.shape, "cpu")
    list(model.prefill(prompt, whole, {SEGMENT_TOKENS: kept}))
    for layer, data in enumerate(packed(whole)):
        if model.shape.layers[layer].layer_kv.kind == "full":
            assert kept.layers[layer].tokens == 0
            kept.fill(layer, data[: len(data) * SEGMENT_TOKENS // len(prompt)], SEGMENT_TOKENS)
    assert kept.tokens == SEGMENT_TOKENS
    assert packed(kept) == packed(prefilled(model, prompt[:SEGMENT_TOKENS]))
    assert packed(prefilled(model, prompt, kept)) == packed(whole)


@pytest.mark.parametrize("cached", [1, 100, SEGMENT_TOKENS + 1, 699])
def test_any_other_prefix_leaves_the_tokens(model: Model, cached: int) -> None:
    """Behind a prefix that ends within a segment results are rounded elsewhere; tokens are the same."""
    prompt = prompt_of(700)
    from_prefix = prefilled(model, prompt, prefilled(model, prompt[:cached]))
    assert decoded(model, from_prefix, STEPS)[0] == decoded(model, prefilled(model, prompt), STEPS)[0]


def test_decode_joins_a_prefix_it_has_and_the_end_that_came(model: Model) -> None:
    """Full layers from two pieces, windows and states whole: bit for bit what prefill has."""
    prompt = prompt_of(2 * SEGMENT_TOKENS + 30)
    cache = prefilled(model, prompt)
    joined = prefilled(model, prompt[:SEGMENT_TOKENS])
    for layer in range(len(cache.layers)):
        joined.fill(layer, cache.pack(layer, len(prompt) - SEGMENT_TOKENS), len(prompt))
    assert packed(joined) == packed(cache)
    assert decoded(model, joined, STEPS) == decoded(model, cache, STEPS)


def test_nobody_in_a_batch_touches_another(model: Model) -> None:
    """Logits of requests of different lengths, stepped together, are bit for bit those of each alone."""
    caches = [prefilled(model, prompt_of(tokens, seed=tokens)) for tokens in (3, 64, 130, 200)]
    alone = [decoded(model, cache, STEPS) for cache in caches]
    tokens = [START] * len(caches)
    for step in range(STEPS):
        tokens, logits = model.step(tokens, caches)
        assert tokens == [found[step] for found, _ in alone]
        assert [bytes(row) for row in logits] == [rows[step] for _, rows in alone]


def test_a_batch_computed_together_is_near_each_alone(model: Model) -> None:
    """Batched products round elsewhere, and are the same computation: logits agree to 1e-2."""
    batched = Model(tiny(), seed=1, device="cpu", exact=False)
    caches = [prefilled(model, prompt_of(tokens, seed=tokens)) for tokens in (3, 64, 130)]
    _, alone = model.step([START] * 3, [cache.copy() for cache in caches])
    _, together = batched.step([START] * 3, caches)
    for one, other in zip(alone, together, strict=True):
        difference = np.frombuffer(one, dtype=np.float32) - np.frombuffer(other, dtype=np.float32)
        assert np.abs(difference).max() < 1e-2


def test_kv_decides_what_is_said(model: Model) -> None:
    """One bit of one layer's bytes is seen in the logits: a layer that is ignored would prove nothing."""
    cache = prefilled(model, prompt_of(200))
    _, expected = decoded(model, cache, 1)
    for layer, kind in enumerate(kinds_of_tiny()):
        changed = cache.copy()
        data = bytearray(cache.pack(layer, 200))
        data[-1] ^= 0x80  # the sign of the last number
        changed.fill(layer, data, 200)
        assert decoded(model, changed, 1)[1] != expected, kind


def test_a_layer_is_final_when_it_is_yielded(model: Model) -> None:
    """What is packed when a layer is yielded is what is there at the end; later layers hold nothing yet."""
    cache = Cache(model.shape, "cpu")
    early = []
    for layer in model.prefill(prompt_of(600), cache):
        early.append(bytes(cache.pack(layer, 600)))
        assert all(later.tokens == 0 for later in cache.layers[layer + 1 :])
    assert early == packed(cache)


def test_weights_and_runs_repeat(model: Model) -> None:
    """The same seed says the same, another seed something else."""
    prompt = prompt_of(50)
    found = decoded(model, prefilled(model, prompt), STEPS)
    for seed, same in ((1, True), (2, False)):
        other = Model(tiny(), seed=seed, device="cpu")
        assert (decoded(other, prefilled(other, prompt), STEPS) == found) is same


def test_a_prompt_wholly_cached_needs_nothing(model: Model) -> None:
    """Layers are yielded, nothing is computed; more in the cache than in the prompt is refused."""
    cache = prefilled(model, prompt_of(70))
    before = packed(cache)
    assert packed(prefilled(model, prompt_of(70), cache)) == before
    with pytest.raises(ValueError, match="60 tokens, of which 70"):
        list(model.prefill(prompt_of(60), cache))
    with pytest.raises(ValueError, match="keep at \\[100\\]"):
        list(model.prefill(prompt_of(600), Cache(model.shape, "cpu"), {100: cache}))
