"""What all lines of the journal have in common."""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", gc=False):
    """What every line has: when, on CLOCK_MONOTONIC of the run's kernel."""

    t_ns: int
