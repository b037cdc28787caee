"""States that the kernel would not carry out as meant, and rates that no window fills: refused in words.

What the kernel cannot have at all is listed in `testbed.shaping.limits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np

from testbed.plan import DIRECTIONS, Direction, LinkState
from testbed.resolve.conditions import FILE
from testbed.resolve.findings import Findings
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.shaping import limits
from testbed.shaping.distributions import UNIT
from testbed.shaping.limits import Excess
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes

MAX_WINDOW_BYTES: Final = 2**30
"""The largest window TCP can announce (RFC 7323: a shift of 14)."""
MIN_BUFFER_BYTES: Final = 2**16
"""A few jumbo frames; a byte-limited queue much smaller would pass hardly anything."""
MIN_RATE_BPS: Final = 8_000
"""HTB counts whole bytes a second, and the time of two jumbo frames in 32 bits."""


@dataclass(frozen=True)
class Moment:
    """A direction at one time, and what brought it there."""

    t_ns: int
    state: LinkState
    path: KeyPath
    least_bps: int | None = None
    """How far its noise may take the rate, whatever is drawn; None: there is none."""


def check_states(
    moments: list[Moment], mtu_bytes: int, delay_tables: Mapping[str, bytes], findings: Findings
) -> None:
    """Refuse states that the kernel would not carry out as meant; each trouble once, where it begins."""
    lowest = {name: float(np.frombuffer(table, "<i2").min()) / UNIT for name, table in delay_tables.items()}
    before: set[str] = set()
    for moment in moments:
        now: set[str] = set()
        for name, found, allowed, next_step in _troubles(moment, mtu_bytes, lowest):
            now.add(name)
            if name not in before:
                findings.add(moment.path, found, allowed, next_step)
        before = now


def _troubles(moment: Moment, mtu_bytes: int, lowest: Mapping[str, float]) -> Iterator[Excess]:
    """What the kernel cannot have, and what it would have but nobody can mean."""
    state, rate = moment.state, format_rate_bps
    least_bps = state.rate_bps if moment.least_bps is None else moment.least_bps
    if least_bps < MIN_RATE_BPS:
        noisy = " with the noise at its worst" if least_bps < state.rate_bps else ""
        found = f"the rate would be only {rate(least_bps)}{noisy}"
        yield Excess("rate", found, f"at least {rate(MIN_RATE_BPS)}")
    yield from _of_delay(state, lowest)
    if state.buffer_bytes < MIN_BUFFER_BYTES:
        size = format_size_bytes(state.buffer_bytes)
        yield Excess(
            "buffer",
            f"the buffer would be only {size} at {rate(state.rate_bps)}, too small for a few packets",
            f"at least {format_size_bytes(MIN_BUFFER_BYTES)}",
            "raise the buffer or the rate, or use a larger scale",
        )
    if state.queue.kind == "red" and state.queue.max_bytes > state.buffer_bytes:
        high, most = format_size_bytes(state.queue.max_bytes), format_size_bytes(state.buffer_bytes)
        yield Excess("red", f"RED's max of {high} is above the buffer of {most}", f"max up to {most}")
    yield from limits.excesses(state, mtu_bytes, least_bps)
    for name, limit in (("path_mtu", state.path_mtu_bytes), ("black_hole_above", state.black_hole_bytes)):
        if limit is not None and limit > mtu_bytes:
            found = f"{name} of {limit} is above the link's mtu of {mtu_bytes}, so no packet would meet it"
            yield Excess(name, found, f"576 to {mtu_bytes}")


def _of_delay(state: LinkState, lowest: Mapping[str, float]) -> Iterator[Excess]:
    deepest = -lowest.get(state.distribution, 0.0) * state.jitter_ns
    if state.distribution == "uniform":
        deepest = state.jitter_ns
    if deepest > state.delay_ns:
        jitter, delay = format_duration_ns(state.jitter_ns), format_duration_ns(state.delay_ns)
        if state.distribution == "uniform":
            yield Excess("jitter", f"jitter of {jitter} above the delay of {delay}", "jitter up to the delay")
            return
        reach = format_duration_ns(round(deepest))
        if state.distribution.startswith(FILE):
            file = state.distribution.removeprefix(FILE)
            found = f"jitter as in {file} reaches {reach} before the mean of {delay}"
            yield Excess("jitter", found, f"a delay of {reach} or more")
            return
        most = format_duration_ns(int(state.delay_ns * state.jitter_ns / deepest))
        found = f"jitter of {jitter} ({state.distribution}) reaches {reach} before the mean of {delay}"
        yield Excess("jitter", found, f"jitter up to {most}, or a longer delay")
    if state.reorder and not state.delay_ns:
        found = "reorder without a delay: packets overtake by skipping it"
        yield Excess("reorder", found, "reorder with a delay above 0")


def check_windows(scenario: Scenario, moments: dict[Direction, list[Moment]], findings: Findings) -> int:
    """Refuse rates that the connections together cannot fill; returns LinkPlan.need_bytes."""
    products = bandwidth_delay(moments)
    connections = scenario.transport.connections
    for bdp_bytes, rtt_ns, moment in products:
        if bdp_bytes > connections * MAX_WINDOW_BYTES:
            rate, rtt = format_rate_bps(moment.state.rate_bps), format_duration_ns(rtt_ns)
            window_gib = bdp_bytes / connections / 2**30
            findings.add(
                moment.path,
                f"too few connections ({connections}) to fill {rate} at a round trip of {rtt}: each would "
                f"need a TCP window of {window_gib:.2f} GiB",
                "at most 1 GiB for each connection",
                f"set transport.connections to {-(-bdp_bytes // MAX_WINDOW_BYTES)} or more",
            )
    buffers = (moment.state.buffer_bytes for direction in DIRECTIONS for moment in moments[direction])
    return max(bdp_bytes for bdp_bytes, _, _ in products) + max(buffers)


def bandwidth_delay(moments: dict[Direction, list[Moment]]) -> list[tuple[int, int, Moment]]:
    """Each direction's largest bandwidth-delay product in bytes, its round trip, and its moment."""
    present = {direction: moments[direction][0] for direction in DIRECTIONS}
    largest: dict[Direction, tuple[int, int, Moment]] = {}
    order = ((moment.t_ns, direction, moment) for direction in DIRECTIONS for moment in moments[direction])
    for _, at_once in groupby(sorted(order, key=itemgetter(0)), key=itemgetter(0)):
        present |= {direction: moment for _, direction, moment in at_once}
        rtt_ns = sum(moment.state.delay_ns for moment in present.values())
        for direction, moment in present.items():
            bdp_bytes = moment.state.rate_bps * rtt_ns // (8 * NS_PER_S)
            if direction not in largest or bdp_bytes > largest[direction][0]:
                largest[direction] = (bdp_bytes, rtt_ns, moment)
    return [largest[direction] for direction in DIRECTIONS]
