"""The short loop: the threshold follows the egress capacity and the queues.

Shared by all policies that search the threshold on the throughput model. Each control interval: estimate the
capacity of the link (`egress`), learn what prompts leave to compute (`lengths_seen`), search the threshold
again, move if it is worth it. The paper leaves the formulas open; docs/policies.md gives the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from agents.model import Lengths, Load, System, at_best, best_threshold, capacity
from agents.policies import egress, lengths_seen
from agents.policies.egress import Link
from agents.policies.lengths_seen import Seen
from agents.policies.params import Param
from agents.policies.view import Config, Regime, State, View

PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        **egress.PARAMS,
        "dead_band": Param(0.03, most=1.0),
        "move_interval_s": Param(1.0),
        "surge_wait_s": Param(15.0),
        "surge_horizon_s": Param(60.0),
        "surge_share": Param(0.06, most=1.0),
    }
)


@dataclass(frozen=True, slots=True)
class Short:
    """What the loop remembers between intervals.

    `ceiling_bps`: the most that the best threshold makes the system send. `moved_s`: when the threshold last
    moved.
    """

    ceiling_bps: float
    link: Link
    seen: Seen
    moved_s: float = 0.0


def begin(config: Config) -> Short:
    """A link that does not bind, and the profiled lengths."""
    return Short(at_best(config.system, config.lengths, None).egress_bps, Link(), Seen(config.lengths))


def observe(
    params: Mapping[str, float], config: Config, short: Short, view: View, regime: Regime = "scarce"
) -> Short:
    """Learn from the interval that just ended."""
    seen = lengths_seen.observe(short.seen, view, config.lengths, regime)
    ceiling_bps = short.ceiling_bps
    if seen.lengths is not short.seen.lengths:
        ceiling_bps = at_best(config.system, seen.lengths, None).egress_bps
    link = egress.observe(params, short.link, view, ceiling_bps)
    return replace(short, ceiling_bps=ceiling_bps, link=link, seen=seen)


def move(
    params: Mapping[str, float], system: System, state: State, short: Short, view: View
) -> tuple[State, Short]:
    """Search the threshold again for `system`; move if it left the dead band and the last move is old enough.

    `memory` of the state that is returned is left to the caller.
    """
    state = replace(state, capacity_bps=short.link.capacity_bps)
    lengths = short.seen.lengths
    load = _load(params, system, lengths, state, view)
    target = best_threshold(system, lengths, state.capacity_bps, load)
    if abs(target - state.threshold_tokens) <= params["dead_band"] * state.threshold_tokens:
        return state, short
    if view.t_s - short.moved_s < params["move_interval_s"]:
        return state, short
    reason = said(state.capacity_bps) + ("" if load == Load() else ", queue surge")
    return replace(state, threshold_tokens=target, reason=reason), replace(short, moved_s=view.t_s)


def said(capacity_bps: float | None) -> str:
    """An estimate of the egress capacity in words."""
    return f"egress capacity {'not binding' if capacity_bps is None else f'{capacity_bps / 1e9:.2f} Gbps'}"


def _load(params: Mapping[str, float], system: System, lengths: Lengths, state: State, view: View) -> Load:
    """What queues beyond `surge_wait_s` of work ask of each side, over `surge_horizon_s`, capped."""
    now = capacity(system, lengths, state.threshold_tokens, state.capacity_bps)

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
