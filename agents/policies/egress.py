"""The egress capacity that TCP shows, estimated from one control interval to the next.

- Saturated: more bytes stood in the backlog at both ends of the interval than were acknowledged within it,
  and TCP saw a queue or retransmitted. The link was then busy throughout, so the goodput is a sample of its
  capacity. A demand below capacity never gives a sample, nor does a window that still opens.
- Pressed: retransmissions together with a risen round-trip time or a backlog. Evidence of congestion, but no
  sample: the estimate falls once, to a share of what the system can send, and waits for samples.
- Neither, for a while and under traffic: the estimate is raised until the link cannot bind any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from types import MappingProxyType

from agents.policies.params import Param
from agents.policies.view import Egress, View

SIGNS: Mapping[str, Param] = MappingProxyType(
    {"rtt_rise_s": Param(0.002), "backlog_delay_s": Param(0.1)},
)
PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        **SIGNS,
        "search_tau_s": Param(1.0),
        "settle_tau_s": Param(4.0),
        "suspect_intervals": Param(2.0),
        "suspect_share": Param(0.7, most=1.0),
        "quiet_s": Param(4.0),
        "raise_per_s": Param(1.5, above=1.0),
    }
)
ELAPSED_MAX_S = 1.0  # a control interval that came later than this still counts as one second of evidence
FLOOR = 0.01  # lowest estimate as a share of the ceiling: after an outage a raise by factors starts here
# Goodput this many times the estimate, in two intervals running, refutes it; in one it does not, because a
# repaired hole lets TCP acknowledge at once what arrived in several.
JUMP = 1.25
# A sample this far off the estimate, as a share of it, is a change of the link, if the interval before was as
# far off; alone it is a burst of somebody else's traffic, and says nothing.
FAR = 0.35
LEAK = 0.5  # two pressed intervals within 1 s are congestion, two within 10 s are not
HEAVY_LOSS = 0.01  # share retransmitted above which one interval is enough, if the goodput was poor as well
FULL_TRAFFIC = 0.5  # goodput from this share of the estimate on makes a quiet interval count in full
IDLE_CREDIT = 0.25  # what it counts otherwise: little was asked of the link, so little was learnt


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of the link.

    `capacity_bps`: the estimate in bits per second; None: the link does not bind.
    `t_s`, `backlog_bytes`, `goodput_bps`: of the last view.
    `suspicion`: pressed intervals, leaking by LEAK in each other interval.
    `settled`: a sample has met the estimate since the link began to bind.
    `quiet_s`: time without signs of congestion.
    """

    capacity_bps: float | None = None
    t_s: float = 0.0
    backlog_bytes: int = 0
    goodput_bps: float = 0.0
    suspicion: float = 0.0
    settled: bool = False
    quiet_s: float = 0.0


def elapsed_s(before_s: float, view: View) -> float:
    """Seconds from one view to the next, as far as they count as evidence."""
    return min(max(view.t_s - before_s, 0.0), ELAPSED_MAX_S)


def is_saturated(backlog_before: int, egress: Egress, params: Mapping[str, float]) -> bool:
    """Whether the link itself held bytes up all through the interval, so that its goodput is the capacity.

    More than was acknowledged stood there before: it cannot have run empty. As much is left: it was no
    delayed count. A queue, a retransmission or silence: it was the link, not a congestion window that still
    opens.
    """
    stood = min(backlog_before, egress.backlog_bytes) >= max(egress.acked_bytes, 1)
    return stood and (not egress.acked_bytes or egress.retrans_bytes > 0 or _rtt_risen(egress, params))


def _rtt_risen(egress: Egress, params: Mapping[str, float]) -> bool:
    return egress.rtt_s - egress.min_rtt_s > params["rtt_rise_s"]


def is_pressed(egress: Egress, params: Mapping[str, float]) -> bool:
    """Whether TCP retransmitted while a queue stood; either of them alone happens on a healthy link."""
    delayed = 8 * egress.backlog_bytes > params["backlog_delay_s"] * egress.goodput_bps
    return egress.retrans_bytes > 0 and (_rtt_risen(egress, params) or delayed)


