"""What `agents.compute` computes, written down plainly: numpy in float64, token by token, head by head.

Nothing here knows of chunks, segments or batches, and only what is cached is rounded to bf16. Weights go by
the names that the mixers give their tensors. Each kind follows the paper that docs/real-kernels.md names.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from agents.compute.attention import ROPE_BASE
from agents.compute.mixers import EPSILON
from agents.shapes import CONVOLUTION_WIDTH, Attention, Shape

Array = NDArray[np.float64]
Weights = Mapping[str, Array]
SOFTMAX_KINDS = {"gqa", "window"}


def rounded(x: Array) -> Array:
    """To bf16: 8 significant bits, ties to even. By way of fp32, as torch rounds float64."""
    mantissa, exponent = np.frexp(x.astype(np.float32).astype(np.float64))
    return np.asarray(np.ldexp(np.rint(mantissa * 256), exponent - 8))


def rms_norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max())
    return np.asarray(weights / weights.sum())


def turned(x: Array, position: int, rope_dim: int) -> Array:
    """Rotary embedding of the last `rope_dim` of x [..., dim]: pairs are complex numbers, turned."""
    if not rope_dim:
        return x
    plain, real, imaginary = np.split(x, [x.shape[-1] - rope_dim, x.shape[-1] - rope_dim // 2], axis=-1)
    pairs = real + 1j * imaginary
    for pair in range(rope_dim // 2):
        pairs[..., pair] *= np.exp(1j * position * ROPE_BASE ** (-2 * pair / rope_dim))
    return np.concatenate((plain, pairs.real, pairs.imag), axis=-1)


def recurrence(
    q: Array, k: Array, v: Array, g: Array, b: Array | None, *, state: Array
) -> tuple[Array, Array]:
    """S = (I - b k k') diag(exp(g)) S + b k v', o = S' q; without `b` S = diag(exp(g)) S + k v'.

    Shapes are those of `agents.compute.linear`.
    """
    heads, tokens, key_dim = q.shape
    outputs, state = np.zeros((heads, tokens, v.shape[-1])), state.copy()
    for head in range(heads):
        for token in range(tokens):
            key, learned = k[head, token], np.outer(k[head, token], v[head, token])
            kept = np.eye(key_dim)
            if b is not None:
                learned = b[head, token] * learned
                kept = kept - b[head, token] * np.outer(key, key)
            decay = np.diag(np.broadcast_to(np.exp(g[head, token]), (key_dim,)))
            state[head] = kept @ decay @ state[head] + learned
            outputs[head, token] = state[head].T @ q[head, token]
    return outputs, state


def mixed(sizes: Attention, weights: Weights, x: Array) -> tuple[Array, list[Array]]:
    """What a layer makes of all tokens x [tokens, hidden], and then holds, as `LayerCache.parts` has it."""
    if sizes.kind == "mla":
        return _mla(sizes, weights, x)
    return (_softmax if sizes.kind in SOFTMAX_KINDS else _linear)(sizes, weights, x)


def logits(
    shape: Shape, embedding: Array, head: Array, layers: Sequence[Weights], ids: Sequence[int]
) -> Array:
    """[tokens, vocab] of a whole model: of each token, what may follow it."""
    x = rms_norm(embedding[list(ids)])
    for sizes, weights in zip(shape.layers, layers, strict=True):
        x = x + mixed(sizes, weights, rms_norm(x))[0]
        both = rms_norm(x) @ weights["up"]
        gate, up = both[:, : shape.ffn_dim], both[:, shape.ffn_dim :]
        x = x + (silu(gate) * up) @ weights["down"]
    return np.asarray(rms_norm(x) @ head)


def _softmax(sizes: Attention, weights: Weights, x: Array) -> tuple[Array, list[Array]]:
    heads, kv_heads, tokens = sizes.heads, sizes.kv_heads, len(x)
    rows = x @ weights["_rows"]
    keys = rms_norm(rows[:, : kv_heads * sizes.key_dim].reshape(tokens, kv_heads, sizes.key_dim))
    keys = rounded(np.stack([turned(key, token, sizes.rope_dim) for token, key in enumerate(keys)]))
    values = rounded(rows[:, kv_heads * sizes.key_dim :]).reshape(tokens, kv_heads, sizes.value_dim)
    queries = rms_norm((x @ weights["_queries"]).reshape(tokens, heads, sizes.key_dim))
    outputs = np.zeros((tokens, heads, sizes.value_dim))
    for token in range(tokens):
        first = max(token + 1 - sizes.window_tokens, 0) if sizes.window_tokens else 0
        seen = slice(first, token + 1)
        for head in range(heads):
            own = head // (heads // kv_heads)
            query = turned(queries[token, head], token, sizes.rope_dim)
            scores = keys[seen, own] @ query / np.sqrt(sizes.key_dim)
            outputs[token, head] = softmax(scores) @ values[seen, own]
    held = np.concatenate((keys.reshape(tokens, -1), values.reshape(tokens, -1)), axis=1)
    if sizes.window_tokens:
        held = held[-sizes.window_tokens :]
    return outputs.reshape(tokens, -1) @ weights["_out"], [held]


def _mla(sizes: Attention, weights: Weights, x: Array) -> tuple[Array, list[Array]]:
    heads, key_dim, rope_dim, tokens = sizes.heads, sizes.key_dim, sizes.rope_dim, len(x)
    rows = x @ weights["_rows"]
    latents = rounded(rms_norm(rows[:, : sizes.latent_dim]))
    shared = rms_norm(rows[:, sizes.latent_dim :])
    shared = rounded(np.stack([turned(key, token, rope_dim) for token, key in enumerate(shared)]))
    queries = rms_norm((x @ weights["_queries"]).reshape(tokens, heads, key_dim + rope_dim))
    outputs = np.zeros((tokens, heads, sizes.value_dim))
    for head in range(heads):
        keys = np.concatenate((latents @ weights["_up"][:, head, :key_dim], shared), axis=1)
        values = latents @ weights["_up"][:, head, key_dim:]
        for token in range(tokens):
            query = turned(queries[token, head], token, rope_dim)
            scores = keys[: token + 1] @ query / np.sqrt(key_dim + rope_dim)
            outputs[token, head] = softmax(scores) @ values[: token + 1]
    return outputs.reshape(tokens, -1) @ weights["_out"], [np.concatenate((latents, shared), axis=1)]


def _linear(sizes: Attention, weights: Weights, x: Array) -> tuple[Array, list[Array]]:
    heads, kv_heads, key_dim, tokens = sizes.heads, sizes.kv_heads, sizes.key_dim, len(x)
    delta = sizes.kind != "lightning"
    inputs, past = x @ weights["_qkv"], np.zeros((CONVOLUTION_WIDTH - 1, 0))
    if delta:
        # Before a prompt's first token there are zeros.
        before = np.zeros((CONVOLUTION_WIDTH - 1, inputs.shape[1]))
        behind = np.concatenate((before, rounded(inputs)))
        past = behind[tokens:]
        # The filter's last weights are the present token's.
        windows = [behind[token : token + CONVOLUTION_WIDTH] for token in range(tokens)]
        inputs = np.stack([(window * weights["_filter"]).sum(0) for window in windows])
    parts = np.split(silu(inputs), [kv_heads * key_dim, 2 * kv_heads * key_dim], axis=1)
    q, k = (part.reshape(tokens, kv_heads, key_dim) for part in parts[:2])
    if delta:
        q, k = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))
    own = [head // (heads // kv_heads) for head in range(heads)]
    q, k = q[:, own] / np.sqrt(key_dim), k[:, own]
    v = parts[2].reshape(tokens, heads, sizes.value_dim)
    g, b = _decays(sizes, weights, x), sigmoid(x @ weights["_beta"]).T if delta else None
    q, k, v, g = (part.swapaxes(0, 1) for part in (q, k, v, g))
    outputs, state = recurrence(q, k, v, g, b, state=np.zeros((heads, key_dim, sizes.value_dim)))
    normed = rms_norm(outputs.swapaxes(0, 1)).reshape(tokens, -1)
    return (normed * sigmoid(x @ weights["_gate"])) @ weights["_out"], [state, past]


def _decays(sizes: Attention, weights: Weights, x: Array) -> Array:
    """Logarithms [tokens, heads, key], or [tokens, heads, 1] for one decay per head."""
    heads, number = sizes.heads, np.arange(sizes.heads)
    if sizes.kind == "lightning":
        slopes = 2.0 ** (-8 * (number + 1) / heads)
        return np.tile(-slopes[:, None], (len(x), 1, 1))
    decays = heads * sizes.key_dim if sizes.kind == "kda" else heads
    steps = np.geomspace(0.001, 0.1, decays)
    low = x @ weights["_down"] if sizes.kind == "kda" else x
    # The inverse of softplus, so that an input of 0 decays by the step.
    moved = low @ weights["_decay"] + np.log(np.exp(steps) - 1)
    rates = np.geomspace(1, 16, heads)
    return np.asarray(-rates[:, None] * np.log(1 + np.exp(moved)).reshape(len(x), heads, -1))
