"""The paper's short-term scheduling: the threshold follows the egress capacity that TCP shows.

Each control interval: judge whether the link binds, estimate its capacity, search the threshold again, move
if it is worth it. The paper leaves the formulas open; these are ours, and docs/policies.md gives the reasons.

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

from agents.model import Load, best_threshold, capacity
from agents.policies.view import Config, Decision, Egress, Request, State, View, by_length

DEFAULTS: Mapping[str, float] = MappingProxyType(
    {
        "search_tau_s": 1.0,
        "settle_tau_s": 4.0,
        "rtt_rise_s": 0.002,
        "backlog_delay_s": 0.1,
        "suspect_intervals": 2.0,
        "suspect_share": 0.7,
        "quiet_s": 4.0,
        "raise_per_s": 1.5,
        "dead_band": 0.03,
        "move_interval_s": 1.0,
        "surge_wait_s": 15.0,
        "surge_horizon_s": 60.0,
        "surge_share": 0.06,
    }
)
ELAPSED_MAX_S = 1.0  # a control interval that came later than this still counts as one second of evidence
FLOOR = 0.01  # lowest estimate as a share of the ceiling: after an outage a raise by factors starts here
# Goodput this many times the estimate, in two intervals running, refutes it; in one it does not, because a
# repaired hole lets TCP acknowledge at once what arrived in several.
JUMP = 1.25
FAR = 0.35  # a sample this far off the estimate, as a share of it, is a change of the link and not noise
LEAK = 0.5  # two pressed intervals within 1 s are congestion, two within 10 s are not
HEAVY_LOSS = 0.01  # share retransmitted above which one interval is enough, if the goodput was poor as well
FULL_TRAFFIC = 0.5  # goodput from this share of the estimate on makes a quiet interval count in full
IDLE_CREDIT = (
    0.25  # what a quiet interval counts otherwise: little was asked of the link, so little was learnt
)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the policy remembers between intervals.

    `ceiling_bps`: the most that the best threshold makes the system send.
    `t_s`, `backlog_bytes`, `goodput_bps`: of the last view.
    `suspicion`: pressed intervals, leaking by LEAK in each other interval.
    `settled`: a sample has met the estimate since the link began to bind.
    `quiet_s`: time without signs of congestion.
    `moved_s`: when the threshold last moved.
    """

    ceiling_bps: float
    t_s: float = 0.0
    backlog_bytes: int = 0
    goodput_bps: float = 0.0
    suspicion: float = 0.0
    settled: bool = False
    quiet_s: float = 0.0
    moved_s: float = 0.0


