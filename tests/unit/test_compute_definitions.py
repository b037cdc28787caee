"""Kernels, mixers and whole models against `compute_definitions`: plain numpy in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.compute import START_TOKEN, Cache, Model
from agents.compute.attention import rotate
from agents.compute.cache import LayerCache
from agents.compute.linear import chunked, recur
from agents.compute.mixers import Mixer, mixer
from agents.compute.weights import Draw
from agents.shapes import SHAPES, Attention, Shape
from tests.unit import compute_definitions as definitions
from tests.unit.compute_definitions import Array
from tests.unit.small_shapes import prefilled, prompt_of, shrunk

TOKENS = [1, 63, 65, 130]
"""Around one and two chunks of 64."""
STEPS = 4
HIDDEN = 48
CLOSE = 1e-10
"""Largest difference that float64 may leave between two orders of the same sums."""

# Heads share keys, and a value is not as wide as a key, but for one plain case that is rotated whole.
LAYERS = [
    Attention("gqa", 6, 16, 10, kv_heads=2, rope_dim=8),
    Attention("gqa", 4, 16, 16, kv_heads=4, rope_dim=16),
    Attention("window", 6, 16, 10, kv_heads=3, rope_dim=8, window_tokens=40),
    Attention("mla", 3, 16, 10, rope_dim=8, latent_dim=24),
    Attention("kda", 4, 16, 10, kv_heads=2),
    Attention("gdn", 6, 16, 10, kv_heads=2),
    Attention("lightning", 4, 16, 10, kv_heads=2),
]


def normal(*sizes: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(sizes)


def weights_of(part: object) -> dict[str, Array]:
    """All tensors of a mixer, under the names that it has for them."""
    return {name: value.numpy() for name, value in vars(part).items() if isinstance(value, Tensor)}


def farthest(found: Tensor, expected: Array) -> float:
    """The largest difference; sizes must be the same."""
    assert tuple(found.shape) == expected.shape
    return float(np.abs(found.double().numpy() - expected).max(initial=0))


def outputs_of(layer: Mixer, x: Tensor, cache: LayerCache, prefix: int, prompt: int) -> Tensor:
    """A prefix first, the prompt's other tokens in segments of 50, and what is behind it one by one."""
    outputs = list(layer.prompt([x[:prefix]] if prefix else [], cache))
    outputs += layer.prompt(
        [x[start : min(start + 50, prompt)] for start in range(prefix, prompt, 50)], cache
    )
    outputs += [layer.step(x[token : token + 1], [cache]) for token in range(prompt, len(x))]
    return torch.cat(outputs)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("decays", "delta"), [(8, True), (1, True), (1, False)])
def test_both_linear_kernels_are_the_recurrence(decays: int, delta: bool, tokens: int) -> None:
    """Behind any state, outputs and the last state are those of the formula, to 1e-10."""
    q, k = normal(2, tokens, 8, seed=1), normal(2, tokens, 8, seed=2)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, state = normal(2, tokens, 6, seed=3), normal(2, 8, 6, seed=4)
    g = -np.exp(normal(2, tokens, decays, seed=5) - 2)
    b = definitions.sigmoid(normal(2, tokens, seed=6)) if delta else None
    expected, expected_state = definitions.recurrence(q, k, v, g, b, state=state)
    parts = [torch.from_numpy(part) for part in (q, k, v, g, b) if part is not None]
    for kernel in (recur, chunked):
        outputs, end = kernel(*parts, state=torch.from_numpy(state))
        assert farthest(outputs, expected) < CLOSE, kernel.__name__
        assert farthest(end, expected_state) < CLOSE, kernel.__name__


@pytest.mark.parametrize("rope_dim", [0, 2, 6, 8])
def test_rotation_turns_pairs_as_complex_numbers(rope_dim: int) -> None:
    """Each pair is turned by its own frequency times the position, to 1e-10; the rest stays."""
    positions = [0, 1, 77, 5000]
    x = normal(len(positions), 3, 8)
    expected = [
        definitions.turned(row, position, rope_dim) for row, position in zip(x, positions, strict=True)
    ]
    found = rotate(torch.from_numpy(x), torch.tensor(positions), rope_dim)
    assert farthest(found, np.stack(expected)) < CLOSE


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("sizes", LAYERS, ids=[f"{sizes.kind}{sizes.kv_heads}" for sizes in LAYERS])
def test_a_mixer_is_its_definition(sizes: Attention, tokens: int) -> None:
    """Prefilled, stepped, or in pieces of both: outputs and cache are those of the formula, to 1e-10."""
    layer = mixer(sizes, HIDDEN, Draw(3, torch.float64, "cpu"))
    shape = Shape("one layer", "made up", HIDDEN, ffn_dim=64, vocab=97, layers=(sizes,))
    x = definitions.rms_norm(normal(tokens, HIDDEN, seed=tokens))
    expected, expected_parts = definitions.mixed(sizes, weights_of(layer), x)
    for prefix, prompt in ((0, tokens), (0, 0), (tokens // 3, tokens // 2), (tokens // 2, tokens)):
        (cache,) = Cache(shape, "cpu", state_dtype=torch.float64).layers
        found = outputs_of(layer, torch.from_numpy(x), cache, prefix, prompt)
        assert farthest(found, expected) < CLOSE, (prefix, prompt)
        for part, expected_part in zip(cache.parts(tokens), expected_parts, strict=True):
            assert farthest(part, expected_part) < CLOSE, (prefix, prompt)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_is_its_definition(name: str, exact: bool) -> None:
    """Logits behind prompts of all lengths, stepped as one batch, are those of the formulas, to 1e-8."""
    shape = shrunk(name, 10 if name == "tiny_hybrid" else 4)
    model = Model(shape, seed=2, device="cpu", exact=exact, dtype=torch.float64)
    prompts = [prompt_of(tokens, seed=tokens) for tokens in TOKENS]
    caches = [prefilled(model, prompt, Cache(shape, "cpu", state_dtype=torch.float64)) for prompt in prompts]
    given, logits = [[START_TOKEN] * len(prompts)], []
    for _ in range(STEPS):
        chosen, rows = model.step(given[-1], caches)
        given.append(chosen)
        logits.append(np.stack([np.frombuffer(row) for row in rows]))
    layers = [
        {**weights_of(layer.mixer), "up": layer._up.numpy(), "down": layer._down.numpy()}
        for layer in model._layers
    ]
    for number, prompt in enumerate(prompts):
        ids = [*prompt, *(tokens[number] for tokens in given[:-1])]
        expected = definitions.logits(shape, model._embedding.numpy(), model._head.numpy(), layers, ids)
        found = np.stack([rows[number] for rows in logits])
        assert np.abs(found - expected[len(prompt) :]).max() < 1e-8, len(prompt)
        assert [tokens[number] for tokens in given[1:]] == list(expected[len(prompt) :].argmax(-1))
