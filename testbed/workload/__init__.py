"""Requests: drawn from distributions, or replayed from a trace. One file per kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agents.cache.pool import BLOCK_TOKENS
from testbed.plan import Request
from testbed.units import NS_PER_S

QUANTILES: Final = 512
"""How many lengths describe a length distribution to the policy."""


class Load(msgspec.Struct, frozen=True):
    """What a workload comes to: its requests by arrival, and what a scheduler may know beforehand."""

    requests: tuple[Request, ...]
    length_quantiles: tuple[int, ...]
    """Input lengths (tokens) at the probabilities (i + 0.5) / QUANTILES."""
    increment_quantiles: tuple[int, ...]
    """The same of the tokens that a prefix cache without limits would leave to compute; see `increments`."""
    arrival_per_s: float
    notes: tuple[str, ...] = ()
    """What was made of traces, in words: a line for each."""


def probabilities() -> tuple[float, ...]:
    """The probabilities that the quantiles belong to."""
    return tuple((i + 0.5) / QUANTILES for i in range(QUANTILES))


def quantiles(values: Iterable[int]) -> tuple[int, ...]:
    """The values at `probabilities`, each value equally likely; there must be one."""
    ordered = sorted(values)
    return tuple(ordered[int(p * len(ordered))] for p in probabilities())


def increments(requests: Iterable[Request]) -> tuple[int, ...]:
    """Input tokens of each request (by arrival) without the longest prefix that an earlier one had.

    At least 1. A prefix counts in whole blocks (512 tokens), and only prompts leave prefixes behind, not
    answers. This is the incremental length of arXiv 2604.15039 after prefix matching, with every prefix kept
    for ever.
    """
    known: set[int] = set()
    left: list[int] = []
    for request in requests:
        full = request.hash_ids[: request.input_tokens // BLOCK_TOKENS]
        shared = next((n for n, block in enumerate(full) if block not in known), len(full))
        known.update(full[shared:])
        left.append(max(request.input_tokens - shared * BLOCK_TOKENS, 1))
    return tuple(left)


def drawn_load(requests: tuple[Request, ...], span_ns: int) -> Load:
    """A load known by its requests alone, which arrive within `span_ns`; without any it has no quantiles."""
    return Load(
        requests=requests,
        length_quantiles=quantiles(request.input_tokens for request in requests) if requests else (),
        increment_quantiles=quantiles(increments(requests)) if requests else (),
        arrival_per_s=len(requests) * NS_PER_S / span_ns,
    )
