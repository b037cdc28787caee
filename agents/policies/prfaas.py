"""The paper's scheduler as printed: threshold by bandwidth, cache regimes, and roles in the PD cluster.

Short term as `bandwidth_aware`. While bandwidth is scarce each cluster's cache is judged alone; while it is
abundant the longest prefix of any cluster counts, and is fetched where it is missing. Long term an instance
of the PD cluster changes between prefill and decode when producers and consumers are out of balance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agents.model import capacity
from agents.policies import egress, lengths_seen, params, regimes, roles, short_loop
from agents.policies.params import Param, values
from agents.policies.regimes import Scarcity
from agents.policies.roles import Roles
from agents.policies.short_loop import Short
from agents.policies.view import Config, Decision, Request, State, View, by_length

PARAMS: Mapping[str, Param] = MappingProxyType({**short_loop.PARAMS, **regimes.PARAMS, **roles.PARAMS})


@dataclass(frozen=True, slots=True)
class Memory:
    """What each of the loops remembers."""

    short: Short
    scarcity: Scarcity
    roles: Roles


def start(config: Config) -> State:
    """The configured threshold, the roles as they are, bandwidth scarce until the link has been seen.

    Raises:
        ValueError: a parameter is unknown or out of range, or `abundant_below` is not below `scarce_above`.
    """
    params.check("prfaas", PARAMS, config.params)
    regimes.check("prfaas", values(PARAMS, config.params))
    memory = Memory(short_loop.begin(config), Scarcity(), Roles())
    return State(config.threshold_tokens, None, "configured threshold", memory, memory.scarcity.regime)


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By what is left to compute: with the PD cluster's own prefix, or in abundance with the longest."""
    threshold = state.threshold_tokens
    if state.regime == "scarce":
        return by_length(threshold, request)
    fresh = request.fresh_tokens
    if fresh <= threshold:
        return Decision("pd", threshold, f"{fresh} fresh tokens <= {threshold}", cache="best")
    return Decision("prfaas", threshold, f"{fresh} fresh tokens > {threshold}", cache="best")


def update(config: Config, state: State, view: View) -> State:
    """Learn from the interval, judge the regime, move the threshold, then look at the roles."""
    assert isinstance(state.memory, Memory)
    given, before = values(PARAMS, config.params), state.memory
    elapsed_s = egress.elapsed_s(before.short.link.t_s, view)
    short = short_loop.observe(given, config, before.short, view, state.regime)
    demand_bps = egress.demand_bps(before.short.link, view)
    used = regimes.used(demand_bps, view.egress.backlog_bytes, short.link.capacity_bps)
    scarcity = regimes.observe(given, before.scarcity, used, elapsed_s)

    outputs = lengths_seen.mean_output_tokens(short.seen, config.system.output_tokens)
    system = roles.serving(config.system, view, outputs)
    moved, short = short_loop.move(given, system, state, short, view)
    reason = moved.reason
    if moved.threshold_tokens != state.threshold_tokens and system.n_p != config.system.n_p:
        reason += f", {system.n_p} prefill instances"

    lengths, capacity_bps = short.seen.lengths, short.link.capacity_bps
    now = capacity(system, lengths, moved.threshold_tokens, capacity_bps)
    egress_bps = short.ceiling_bps if capacity_bps is None else capacity_bps
    watched = roles.observe(
        given, before.roles, view, system=system, now=now, egress_bps=egress_bps, elapsed_s=elapsed_s
    )
    decided, why = roles.decide(
        given, watched, view, system=system, lengths=lengths, ceiling_bps=short.ceiling_bps
    )
    return State(
        moved.threshold_tokens,
        capacity_bps,
        why or reason,
        Memory(short, scarcity, decided),
        scarcity.regime,
        decided.wanted,
    )
