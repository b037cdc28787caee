"""Requests: drawn from a distribution, or replayed from a trace. One file per kind."""

from __future__ import annotations

from typing import Final

import msgspec

from testbed.plan import Request

QUANTILES: Final = 512
"""How many lengths describe a length distribution to the policy."""


class Load(msgspec.Struct, frozen=True):
    """What a workload comes to: its requests by arrival, and what a scheduler may know beforehand."""

    requests: tuple[Request, ...]
    length_quantiles: tuple[int, ...]
    """Input lengths (tokens) at the probabilities (i + 0.5) / QUANTILES."""
    arrival_per_s: float


def probabilities() -> tuple[float, ...]:
    """The probabilities that `length_quantiles` belong to."""
    return tuple((i + 0.5) / QUANTILES for i in range(QUANTILES))
