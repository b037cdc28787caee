"""`bandwidth_aware` for several tenants: none of them takes more than its share of a busy cluster.

Two means. In both clusters requests queue as in start-time fair queueing: a request behind everything that
came before the moment at which its tenant's outstanding work there would be done, had each tenant with work
an equal part of the cluster. So a flood waits behind itself, and whoever asks for less than its part waits
for little more than the request in service.

And while the PrfaaS cluster is contended, the work that it may have outstanding is divided max-min fairly:
every tenant gets what it has, up to a level that is the same for all and such that the sum is what may be
outstanding. A tenant above its share keeps further requests in the PD cluster, while an instance is idle
there. What one tenant leaves others may use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType

from agents.policies import bandwidth_aware, params, roles, short_loop
from agents.policies.params import Param, values
from agents.policies.view import Config, Decision, Request, State, View, by_length

PARAMS: Mapping[str, Param] = MappingProxyType({**short_loop.PARAMS, "contended_wait_s": Param(8.0)})


def start(config: Config) -> State:
    """The configured threshold and a link that does not bind.

    Raises:
        ValueError: a parameter is unknown or out of range.
    """
    params.check("fair_share", PARAMS, config.params)
    return State(config.threshold_tokens, None, "configured threshold", short_loop.begin(config))


def fair_share_s(works_s: Sequence[float], budget_s: float) -> float:
    """How much work a tenant may have outstanding, in seconds, before it has to wait for the others.

    Infinite while all work is within the budget. Then the max-min level l, sum(min(work, l)) = budget; or the
    mean of what is there, if more: where the budget is exceeded by far, those with the most make room first.
    """
    ordered = sorted(works_s)
    left = budget_s
    for i, work in enumerate(ordered):
        level = left / (len(ordered) - i)
        if work > level:
            return max(level, sum(ordered) / len(ordered))
        left -= work
    return inf


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length; a long one stays when its tenant has more than its share and others are waiting."""
    decision = by_length(state.threshold_tokens, request)
    n_p = roles.serving(config.system, view, config.system.output_tokens).n_p
    if decision.route == "pd":
        works = {load.tenant: load.pd_work_s for load in view.tenants if load.pd_work_s > 0}
        return _queued(decision, view, request, works, n_p)
    works = {load.tenant: load.work_s for load in view.tenants if load.work_s > 0}
    queued = _queued(decision, view, request, works, config.system.n_prfaas)
    if view.queue_pd >= n_p:
        return queued  # prefill of a long prompt would hold up several short ones there
    own_s = works.get(request.tenant, 0.0)
    budget_s = values(PARAMS, config.params)["contended_wait_s"] * config.system.n_prfaas
    share_s = fair_share_s(list(works.values()), budget_s)
    if own_s <= share_s or len(works) == 1:
        return queued
    reason = f"{request.tenant} has {own_s:.1f} s of work in the PrfaaS cluster, its share is {share_s:.1f} s"
    return Decision("pd", state.threshold_tokens, reason)


def _queued(
    decision: Decision, view: View, request: Request, works: Mapping[str, float], instances: int
) -> Decision:
    """The decision with a place in the queue of its cluster."""
    sharing = len(works.keys() | {request.tenant})
    wait_s = works.get(request.tenant, 0.0) * sharing / max(instances, 1)
    return replace(decision, order_s=view.t_s + wait_s)


def update(config: Config, state: State, view: View) -> State:
    """As `bandwidth_aware`."""
    own = {name: value for name, value in config.params.items() if name in bandwidth_aware.PARAMS}
    return bandwidth_aware.update(replace(config, params=own), state, view)
