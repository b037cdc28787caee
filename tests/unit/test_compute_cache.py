"""The cache's bytes: exact sizes, what joins and what does not."""

import msgspec
import pytest
import torch

from agents.compute import Cache, Model
from agents.kv_layouts import MODELS, ModelProfile
from agents.shapes import SHAPES, Shape
from tests.unit.small_shapes import packed, prefilled, prompt_of, tiny


@pytest.fixture(scope="module")
def cache() -> Cache:
    """Every kind of layer, 200 tokens in."""
    return prefilled(Model(tiny(), seed=1, device="cpu"), prompt_of(200))


def number_of(kind: str, shape: Shape) -> int:
    return [layer.kind for layer in shape.layers].index(kind)


@pytest.mark.parametrize("last_tokens", [0, 1, 30, 50, 200])
def test_bytes_of_an_end_are_those_of_the_layout(cache: Cache, last_tokens: int) -> None:
    """The last tokens of full layers, whole windows and states: exactly `end_bytes`, layer by layer."""
    layout = ModelProfile("tiny", "", tuple(layer.layer_kv for layer in tiny().layers))
    for layer in range(len(layout.layers)):
        size_bytes = layout.end_bytes(layer, last_tokens, 200)
        assert len(cache.pack(layer, last_tokens)) == cache.size_bytes(layer, last_tokens) == size_bytes


def test_more_than_is_held_cannot_be_packed(cache: Cache) -> None:
    """Asking for 201 of 200 tokens is an error, not 200."""
    with pytest.raises(ValueError, match="the last 201 of 200"):
        cache.pack(0, 201)


@pytest.mark.parametrize(
    ("kind", "changed", "tokens", "message"),
    [
        ("gqa", -1, 200, "bytes for rows of"),
        ("gqa", 0, 300, "behind the 0 held"),
        ("gqa", 0, 100, "behind the 0 held"),
        ("window", 0, 30, "window of 40"),
        ("window", -1, 200, "bytes for rows of"),
        ("kda", -2, 200, "bytes for a state of"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(
    cache: Cache, kind: str, changed: int, tokens: int, message: str
) -> None:
    """Too few bytes, or rows with a gap before them, leave an error, never a cache that looks whole."""
    layer = number_of(kind, tiny())
    data = bytes(cache.pack(layer, 200))
    with pytest.raises(ValueError, match=message):
        Cache(tiny(), "cpu").fill(layer, data[: len(data) + changed], tokens)


def test_rows_that_come_again_replace_those_held(cache: Cache) -> None:
    """Filling the last 150 over 100 held is the same as filling all."""
    layer = number_of("mla", tiny())
    whole = bytes(cache.pack(layer, 200))
    row = len(whole) // 200
    other = Cache(tiny(), "cpu")
    other.fill(layer, whole[: 100 * row], 100)
    other.fill(layer, whole[50 * row :], 200)
    assert bytes(other.pack(layer, 200)) == whole


def test_bytes_are_copied_in(cache: Cache) -> None:
    """A buffer that is used again after `fill` changes nothing."""
    other = Cache(tiny(), "cpu")
    for layer in range(len(tiny().layers)):
        data = bytearray(cache.pack(layer, 200))
        other.fill(layer, data, 200)
        data[:] = bytes(len(data))
    assert packed(other) == packed(cache)


def test_a_copy_goes_its_own_way(cache: Cache) -> None:
    """Steps on a copy leave the original as it was."""
    before = packed(cache)
    model = Model(tiny(), seed=1, device="cpu")
    copy = cache.copy()
    for _ in range(3):
        model.step([1], [copy])
    assert copy.tokens == 203
    assert packed(cache) == before


def test_kept_rows_are_bf16_and_states_fp32(cache: Cache) -> None:
    """Bytes read as what the layout says they are give finite numbers of a sane size."""
    rows = torch.frombuffer(bytearray(cache.pack(number_of("gqa", tiny()), 200)), dtype=torch.bfloat16)
    assert 0.3 < rows.float().square().mean() < 3
    state_bytes = 4 * 16 * 16 * 4
    state = torch.frombuffer(
        bytearray(cache.pack(number_of("kda", tiny()), 0)[:state_bytes]), dtype=torch.float32
    )
    assert state.isfinite().all()
    assert 1e-4 < state.abs().max() < 100


@pytest.mark.parametrize("tokens", [100, 600])
@pytest.mark.parametrize("name", SHAPES)
def test_full_sizes_weigh_what_the_layout_says(name: str, tokens: int) -> None:
    """The tensors that a prefill leaves have the bytes of `kv_bytes`, layer by layer.

    Models have dozens of layers alike: one of each is computed, in full size.
    """
    whole, layout = SHAPES[name], MODELS[name]
    assert [layer.layer_kv for layer in whole.layers] == list(layout.layers)
    shape = msgspec.structs.replace(whole, layers=tuple(dict.fromkeys(whole.layers)))
    cache = Cache(shape, "meta")
    layers = list(Model(shape, seed=1, device="meta").prefill([0] * tokens, cache))
    sizes = {shape.layers[layer]: cache.size_bytes(layer, tokens) for layer in layers}
    found = [sizes[layer] for layer in whole.layers]
    assert found == [layout.layer_bytes(layer, tokens) for layer in range(len(whole.layers))]
    assert sum(found) == layout.kv_bytes(tokens)