def demand_bps(before: Link, view: View) -> float:
    """Bits per second of KV that came to the link since the last view: acknowledged, or grown the backlog."""
    seconds = view.t_s - before.t_s
    if seconds <= 0:
        return view.egress.goodput_bps
    grown = 8 * (view.egress.backlog_bytes - before.backlog_bytes) / seconds
    return max(view.egress.goodput_bps + grown, 0.0)


def observe(params: Mapping[str, float], link: Link, view: View, ceiling_bps: float) -> Link:
    """The link after one more control interval; `ceiling_bps` is the most that the system ever sends."""
    elapsed = elapsed_s(link.t_s, view)
    saturated = is_saturated(link.backlog_bytes, view.egress, params)
    seen = _signs(params, link, view, ceiling_bps, saturated=saturated, elapsed=elapsed)
    capacity_bps = _estimate(params, link, seen, ceiling_bps, saturated=saturated, elapsed=elapsed)
    met = saturated and view.egress.goodput_bps >= (link.capacity_bps or ceiling_bps)
    settled = capacity_bps is not None and (link.settled or met)
    return replace(seen, capacity_bps=capacity_bps, settled=settled)


def _signs(
    params: Mapping[str, float],
    link: Link,
    view: View,
    ceiling_bps: float,
    *,
    saturated: bool,
    elapsed: float,
) -> Link:
    """Count the signs of congestion in this interval, and the time without."""
    egress = view.egress
    pressed = is_pressed(egress, params)
    enough = params["suspect_intervals"]  # more is no better, and would outlast the congestion
    suspicion = min(link.suspicion + 1.0, enough) if pressed else max(link.suspicion - LEAK, 0.0)
    poor = egress.goodput_bps < params["suspect_share"] * ceiling_bps
    if pressed and poor and egress.retrans_bytes > HEAVY_LOSS * egress.acked_bytes:
        suspicion = enough
    if egress.goodput_bps >= ceiling_bps:
        suspicion = 0.0  # whatever was lost, the link carried all that the system ever has to send
    quiet_s = link.quiet_s + elapsed * _credit(link.capacity_bps, egress.goodput_bps)
    return replace(
        link,
        t_s=view.t_s,
        backlog_bytes=egress.backlog_bytes,
        goodput_bps=egress.goodput_bps,
        suspicion=suspicion,
        quiet_s=0.0 if saturated or pressed else quiet_s,
    )


def _credit(capacity_bps: float | None, goodput_bps: float) -> float:
    """How much a quiet interval counts, from 0 to 1: as far as something was asked of the link."""
    return 1.0 if capacity_bps is None or goodput_bps >= FULL_TRAFFIC * capacity_bps else IDLE_CREDIT


def _estimate(
    params: Mapping[str, float],
    before: Link,
    seen: Link,
    ceiling_bps: float,
    *,
    saturated: bool,
    elapsed: float,
) -> float | None:
    """The egress capacity in bits per second after this interval; None when the link does not bind."""
    capacity_bps = before.capacity_bps
    proven_bps = min(before.goodput_bps, seen.goodput_bps)
    estimate = ceiling_bps if capacity_bps is None else capacity_bps
    if proven_bps > JUMP * estimate:
        estimate = proven_bps
    elif capacity_bps is None and seen.suspicion >= params["suspect_intervals"]:
        estimate = params["suspect_share"] * ceiling_bps
    elif saturated:
        estimate += (seen.goodput_bps - estimate) * _weight(params, before, seen, estimate, elapsed)
    elif capacity_bps is not None and seen.quiet_s >= params["quiet_s"]:
        estimate *= params["raise_per_s"] ** (elapsed * _credit(capacity_bps, seen.goodput_bps))
    return None if estimate >= ceiling_bps else max(estimate, FLOOR * ceiling_bps)


def _weight(
    params: Mapping[str, float], before: Link, seen: Link, estimate_bps: float, elapsed: float
) -> float:
    """How far a sample of the capacity moves the estimate, from 0 to 1."""
    far, far_before = (abs(link.goodput_bps - estimate_bps) > FAR * estimate_bps for link in (seen, before))
    if seen.settled and far and not far_before:
        return 0.0
    tau_s = params["search_tau_s"] if far or not seen.settled else params["settle_tau_s"]
    return 1 - exp(-elapsed / tau_s)
