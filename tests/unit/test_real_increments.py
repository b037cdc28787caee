"""Only what the sink lacks crosses the link; with the prefix that it holds, decode goes on as if all had."""

from __future__ import annotations

import asyncio

import pytest

from agents.compute import Cache, Model
from agents.kv_layouts import ModelProfile
from agents.shapes import Shape
from tests.unit.small_shapes import decoded, packed, prefilled, prompt_of, shrunk, tiny
from tests.unit.transport_parts import PEER, WAIT_S, Sink, Source, end_of

SEGMENT = 512
STEPS = 6


async def carried(shape: Shape, model: Model, prompt: list[int], source: Cache, kv_tokens: int) -> bytes:
    """Prefill the rest of a prompt at the source, send the KV of its last tokens while that goes on."""
    layout = ModelProfile(shape.name, "made up", tuple(layer.layer_kv for layer in shape.layers))
    layers = range(len(shape.layers))
    sizes = [layout.end_bytes(layer, kv_tokens, len(prompt)) for layer in layers]
    sink, sender = Sink(), Source(payload="tensors", chunk_bytes=1 << 13)
    async with sink.listening() as address, sender.ticking(), asyncio.timeout(WAIT_S):
        sender.aim(address)
        transfer = sender.sender.begin(1, PEER, sizes)
        for layer in model.prefill(prompt, source):
            sender.sender.push(transfer, layer, sizes[layer], source.pack(layer, kv_tokens))
            await asyncio.sleep(0)
        assert await end_of(transfer) == ""
        (arrival,) = sink.complete
        assert arrival.data is not None
        return bytes(arrival.data)


def join(shape: Shape, held: Cache, data: bytes, kv_tokens: int, tokens: int) -> None:
    """Put what has come behind what the sink holds."""
    layout = ModelProfile(shape.name, "made up", tuple(layer.layer_kv for layer in shape.layers))
    start = 0
    for layer in range(len(shape.layers)):
        size = layout.end_bytes(layer, kv_tokens, tokens)
        held.fill(layer, data[start : start + size], tokens)
        start += size
    assert start == len(data)


@pytest.mark.parametrize(
    ("name", "cached_tokens", "held_tokens"),
    [
        ("tiny_hybrid", SEGMENT, SEGMENT),
        ("tiny_hybrid", 2 * SEGMENT, 2 * SEGMENT),
        ("tiny_hybrid", 0, SEGMENT),
        ("minimax_m2_5", SEGMENT, SEGMENT),
        ("minimax_m2_5", SEGMENT, 2 * SEGMENT),
        ("minimax_m2_5", 2 * SEGMENT, 200),
    ],
)
def test_an_increment_leads_to_what_the_whole_does(name: str, cached_tokens: int, held_tokens: int) -> None:
    """The source begins at one prefix, the sink holds another: bits, tokens and logits are those of no reuse.

    Full attention can be joined at any token, states and windows come whole.
    """
    shape = tiny() if name == "tiny_hybrid" else shrunk(name)
    model = Model(shape, seed=3, device="cpu")
    prompt = prompt_of(2 * SEGMENT + 77)
    whole = prefilled(model, prompt)
    source = prefilled(model, prompt[:cached_tokens])
    held = prefilled(model, prompt[: held_tokens - held_tokens % SEGMENT])
    if held_tokens % SEGMENT:  # what was computed as a part of something longer
        earlier = prefilled(model, prompt[:SEGMENT])
        for layer in range(len(shape.layers)):
            part = bytes(earlier.pack(layer, SEGMENT))
            held.fill(layer, part[: len(part) * held_tokens // SEGMENT], held_tokens)
    kv_tokens = len(prompt) - held_tokens
    data = asyncio.run(carried(shape, model, prompt, source, kv_tokens))
    assert len(data) < sum(len(part) for part in packed(whole))
    join(shape, held, data, kv_tokens, len(prompt))
    assert packed(held) == packed(whole)
    assert decoded(model, held, STEPS) == decoded(model, whole, STEPS)


def test_rows_of_another_prompt_behind_a_shared_prefix_are_written_over() -> None:
    """The sink holds a longer prompt that begins alike: only what both share counts."""
    shape = shrunk("minimax_m2_5")
    model = Model(shape, seed=3, device="cpu")
    prompt = prompt_of(SEGMENT + 90)
    whole, source = prefilled(model, prompt), prefilled(model, prompt[:SEGMENT])
    held = prefilled(model, prompt[:SEGMENT] + prompt_of(300, seed=8))
    data = asyncio.run(carried(shape, model, prompt, source, 90))
    join(shape, held, data, 90, len(prompt))
    assert decoded(model, held, STEPS) == decoded(model, whole, STEPS)


def test_an_increment_does_not_join_a_prefix_that_ends_before_it() -> None:
    """A hole in full attention is refused; a wrong prefix leads to other logits."""
    shape = shrunk("minimax_m2_5")
    model = Model(shape, seed=3, device="cpu")
    prompt = prompt_of(SEGMENT + 90)
    whole, source = prefilled(model, prompt), prefilled(model, prompt[:SEGMENT])
    data = asyncio.run(carried(shape, model, prompt, source, 90))
    with pytest.raises(ValueError, match="behind the 500 held"):
        join(shape, prefilled(model, prompt[:500]), data, 90, len(prompt))
    other = prefilled(model, prompt_of(SEGMENT, seed=8))
    join(shape, other, data, 90, len(prompt))
    assert decoded(model, other, STEPS)[1] != decoded(model, whole, STEPS)[1]
