"""What the kernel cannot have, because of how many bits it counts with."""

from __future__ import annotations

from testbed.errors import Problem
from testbed.plan import LinkState

_U32_MAX = 2**32 - 1
TICK_NS = 64
"""HTB counts its buckets in times at the class's rate, in 32 bits (include/net/pkt_sched.h, PSCHED_SHIFT)."""
CAP_MIN_BPS, CAP_MAX_BPS = 8, (_U32_MAX - 1) * 8
"""fq knows rates in 32 bits of bytes per second; the last stands for no cap (net/sched/sch_fq.c)."""
EVERY_MAX = 2**16 - 1
"""gact counts to its n in 16 bits (net/sched/act_gact.c)."""
RED_MAX_BYTES = 2**31 - 1
"""RED keeps averages in 32 bits (include/net/red.h, `red_check_params`)."""


def budget_max_bytes(sustained_bps: int) -> int:
    """Largest budget of a token bucket: 274.9 s at its sustained rate."""
    return _U32_MAX * TICK_NS * (sustained_bps // 8) // 10**9


def bucket_bytes(rate_bps: int, largest_packet_bytes: int) -> int:
    """HTB's bucket: two super-packets, or 20 us of the rate so that timer steps do not cap it."""
    return max(2 * largest_packet_bytes, rate_bps // 8 * 20 // 10**6)


def problems(state: LinkState, where: str) -> list[Problem]:
    """All that the kernel could not have of this state."""
    found = []
    bucket, loss = state.token_bucket, state.loss
    if bucket is not None:
        most_bytes = budget_max_bytes(bucket.sustained_bps)
        if bucket.budget_bytes > most_bytes:
            what = f"{bucket.budget_bytes} bytes, more than HTB can count at {bucket.sustained_bps} bit/s"
            found.append(Problem(f"{where}: budget", what, f"up to {most_bytes} bytes"))
        if bucket.sustained_bps >= state.rate_bps:
            what = f"{bucket.sustained_bps} bit/s of a rate of {state.rate_bps} bit/s"
            found.append(Problem(f"{where}: sustained", what, "less than the rate"))
    if state.flow_cap_bps is not None and not CAP_MIN_BPS <= state.flow_cap_bps <= CAP_MAX_BPS:
        what, allowed = f"{state.flow_cap_bps} bit/s", f"{CAP_MIN_BPS} to {CAP_MAX_BPS} bit/s"
        found.append(Problem(f"{where}: flow_cap", what, allowed))
    if loss is not None and loss.model == "periodic" and not 1 <= loss.every_packets <= EVERY_MAX:
        what, allowed = f"every {loss.every_packets} packets", f"1 to {EVERY_MAX} packets"
        found.append(Problem(f"{where}: loss", what, allowed, "a random loss of 1/n has no such limit"))
    if state.queue.kind == "red" and state.queue.max_bytes > RED_MAX_BYTES:
        what, allowed = f"{state.queue.max_bytes} bytes", f"up to {RED_MAX_BYTES} bytes"
        found.append(Problem(f"{where}: red, max", what, allowed))
    return found
