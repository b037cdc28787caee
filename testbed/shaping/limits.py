"""What the kernel cannot have, because of how many bits it counts with.

One list: a scenario is refused by it when it is read (`testbed.resolve.link_checks`), and a state before it
is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from testbed.errors import Problem
from testbed.plan import LinkState, Queue, TokenBucket
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes

_U32_MAX = 2**32 - 1
TICK_NS = 64
"""HTB counts its buckets in times at the class's rate, in 32 bits (include/net/pkt_sched.h, PSCHED_SHIFT)."""
CAP_MAX_BPS = (_U32_MAX - 1) * 8
"""fq knows rates in 32 bits of bytes per second; the last stands for no cap (net/sched/sch_fq.c)."""
EVERY_MAX = 2**16 - 1
"""gact counts to its n in 16 bits (net/sched/act_gact.c)."""
BUFFER_MAX_BYTES = 2**32 - 2**20
"""bfifo adds a packet, or super-packet, to what waits in 32 bits (net/sched/sch_fifo.c, `bfifo_enqueue`)."""
RED_MAX_BYTES = 2**31 - 1
"""RED keeps averages in 32 bits (include/net/red.h, `red_check_params`)."""
CODEL_MIN_NS, CODEL_MAX_NS = 2_000, 2_000 * NS_PER_S
"""CoDel keeps times in units of 1.024 us, and compares them in 31 bits (include/net/codel.h)."""
JITTER_MAX_NS = 2 * NS_PER_S
"""netem multiplies jitter by its table in 32 bits (net/sched/sch_netem.c, `tabledist`)."""
ETHERNET_BYTES = 14
"""Of a frame's header, which queueing disciplines count."""


class Excess(NamedTuple):
    """What a state has too much or too little of: a name for it, and the words of a Problem."""

    name: str
    found: str
    allowed: str
    next_step: str = ""


