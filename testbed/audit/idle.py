"""Rate and round trip of the idle link, without its impairments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from testbed.audit.finding import Finding, missing
from testbed.audit.notes import clock, detail
from testbed.plan import Direction, Plan
from testbed.readable import quantity
from testbed.units import NS_PER_S

RATE_TOLERANCE = 0.02
RTT_TOLERANCE_S = {"virtual": 0.0002, "real": 0.002}
HANDSHAKE_BYTES = 200
"""SYN and its answer, which go at the link's rate."""


def judge(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """What left the full rate stage, and the time of a handshake."""
    noted = detail(tables, "calibration", direction)
    if noted is None:
        yield missing("rate", direction)
        return
    yield _rate(plan, direction, noted)
    rate_bps = plan.link[direction].rate_bps
    asked_s = sum(state.delay_ns for state in plan.link.values()) / NS_PER_S
    rtt_s = noted["rtt_ns"] / NS_PER_S
    allowed_s = RTT_TOLERANCE_S[clock(tables)] + HANDSHAKE_BYTES * 8 / rate_bps
    yield Finding(
        "round trip",
        direction,
        quantity(asked_s, "s"),
        quantity(rtt_s, "s"),
        f"± {quantity(allowed_s, 's')}",
        ok=abs(rtt_s - asked_s) <= allowed_s,
    )


def _rate(plan: Plan, direction: Direction, noted: dict[str, Any]) -> Finding:
    state = plan.link[direction]
    asked = quantity(state.rate_bps, "bps")
    if not noted["span_ns"]:
        buffer_s = state.buffer_bytes * 8 / state.rate_bps
        return Finding(
            "rate", direction, asked, "not measured", "a measurement", ok=False,
            more=f"no queue lasted from one look to the next, as the buffer holds {quantity(buffer_s, 's')}",
        )  # fmt: skip
    grain = noted["grain_bytes"] * 8 * NS_PER_S / noted["span_ns"] / state.rate_bps
    allowed = RATE_TOLERANCE + grain
    return Finding(
        "rate",
        direction,
        asked,
        quantity(noted["rate_bps"], "bps", 4),
        f"± {100 * allowed:.2g} %",
        ok=abs(noted["rate_bps"] / state.rate_bps - 1) <= allowed,
    )
