"""Linear attention: the same rule as a recurrence over tokens and, for prefill, over chunks of 64.

A head keeps a state S of key x value. For every token it decays, learns a key and a value, and is asked:

    S = diag(exp(g)) S;   S = S + k u,  u = b (v - k S) by the delta rule, or v without it;   o = q S

KDA (Kimi Linear, arXiv 2510.26692) has a decay per key channel, GDN (Gated DeltaNet, arXiv 2412.06464) one
per head, both with the delta rule; Lightning (arXiv 2401.04658) has a constant one per head and none. Within
a chunk the delta rule is a triangular system (the UT transform of arXiv 2406.06484).

Decays are logarithms, at most 0. Only the decay from an earlier to a later token is ever raised, so nothing
can overflow, however strong it is; what is too small becomes 0.

Shapes: q, k [heads, tokens, key]; v [heads, tokens, value]; g [heads, tokens, key], or [heads, tokens, 1] for
one decay per head; b [heads, tokens]; state [heads, key, value]. All in one dtype; further leading dimensions
may stand before `heads`.
"""

import torch
from torch import Tensor

CHUNK_TOKENS = 64
_BLOCK_TOKENS = 16


def recur(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor | None = None, *, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token: outputs [heads, tokens, value] and the last state. Without `b` no delta rule."""
    outputs = []
    for token in range(q.shape[-2]):
        key, value = k[..., token, :].unsqueeze(-2), v[..., token, :].unsqueeze(-2)
        state = g[..., token, :].exp().unsqueeze(-1) * state
        if b is not None:
            value = b[..., token, None, None] * (value - key @ state)
        state = state + key.transpose(-1, -2) * value
        outputs.append(q[..., token, :].unsqueeze(-2) @ state)
    return torch.cat(outputs, dim=-2), state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor | None = None, *, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same as `recur`, by matrix products within chunks of CHUNK_TOKENS."""
    tokens = q.shape[-2]
    # What is padded neither decays nor learns, and its output is dropped.
    q, k, v, g = (_in_chunks(x) for x in (q, k, v, g))
    decay = g.cumsum(dim=-2)
    from_start = decay.exp()
    to_end = (decay[..., -1:, :] - decay).exp()
    products = _products_by_channel if g.shape[-1] > 1 else _products_by_head
    seen, *alike = products(torch.stack((q,) if b is None else (q, k)), k, decay)
    updates = v
    if b is not None:
        b = _in_chunks(b.unsqueeze(-1))
        others = (b * alike[0]).tril(-1)
        # One solve for both: what a chunk would learn by itself, and what its state has it unlearn.
        right = b * torch.cat((v, k * from_start), dim=-1)
        right = torch.linalg.solve_triangular(others, right, upper=False, unitriangular=True)
        updates, unlearned = right[..., : v.shape[-1]], right[..., v.shape[-1] :]
    asked, learned = q * from_start, (k * to_end).transpose(-1, -2)
    outputs = []
    for chunk in range(q.shape[-3]):
        update = updates[..., chunk, :, :]
        if b is not None:
            update = update - unlearned[..., chunk, :, :] @ state
        outputs.append(asked[..., chunk, :, :] @ state + seen[..., chunk, :, :] @ update)
        state = from_start[..., chunk, -1, :].unsqueeze(-1) * state + learned[..., chunk, :, :] @ update
    return torch.cat(outputs, dim=-2)[..., :tokens, :], state


def _in_chunks(x: Tensor) -> Tensor:
    """[heads, tokens, dim], filled up with zeros, as [heads, chunks, CHUNK_TOKENS, dim]."""
    x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK_TOKENS))
    return x.reshape(*x.shape[:-2], -1, CHUNK_TOKENS, x.shape[-1])


def _products_by_head(lefts: Tensor, right: Tensor, decay: Tensor) -> Tensor:
    """Decayed products of each token, in every one of `lefts`, with itself and those before in `right`.

    lefts [some, ..., tokens, key], right [..., tokens, key]: [some, ..., token, earlier].
    """
    between = decay - decay.transpose(-1, -2)
    future = torch.ones(between.shape[-2:], dtype=torch.bool, device=between.device).triu(1)
    # The future is masked before it is raised: there the exponent would be positive.
    return lefts @ right.transpose(-1, -2) * between.masked_fill(future, -torch.inf).exp()


def _products_by_channel(lefts: Tensor, right: Tensor, decay: Tensor) -> Tensor:
    """As `_products_by_head`, each channel with its own decay.

    Rows are taken in blocks. From an earlier block a decay is split at the row block's first token into two
    factors, neither above 1, so that a matrix product does it; within a block every pair has its own
    exponent.
    """
    rows = []
    size, tokens = _BLOCK_TOKENS, decay.shape[-2]
    future = torch.ones((size, size), dtype=torch.bool, device=decay.device).triu(1).unsqueeze(-1)
    for start in range(0, tokens, size):
        block, earlier = slice(start, start + size), slice(0, start)
        here, left = decay[..., block, :], lefts[..., block, :]
        between = (here.unsqueeze(-2) - here.unsqueeze(-3)).masked_fill(future, -torch.inf).exp()
        decayed = between * right[..., block, :].unsqueeze(-3)
        pairs = (decayed @ left.movedim(0, -1)).movedim(-1, 0)
        if start:
            first = here[..., :1, :]
            far = right[..., earlier, :] * (first - decay[..., earlier, :]).exp()
            pairs = torch.cat((left * (here - first).exp() @ far.transpose(-1, -2), pairs), dim=-1)
        rows.append(torch.nn.functional.pad(pairs, (0, tokens - start - size)))
    return torch.cat(rows, dim=-2)