def budget_max_bytes(sustained_bps: int) -> int:
    """Largest budget of a token bucket: 274.9 s at its sustained rate."""
    return _U32_MAX * TICK_NS * (sustained_bps // 8) // 10**9


def cap_min_bps(mtu_bytes: int) -> int:
    """Least cap of a flow, a frame a second: fq waits no longer (net/sched/sch_fq.c, `fq_dequeue`)."""
    return (mtu_bytes + ETHERNET_BYTES) * 8


def bucket_bytes(rate_bps: int, largest_packet_bytes: int) -> int:
    """HTB's bucket: two super-packets, or 20 us of the rate so that timer steps do not cap it."""
    return max(2 * largest_packet_bytes, rate_bps // 8 * 20 // 10**6)


def excesses(state: LinkState, mtu_bytes: int, least_bps: int | None = None) -> Iterator[Excess]:
    """All that the kernel could not have of this state on a link of that MTU.

    `least_bps`: how far noise may take the rate, where it is not yet in the state.
    """
    if state.buffer_bytes > BUFFER_MAX_BYTES:
        found = f"a buffer of {format_size_bytes(state.buffer_bytes)} does not fit the kernel's 32 bits"
        yield Excess(
            "large buffer", found, f"up to {format_size_bytes(BUFFER_MAX_BYTES)}", "a smaller buffer"
        )
    if state.jitter_ns > JITTER_MAX_NS:
        found = f"jitter of {format_duration_ns(state.jitter_ns)} is more than netem holds"
        yield Excess("long jitter", found, f"up to {format_duration_ns(JITTER_MAX_NS)}")
    if state.loss is not None and state.loss.model == "periodic":
        every = state.loss.every_packets
        if not 1 <= every <= EVERY_MAX:
            found, allowed = f"a loss of every {every}th packet", f"1 to {EVERY_MAX} packets"
            yield Excess("loss", found, allowed, "a random loss of 1/n has no such limit")
    if state.queue.kind == "red":
        yield from _of_red(state.queue, mtu_bytes)
    if state.queue.kind in ("codel", "fq_codel"):
        yield from _of_codel(state.queue)
    if state.token_bucket is not None:
        least_bps = state.rate_bps if least_bps is None else least_bps
        yield from _of_bucket(state.token_bucket, state.rate_bps, least_bps)
    if state.flow_cap_bps is not None:
        yield from _of_cap(state.flow_cap_bps, mtu_bytes)


def _of_red(queue: Queue, mtu_bytes: int) -> Iterator[Excess]:
    size, high = format_size_bytes, queue.max_bytes
    if high > RED_MAX_BYTES:
        found = f"RED's max of {size(high)} does not fit the kernel's 32 bits"
        yield Excess("red, max", found, f"max up to {size(RED_MAX_BYTES)}")
    if queue.min_bytes <= mtu_bytes:
        # no averaging lets a burst pass then (iproute2 tc/tc_red.c, `tc_red_eval_ewma`)
        found = f"RED's min of {size(queue.min_bytes)} holds no more than a packet of {mtu_bytes} bytes"
        yield Excess("red, min", found, f"min above {size(mtu_bytes)}", "a larger min, or a larger buffer")


def _of_codel(queue: Queue) -> Iterator[Excess]:
    duration = format_duration_ns
    for name, ns in (("target", queue.target_ns), ("interval", queue.interval_ns)):
        if ns and not CODEL_MIN_NS <= ns <= CODEL_MAX_NS:
            found = f"{queue.kind}'s {name} of {duration(ns)} does not fit how the kernel keeps its times"
            allowed = f"{duration(CODEL_MIN_NS)} to {duration(CODEL_MAX_NS)}"
            yield Excess(name, found, allowed, "RFC 8289 has 5ms and 100ms")


def _of_bucket(bucket: TokenBucket, rate_bps: int, least_bps: int) -> Iterator[Excess]:
    slow, fast = format_rate_bps(bucket.sustained_bps), format_rate_bps(rate_bps)
    if bucket.sustained_bps >= rate_bps:
        found = f"the token bucket's sustained rate of {slow} is not below the rate of {fast}"
        yield Excess(
            "sustained", found, "sustained below rate", "to take the bucket away: token_bucket: none"
        )
    elif bucket.sustained_bps >= least_bps:
        least = format_rate_bps(least_bps)
        found = f"noise may take the rate to {least}, not above the token bucket's sustained rate of {slow}"
        yield Excess(
            "sustained", found, f"sustained below {least}", "less noise, or a smaller sustained rate"
        )
    most = budget_max_bytes(bucket.sustained_bps)
    if bucket.budget_bytes > most:
        budget = format_size_bytes(bucket.budget_bytes)
        found = f"a budget of {budget} lasts longer than HTB can count at the sustained rate of {slow}"
        allowed = f"up to {format_size_bytes(most)}, which is 274.9 s of it"
        yield Excess("budget", found, allowed, "a larger sustained rate")


def _of_cap(cap_bps: int, mtu_bytes: int) -> Iterator[Excess]:
    cap = format_rate_bps(cap_bps)
    if cap_bps > CAP_MAX_BPS:
        found = f"a flow_cap of {cap} is more than sch_fq holds"
        yield Excess(
            "flow_cap", found, f"up to {format_rate_bps(CAP_MAX_BPS)}", "flow_cap: none for no cap at all"
        )
    least_bps = cap_min_bps(mtu_bytes)
    if cap_bps < least_bps:
        found = f"a flow_cap of {cap} is less than a packet of {mtu_bytes} bytes a second"
        allowed = f"{format_rate_bps(least_bps)} or more"
        yield Excess("low flow_cap", found, allowed, "a larger cap, or a larger scale")


def problems(state: LinkState, mtu_bytes: int, where: str) -> list[Problem]:
    """All that the kernel could not have of this state."""
    return [
        Problem(f"{where}: {one.name}", one.found, one.allowed, one.next_step)
        for one in excesses(state, mtu_bytes)
    ]
