"""What all lines of the journal have in common."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=-(2**58), le=2**58)]
"""The record's columns hold it, and differences and sums of several; as nanoseconds it is nine years."""
Small = Annotated[int, msgspec.Meta(ge=0, le=2**30)]
"""The columns hold products of two, too."""
Moment = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Of CLOCK_REALTIME."""
Real = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
"""Likewise: squares and products of several are still numbers."""
Direction = Literal["a_to_b", "b_to_a"]


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", gc=False):
    """What every line has: when, on CLOCK_MONOTONIC of the run's kernel."""

    t_ns: Whole
