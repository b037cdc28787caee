"""Softmax attention over cached rows: grouped queries, sliding windows, and MLA in both of its forms."""

import torch
from torch import Tensor
from torch.nn import functional

ROPE_BASE = 1_000_000.0
"""Base of the rotary angles, for all models: what it is costs nothing."""


def rotate(x: Tensor, positions: Tensor, rope_dim: int) -> Tensor:
    """Rotary embedding of the last `rope_dim` of each head in x [tokens, heads, dim], halves paired.

    `positions` [tokens] count from a prompt's start.
    """
    if not rope_dim:
        return x
    # Angles in float64: a position far back is turned as exactly as one close by.
    powers = torch.arange(0, rope_dim, 2, device=x.device, dtype=torch.float64) / rope_dim
    angles = positions.to(torch.float64).unsqueeze(-1) * ROPE_BASE**-powers
    cos, sin = (turn.unsqueeze(1).to(x.dtype) for turn in (angles.cos(), angles.sin()))
    plain, turned = x[..., :-rope_dim], x[..., -rope_dim:]
    one, other = turned.chunk(2, dim=-1)
    return torch.cat((plain, one * cos - other * sin, other * cos + one * sin), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window_tokens: int = 0) -> Tensor:
    """Causal attention of the newest tokens: [tokens, heads, value].

    q [tokens, heads, key]; k [seen, kv_heads, key] and v [seen, kv_heads, value], of which the last `tokens`
    are the queries' own. Each query sees itself and what is before, with `window_tokens` only so many
    altogether.
    """
    tokens, heads, _ = q.shape
    seen, kv_heads, _ = k.shape
    groups = heads // kv_heads
    # The heads that share a key stand one behind the other as more queries, so no key is ever repeated.
    folded = q.view(tokens, kv_heads, groups, -1).permute(1, 2, 0, 3).flatten(1, 2)
    mask = None
    if tokens > 1:
        here = torch.arange(seen - tokens, seen, device=q.device).unsqueeze(1)
        keys = torch.arange(seen, device=q.device)
        mask = keys <= here
        if window_tokens:
            mask &= keys > here - window_tokens
        mask = mask.repeat(groups, 1)
    out = functional.scaled_dot_product_attention(
        folded.unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        scale=scale,
    )
    return out.view(kv_heads, groups, tokens, -1).permute(2, 0, 1, 3).flatten(1, 2)


def attend_expanded(q: Tensor, rope_keys: Tensor, expanded: Tensor, key_dim: int, scale: float) -> Tensor:
    """MLA with keys and values made from the latents, as prefill does: [tokens, heads, value].

    q [tokens, heads, key + rope]; rope_keys [seen, rope], the same for all heads; expanded
    [seen, heads, key + value].
    """
    keys, values = expanded[..., :key_dim], expanded[..., key_dim:]
    shared = rope_keys.unsqueeze(1).expand(-1, keys.shape[1], -1)
    return attend(q, torch.cat((keys, shared), dim=-1), values, scale)


def attend_absorbed(q: Tensor, rows: Tensor, up: Tensor, key_dim: int, scale: float) -> Tensor:
    """MLA over the latents themselves, as decode does: [tokens, heads, value].

    q as for `attend_expanded`; rows [seen, latent + rope], as cached; up [latent, heads, key + value] is what
    would make keys and values: here it moves to the query's and the output's side.
    """
    latent_dim = up.shape[0]
    up_keys, up_values = up[..., :key_dim], up[..., key_dim:]
    plain, turned = q[..., :key_dim], q[..., key_dim:]
    in_latent = (plain.transpose(0, 1) @ up_keys.permute(1, 2, 0)).transpose(0, 1)
    rows = rows.unsqueeze(1)
    out = attend(torch.cat((in_latent, turned), dim=-1), rows, rows[..., :latent_dim], scale)
    return (out.transpose(0, 1) @ up_values.transpose(0, 1)).transpose(0, 1)
