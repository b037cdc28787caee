"""The threshold by additive increase and multiplicative decrease, as TCP does it with its window.

An admitted egress rate grows by the same amount per second while TCP shows no congestion, and shrinks by a
factor when it keeps showing some; the threshold is the best one for that rate. After a decrease the next one
has to wait until the backlog, with the share of the rate that was given up, should have drained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from agents.model import at_best, best_threshold
from agents.policies import egress, params
from agents.policies.params import Param, values
from agents.policies.short_loop import said
from agents.policies.view import Config, Decision, Request, State, View, by_length

PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        **egress.SIGNS,
        "congested_intervals": Param(8.0),
        "increase_per_s": Param(0.02, most=1.0),
        "decrease_factor": Param(0.8, most=0.99),
        "decrease_wait_s": Param(1.0),
        "drain_wait_max_s": Param(15.0),
        "dead_band": Param(0.03, most=1.0),
    }
)


@dataclass(frozen=True, slots=True)
class Memory:
    """`ceiling_bps`: the most that the best threshold makes the system send. `rate_bps`: what is admitted.

    `t_s`, `backlog_bytes`: of the last view. `congestion`: intervals with congestion, less those without.
    `hold_until_s`: no decrease before then.
    """

    ceiling_bps: float
    rate_bps: float
    t_s: float = 0.0
    backlog_bytes: int = 0
    congestion: float = 0.0
    hold_until_s: float = 0.0


def start(config: Config) -> State:
    """The configured threshold; all that the system ever sends is admitted.

    Raises:
        ValueError: a parameter is unknown or out of range.
    """
    params.check("aimd", PARAMS, config.params)
    ceiling_bps = at_best(config.system, config.lengths, None).egress_bps
    return State(config.threshold_tokens, None, "configured threshold", Memory(ceiling_bps, ceiling_bps))


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length against the threshold of the moment."""
    return by_length(state.threshold_tokens, request)


def update(config: Config, state: State, view: View) -> State:
    """Increase or decrease the rate, then take its best threshold if it left the dead band."""
    assert isinstance(state.memory, Memory)
    given, before = values(PARAMS, config.params), state.memory
    memory = _next(given, before, view)
    rate_bps = memory.rate_bps if memory.rate_bps < memory.ceiling_bps else None
    threshold, reason = state.threshold_tokens, state.reason
    target = best_threshold(config.system, config.lengths, rate_bps)
    if abs(target - threshold) > given["dead_band"] * threshold:
        way = "down" if memory.rate_bps < before.rate_bps else "up"
        threshold, reason = target, f"{said(rate_bps)}, rate {way}"
    return State(threshold, rate_bps, reason, memory)


def _next(given: Mapping[str, float], memory: Memory, view: View) -> Memory:
    """The admitted rate after this interval."""
    rate_bps, hold_until_s = memory.rate_bps, memory.hold_until_s
    elapsed_s = egress.elapsed_s(memory.t_s, view)
    saturated = egress.is_saturated(memory.backlog_bytes, view.egress, given)
    congested = saturated or egress.is_pressed(view.egress, given)
    most = given["congested_intervals"]
    congestion = min(memory.congestion + 1, most) if congested else max(memory.congestion - 1, 0.0)
    if not congested:
        rate_bps += given["increase_per_s"] * memory.ceiling_bps * elapsed_s
    elif congestion >= most and view.t_s >= hold_until_s:
        given_up_bps = rate_bps * (1 - given["decrease_factor"])
        rate_bps -= given_up_bps
        # Nothing to give up: the best threshold never offloads, whatever the link.
        drain_s = 8 * view.egress.backlog_bytes / given_up_bps if given_up_bps else 0.0
        hold_until_s = view.t_s + max(given["decrease_wait_s"], min(drain_s, given["drain_wait_max_s"]))
    rate_bps = min(max(rate_bps, egress.FLOOR * memory.ceiling_bps), memory.ceiling_bps)
    return replace(
        memory,
        rate_bps=rate_bps,
        t_s=view.t_s,
        backlog_bytes=view.egress.backlog_bytes,
        congestion=congestion,
        hold_until_s=hold_until_s,
    )
