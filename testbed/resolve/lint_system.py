"""Warnings about the system under test: settings that nothing in the run would use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agents.policies import own
from agents.policies.find import HTTP, RECORDED
from agents.profiles import PROFILES, h200_for
from testbed.plan import DIRECTIONS, LinkState
from testbed.resolve.view import View, Warned
from testbed.scenario.faults import KillEntry
from testbed.scenario.model import PdCluster
from testbed.units import NS_PER_S, format_duration_ns

COMPRESSING: Final = ("compression",)
"""Policies that ever have KV compressed."""
CONVERTING: Final = ("prfaas",)
"""Policies that ever change roles."""


def _is_foreign(policy: str) -> bool:
    """Whether nobody here knows what it does."""
    return own.is_own(policy) or policy in {RECORDED, HTTP}


def _compression(view: View) -> Warned:
    policy, compression = view.plan.policy.name, view.scenario.transport.compression
    if compression is not None and policy not in COMPRESSING and not _is_foreign(policy):
        found = f"{policy or 'a bulk workload'} never compresses: {compression} has no effect"
        yield ("transport", "compression"), found, f"leave it out, or policy.name: {', '.join(COMPRESSING)}"


def _cache(view: View) -> Warned:
    """Only requests that say by hash_ids what their prompts have in common can find something there."""
    if view.scenario.cache is not None and not any(request.hash_ids for request in view.plan.requests):
        found = "the workload's prompts have no prefixes in common: nothing is ever found there"
        yield (
            ("cache",),
            found,
            "leave it out, or a workload of sessions, or a trace of kind mooncake or aiperf",
        )


def _conversion(view: View) -> Warned:
    """The default may be written: a scenario and its control then differ in their policy alone."""
    policy, clusters = view.plan.policy.name, view.scenario.clusters
    if clusters is None or policy in CONVERTING or _is_foreign(policy):
        return
    conversion_ns = clusters.pd.conversion
    if conversion_ns != PdCluster.model_fields["conversion"].default:
        found = f"{policy} never changes roles: {format_duration_ns(conversion_ns)} has no effect"
        instead = f"leave it out, or policy.name: {', '.join(CONVERTING)}"
        yield ("clusters", "pd", "conversion"), found, instead


def _profile(view: View) -> Warned:
    """`h200_<model>` was measured with that model, `h200` and `h20` with internal_1t; files say it."""
    clusters, model = view.scenario.clusters, view.scenario.model
    if clusters is None or model is None:
        return
    own = h200_for(model)
    named = isinstance(clusters.prfaas.profile, str)
    if named and clusters.prfaas.instances and clusters.prfaas.profile != own:
        found = f"{clusters.prfaas.profile} has the prefill times of another model than {model}"
        instead = f"profile: {own}" if own in PROFILES else "a profile of its own, see testbed.record"
        yield ("clusters", "prfaas", "profile"), found, instead


def _nobody_left(view: View) -> Warned:
    """Kills after which a cluster has nobody for a role that it had."""
    left = {agent.name: (agent.cluster, agent.role) for agent in view.plan.agents}
    kills = [(i, entry) for i, entry in enumerate(view.scenario.timeline) if isinstance(entry, KillEntry)]
    for index, entry in sorted(kills, key=lambda item: item[1].at):
        gone = left.pop(entry.kill, None)
        if gone is not None and gone not in left.values():
            cluster, role = gone
            found = f"after that there is no {role} instance in the cluster {cluster} any more"
            yield ("timeline", index, "kill"), found, f"restart: {entry.kill}, or one more instance"


def _no_time_to_connect(view: View) -> Warned:
    """An attempt at a connection is given up after `probe_max`, and it takes a round trip."""
    probe_ns = view.plan.failures.probe_max_ns
    longest_ns = sum(
        max(_way_ns(moment.state) for moment in view.moments[direction]) for direction in DIRECTIONS
    )
    if view.plan.agents and probe_ns <= longest_ns:
        found = (
            f"an attempt at a connection is given up after {format_duration_ns(probe_ns)}, and a round trip "
            f"takes up to {format_duration_ns(longest_ns)} with full buffers: what breaks may stay broken"
        )
        yield ("failures", "probe_max"), found, "more than that"


def _way_ns(state: LinkState) -> int:
    """One way through a full buffer."""
    return state.delay_ns + state.buffer_bytes * 8 * NS_PER_S // state.rate_bps


SYSTEM_RULES: Final[tuple[Callable[[View], Warned], ...]] = (
    _compression,
    _cache,
    _conversion,
    _profile,
    _nobody_left,
    _no_time_to_connect,
)
