"""Models small enough for unit tests, and ways to run them."""

import msgspec
import torch

from agents.compute import Cache, Model
from agents.shapes import SHAPES, Attention, Shape

START = 1
# Small products only wait for each other on several threads.
torch.set_num_threads(1)


def shrunk(name: str, layers: int = 4) -> Shape:
    """A model's first layers with all sizes cut: heads of 16, their ratios kept where they can be."""
    shape = SHAPES[name]
    return Shape(
        name=name,
        source=shape.source,
        hidden_dim=48,
        ffn_dim=64,
        vocab=97,
        layers=tuple(_smaller(layer) for layer in shape.layers[:layers]),
    )


def _smaller(layer: Attention) -> Attention:
    heads = 4
    return msgspec.structs.replace(
        layer,
        heads=heads,
        kv_heads=max(heads * layer.kv_heads // layer.heads, 1) if layer.kv_heads else 0,
        key_dim=16,
        value_dim=16 if layer.value_dim == layer.key_dim else 8,
        rope_dim=8 if layer.rope_dim else 0,
        latent_dim=24 if layer.latent_dim else 0,
        window_tokens=min(layer.window_tokens, 40),
    )


def tiny(layers: int | None = None) -> Shape:
    """The tiny hybrid, shrunk further: every kind of layer."""
    return shrunk("tiny_hybrid", layers or len(SHAPES["tiny_hybrid"].layers))


def prompt_of(tokens: int, seed: int = 5) -> list[int]:
    return torch.randint(97, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def prefilled(model: Model, prompt: list[int], cache: Cache | None = None) -> Cache:
    cache = cache or Cache(model.shape, "cpu")
    assert list(model.prefill(prompt, cache)) == list(range(len(model.shape.layers)))
    return cache


def decoded(model: Model, cache: Cache, steps: int) -> tuple[list[int], list[bytes]]:
    """Tokens and logits of so many steps behind what the cache holds, whose copy takes them up."""
    cache, token, tokens, logits = cache.copy(), START, [], []
    for _ in range(steps):
        (token,), (row,) = model.step([token], [cache])
        tokens.append(token)
        logits.append(bytes(row))
    return tokens, logits


def packed(cache: Cache) -> list[bytes]:
    return [bytes(cache.pack(layer, cache.tokens)) for layer in range(len(cache.layers))]