def start(config: Config) -> State:
    """The configured threshold and a link that does not bind.

    Raises:
        ValueError: a parameter is unknown or not above 0.
    """
    for name, value in sorted(config.params.items()):
        if name not in DEFAULTS:
            raise ValueError(f"bandwidth_aware has no parameter {name}; it has {', '.join(sorted(DEFAULTS))}")
        if not value > 0:
            raise ValueError(f"bandwidth_aware: {name} is {value}, it must be above 0")
    free = best_threshold(config.system, config.lengths, None)
    ceiling_bps = capacity(config.system, config.lengths, free, None).egress_bps
    return State(config.threshold_tokens, None, "configured threshold", Memory(ceiling_bps))


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length against the threshold of the moment."""
    return by_length(state.threshold_tokens, request)


def update(config: Config, state: State, view: View) -> State:
    """Estimate the egress capacity from the interval that just ended, then move if it is worth it."""
    assert isinstance(state.memory, Memory)
    params = {**DEFAULTS, **config.params}
    elapsed_s = min(max(view.t_s - state.memory.t_s, 0.0), ELAPSED_MAX_S)
    saturated = is_saturated(state.memory.backlog_bytes, view.egress, params)
    memory = _observe(params, state, view, saturated=saturated, elapsed_s=elapsed_s)
    capacity_bps = _estimate(params, state, memory, view.egress, saturated=saturated, elapsed_s=elapsed_s)
    settled = saturated and view.egress.goodput_bps >= (state.capacity_bps or memory.ceiling_bps)
    memory = replace(memory, settled=capacity_bps is not None and (memory.settled or settled))
    return _move(config, params, replace(state, capacity_bps=capacity_bps, memory=memory), view)


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


def _observe(
    params: Mapping[str, float], state: State, view: View, *, saturated: bool, elapsed_s: float
) -> Memory:
    """Count the signs of congestion in this interval, and the time without."""
    memory, capacity_bps = state.memory, state.capacity_bps
    assert isinstance(memory, Memory)
    pressed = is_pressed(view.egress, params)
    suspicion = memory.suspicion + 1.0 if pressed else max(memory.suspicion - LEAK, 0.0)
    poor = view.egress.goodput_bps < params["suspect_share"] * memory.ceiling_bps
    if pressed and poor and view.egress.retrans_bytes > HEAVY_LOSS * view.egress.acked_bytes:
        suspicion = max(suspicion, params["suspect_intervals"])
    if view.egress.goodput_bps >= memory.ceiling_bps:
        suspicion = 0.0  # whatever was lost, the link carried all that the system ever has to send
    busy = capacity_bps is None or view.egress.goodput_bps >= FULL_TRAFFIC * capacity_bps
    quiet_s = memory.quiet_s + elapsed_s * (1.0 if busy else IDLE_CREDIT)
    return replace(
        memory,
        t_s=view.t_s,
        backlog_bytes=view.egress.backlog_bytes,
        goodput_bps=view.egress.goodput_bps,
        suspicion=suspicion,
        quiet_s=0.0 if saturated or pressed else quiet_s,
    )


def _estimate(
    params: Mapping[str, float],
    before: State,
    memory: Memory,
    egress: Egress,
    *,
    saturated: bool,
    elapsed_s: float,
) -> float | None:
    """The egress capacity in bits per second after this interval; None when the link does not bind."""
    assert isinstance(before.memory, Memory)
    ceiling, capacity_bps = memory.ceiling_bps, before.capacity_bps
    proven_bps = min(before.memory.goodput_bps, egress.goodput_bps)
    estimate = ceiling if capacity_bps is None else capacity_bps
    if proven_bps > JUMP * estimate:
        estimate = proven_bps
    elif capacity_bps is None and memory.suspicion >= params["suspect_intervals"]:
        estimate = params["suspect_share"] * ceiling
    elif saturated:
        far = abs(egress.goodput_bps - estimate) > FAR * estimate
        tau_s = params["search_tau_s"] if far or not memory.settled else params["settle_tau_s"]
        estimate += (egress.goodput_bps - estimate) * (1 - exp(-elapsed_s / tau_s))
    elif capacity_bps is not None and memory.quiet_s >= params["quiet_s"]:
        estimate *= params["raise_per_s"] ** elapsed_s
    return None if estimate >= ceiling else max(estimate, FLOOR * ceiling)


def _load(config: Config, params: Mapping[str, float], state: State, view: View) -> Load:
    """What queues beyond `surge_wait_s` of work ask of each side, over `surge_horizon_s`, capped."""
    now = capacity(config.system, config.lengths, state.threshold_tokens, state.capacity_bps)

    def excess(waiting: float, per_s: float) -> float:
        over = max(waiting - params["surge_wait_s"] * per_s, 0.0)
        return min(over / params["surge_horizon_s"], params["surge_share"] * per_s)

    return Load(
        prfaas=excess(view.queue_prfaas, now.theta_prfaas),
        pd=excess(view.queue_pd, now.theta_p),
        egress_bps=0.0
        if state.capacity_bps is None
        else excess(8 * view.egress.backlog_bytes, state.capacity_bps),
    )


def _move(config: Config, params: Mapping[str, float], state: State, view: View) -> State:
    """Search the threshold again; move if it left the dead band and the last move is old enough."""
    assert isinstance(state.memory, Memory)
    load = _load(config, params, state, view)
    target = best_threshold(config.system, config.lengths, state.capacity_bps, load)
    if abs(target - state.threshold_tokens) <= params["dead_band"] * state.threshold_tokens:
        return state
    if view.t_s - state.memory.moved_s < params["move_interval_s"]:
        return state
    link = "not binding" if state.capacity_bps is None else f"{state.capacity_bps / 1e9:.2f} Gbps"
    surge = "" if load == Load() else ", queue surge"
    return replace(
        state,
        threshold_tokens=target,
        reason=f"egress capacity {link}{surge}",
        memory=replace(state.memory, moved_s=view.t_s),
    )
