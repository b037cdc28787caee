"""Kernels against plain definitions of what they compute, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agents.compute.attention import attend, attend_absorbed, attend_expanded, rotate
from agents.compute.linear import chunked, recur

CLOSE = 1e-10
"""Largest difference that float64 may leave between two orders of the same sums."""
HEADS, KEY, VALUE = 2, 8, 6


def normal(*sizes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(sizes, generator=generator, dtype=torch.float64)


def linear_inputs(kind: str, tokens: int, weakest: float, strongest: float, seed: int) -> list[Tensor]:
    """q, k, v, g and, where the kind has it, b, with logarithmic decays between the two."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"kda": (HEADS, tokens, KEY), "gdn": (HEADS, tokens, 1), "lightning": (HEADS, 1, 1)}[kind]
    spread = torch.rand(sizes, generator=generator, dtype=torch.float64)
    g = (-(weakest + spread * (strongest - weakest))).expand(HEADS, tokens, -1)
    q, k = (torch.nn.functional.normalize(normal(HEADS, tokens, KEY, seed=seed + n), dim=-1) for n in (1, 2))
    parts = [q, k, normal(HEADS, tokens, VALUE, seed=seed + 3), g]
    if kind != "lightning":
        parts.append(torch.rand((HEADS, tokens), generator=generator, dtype=torch.float64))
    return parts


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    kind=st.sampled_from(["kda", "gdn", "lightning"]),
    tokens=st.integers(1, 200),
    weakest=st.floats(0, 14),
    wider=st.floats(0, 14),
    seed=st.integers(0, 1000),
)
def test_chunks_give_what_the_recurrence_gives(
    kind: str, tokens: int, weakest: float, wider: float, seed: int
) -> None:
    """For any length and any decays from 1 to 1e-12, outputs and state agree to 1e-10."""
    parts = linear_inputs(kind, tokens, weakest, weakest + wider, seed)
    state = normal(HEADS, KEY, VALUE, seed=seed)
    outputs, end = chunked(*parts, state=state)
    expected, expected_end = recur(*parts, state=state)
    assert (outputs - expected).abs().max() < CLOSE
    assert (end - expected_end).abs().max() < CLOSE


@pytest.mark.parametrize("kind", ["kda", "gdn", "lightning"])
def test_decays_that_kill_everything_overflow_nothing(kind: str) -> None:
    """With decays of exp(-1000) a token all is finite in fp32, and only the present token is left."""
    parts = [part.float() for part in linear_inputs(kind, 130, 900, 1100, seed=4)]
    state = normal(HEADS, KEY, VALUE).float()
    outputs, end = chunked(*parts, state=state)
    expected, expected_end = recur(*parts, state=state)
    assert outputs.isfinite().all()
    assert (outputs - expected).abs().max() < 1e-5
    assert (end - expected_end).abs().max() < 1e-5


def test_the_recurrence_is_the_delta_rule() -> None:
    """A key asked for at once gives its value back: what was there under it before is unlearned."""
    q, k, v, _, _ = linear_inputs("kda", 1, 0, 0, seed=1)
    zero, one = torch.zeros((HEADS, 1, KEY), dtype=torch.float64), torch.ones((HEADS, 1), dtype=torch.float64)
    outputs, _ = recur(k, k, v, zero, one, state=normal(HEADS, KEY, VALUE))
    assert (outputs - v).abs().max() < CLOSE
    plain, _ = recur(q, k, v, zero, state=torch.zeros((HEADS, KEY, VALUE), dtype=torch.float64))
    assert (plain - (q * k).sum(-1, keepdim=True) * v).abs().max() < CLOSE


@pytest.mark.parametrize("window_tokens", [0, 5])
@pytest.mark.parametrize(("tokens", "seen"), [(1, 1), (7, 7), (3, 12), (1, 5)])
def test_attention_is_a_softmax_over_what_may_be_seen(tokens: int, seen: int, window_tokens: int) -> None:
    """Grouped heads, causality and window, query by query, to 1e-10."""
    heads, kv_heads = 4, 2
    q, k, v = normal(tokens, heads, KEY), normal(seen, kv_heads, KEY), normal(seen, kv_heads, VALUE, seed=1)
    found = attend(q, k, v, 0.3, window_tokens)
    for token in range(tokens):
        last = seen - tokens + token + 1
        first = max(last - window_tokens, 0) if window_tokens else 0
        for head in range(heads):
            keys, values = k[first:last, head // 2], v[first:last, head // 2]
            expected = (0.3 * keys @ q[token, head]).softmax(0) @ values
            assert (found[token, head] - expected).abs().max() < CLOSE


@pytest.mark.parametrize(("tokens", "seen"), [(1, 1), (1, 9), (6, 6), (4, 11)])
def test_mla_over_latents_is_mla_over_keys_and_values(tokens: int, seen: int) -> None:
    """The absorbed form, the expanded form and the definition agree to 1e-10."""
    heads, latent, rope = 3, 10, 4
    q, rows = normal(tokens, heads, KEY + rope), normal(seen, latent + rope)
    up = normal(latent, heads, KEY + VALUE)
    absorbed = attend_absorbed(q, rows, up, KEY, 0.2)
    expanded = torch.einsum("sl,lhd->shd", rows[:, :latent], up)
    both = attend_expanded(q, rows[:, latent:], expanded, KEY, 0.2)
    assert (absorbed - both).abs().max() < CLOSE
    for token in range(tokens):
        last = seen - tokens + token + 1
        for head in range(heads):
            keys = torch.cat((expanded[:last, head, :KEY], rows[:last, latent:]), dim=-1)
            expected = (0.2 * keys @ q[token, head]).softmax(0) @ expanded[:last, head, KEY:]
            assert (absorbed[token, head] - expected).abs().max() < CLOSE


def test_rotated_products_depend_on_distance_only() -> None:
    """Two tokens moved by 1,000 positions have the same product, to 1e-10; what is not rotated stays."""
    x, y = normal(1, 1, KEY), normal(1, 1, KEY, seed=1)

    def product(here: int, there: int) -> Tensor:
        return (rotate(x, torch.tensor([here]), 6) * rotate(y, torch.tensor([there]), 6)).sum()

    assert abs(product(3, 10) - product(1003, 1010)) < CLOSE
    assert abs(product(3, 10) - product(3, 11)) > 1e-3
    assert torch.equal(rotate(x, torch.tensor([7]), 6)[..., :2], x[..., :2])
    assert torch.equal(rotate(x, torch.tensor([7]), 0), x)
