"""States that the kernel would not carry out as meant, and rates that no window fills: refused in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np

from testbed.plan import DIRECTIONS, Direction, LinkState, TokenBucket
from testbed.resolve.findings import Findings
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.shaping import limits
from testbed.shaping.distributions import UNIT
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes

MAX_WINDOW_BYTES: Final = 2**30
"""The largest window TCP can announce (RFC 7323: a shift of 14)."""
MIN_BUFFER_BYTES: Final = 2**16
"""A few jumbo frames; a byte-limited queue much smaller would pass hardly anything."""
MIN_RATE_BPS: Final = 8_000
"""HTB counts whole bytes a second, and the time of two jumbo frames in 32 bits."""
MAX_JITTER_NS: Final = 2 * NS_PER_S
"""netem multiplies jitter by its table in 32 bits (net/sched/sch_netem.c, tabledist)."""

Trouble: TypeAlias = tuple[str, str, str, str]
"""What it is about; found, allowed and next step of a Problem."""


@dataclass(frozen=True)
class Moment:
    """A direction at one time, and what brought it there."""

    t_ns: int
    state: LinkState
    path: KeyPath


def check_states(
    moments: list[Moment], mtu_bytes: int, delay_tables: Mapping[str, bytes], findings: Findings
) -> None:
    """Refuse states that the kernel would not carry out as meant; each trouble once, where it begins."""
    lowest = {name: float(np.frombuffer(table, "<i2").min()) / UNIT for name, table in delay_tables.items()}
    before: set[str] = set()
    for moment in moments:
        now: set[str] = set()
        for name, found, allowed, next_step in _troubles(moment.state, mtu_bytes, lowest):
            now.add(name)
            if name not in before:
                findings.add(moment.path, found, allowed, next_step)
        before = now


def _troubles(state: LinkState, mtu_bytes: int, lowest: Mapping[str, float]) -> Iterator[Trouble]:
    rate = format_rate_bps
    if state.rate_bps < MIN_RATE_BPS:
        yield "rate", f"the rate would be only {rate(state.rate_bps)}", f"at least {rate(MIN_RATE_BPS)}", ""
    yield from _of_delay(state, lowest)
    if state.buffer_bytes < MIN_BUFFER_BYTES:
        size = format_size_bytes(state.buffer_bytes)
        yield (
            "buffer",
            f"the buffer would be only {size} at {rate(state.rate_bps)}, too small for a few packets",
            f"at least {format_size_bytes(MIN_BUFFER_BYTES)}",
            "raise the buffer or the rate, or use a larger scale",
        )
    if state.queue.kind == "red":
        yield from _of_red(state)
    if state.token_bucket is not None:
        yield from _of_bucket(state, state.token_bucket)
    if state.flow_cap_bps is not None and state.flow_cap_bps > limits.CAP_MAX_BPS:
        found = f"a flow_cap of {rate(state.flow_cap_bps)} is more than sch_fq holds"
        yield "flow_cap", found, f"up to {rate(limits.CAP_MAX_BPS)}", "flow_cap: none for no cap at all"
    for name, limit in (("path_mtu", state.path_mtu_bytes), ("black_hole_above", state.black_hole_bytes)):
        if limit is not None and limit > mtu_bytes:
            found = f"{name} of {limit} is above the link's mtu of {mtu_bytes}, so no packet would meet it"
            yield name, found, f"576 to {mtu_bytes}", ""


def _of_red(state: LinkState) -> Iterator[Trouble]:
    size, high = format_size_bytes, state.queue.max_bytes
    most = min(state.buffer_bytes, limits.RED_MAX_BYTES)
    if high > most:
        found = f"RED's max of {size(high)} is above the buffer of {size(state.buffer_bytes)}"
        if state.buffer_bytes > limits.RED_MAX_BYTES:
            found = f"RED's max of {size(high)} does not fit the kernel's 32 bits"
        yield "red", found, f"max up to {size(most)}", ""


def _of_bucket(state: LinkState, bucket: TokenBucket) -> Iterator[Trouble]:
    slow, fast = format_rate_bps(bucket.sustained_bps), format_rate_bps(state.rate_bps)
    if bucket.sustained_bps >= state.rate_bps:
        found = f"the token bucket's sustained rate of {slow} is not below the rate of {fast}"
        yield "bucket", found, "sustained below rate", "to take the bucket away: token_bucket: none"
    most = limits.budget_max_bytes(bucket.sustained_bps)
    if bucket.budget_bytes > most:
        budget = format_size_bytes(bucket.budget_bytes)
        found = f"a budget of {budget} lasts longer than HTB can count at the sustained rate of {slow}"
        yield "budget", found, f"up to {most // 10**6}MB, which is 274.9 s of it", "a larger sustained rate"


def _of_delay(state: LinkState, lowest: Mapping[str, float]) -> Iterator[Trouble]:
    if state.jitter_ns > MAX_JITTER_NS:
        found = f"jitter of {format_duration_ns(state.jitter_ns)} is more than netem holds"
        yield "long jitter", found, f"up to {format_duration_ns(MAX_JITTER_NS)}", ""
    deepest = -lowest.get(state.distribution, 0.0) * state.jitter_ns
    if state.distribution == "uniform":
        deepest = state.jitter_ns
    if deepest > state.delay_ns:
        jitter, delay = format_duration_ns(state.jitter_ns), format_duration_ns(state.delay_ns)
        if state.distribution == "uniform":
            yield "jitter", f"jitter of {jitter} above the delay of {delay}", "jitter up to the delay", ""
            return
        reach = format_duration_ns(round(deepest))
        most = format_duration_ns(int(state.delay_ns * state.jitter_ns / deepest))
        found = f"jitter of {jitter} ({state.distribution}) reaches {reach} before the mean of {delay}"
        yield "jitter", found, f"jitter up to {most}, or a longer delay", ""
    if state.reorder and not state.delay_ns:
        found = "reorder without a delay: packets overtake by skipping it"
        yield "reorder", found, "reorder with a delay above 0", ""


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
