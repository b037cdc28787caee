"""Shapes against the KV layouts that they stand beside."""

import pytest

from agents.kv_layouts import MODELS
from agents.shapes import SHAPES


def test_every_shape_has_a_layout() -> None:
    """Names are the keys in both lists; of the paper's own model no sizes are known."""
    assert set(SHAPES) == set(MODELS) - {"internal_1t"}
    assert all(name == shape.name and shape.source for name, shape in SHAPES.items())


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_give_the_layout(name: str) -> None:
    """Layer by layer, heads and dimensions amount to the bytes that the layout has."""
    assert tuple(layer.layer_kv for layer in SHAPES[name].layers) == MODELS[name].layers


def test_first_layers() -> None:
    """A shape cut off keeps its sizes and first layers; more layers than there are, or none, are refused."""
    shape = SHAPES["kimi_linear_48b"]
    assert shape.first(5).layers == shape.layers[:5]
    assert shape.first(5).hidden_dim == shape.hidden_dim
    for layers in (0, 28):
        with pytest.raises(ValueError, match="1 to 27"):
            shape.first(layers)


def test_the_tiny_model_has_every_kind() -> None:
    """What runs on the tiny model has met every kind of layer."""
    assert {layer.kind for layer in SHAPES["tiny_hybrid"].layers} == {
        layer.kind for shape in SHAPES.values() for layer in shape.layers
    }
