"""From the plan to the configuration of each agent."""

from __future__ import annotations

from collections.abc import Callable, Collection
from statistics import fmean

import msgspec

from agents import config
from testbed.containers import CONTAINER_JOURNAL, CONTAINER_SHARED
from testbed.plan import Agent, Plan
from testbed.prefix_room import cluster_room_bytes


def prefixes_bytes(plan: Plan) -> int:
    """The most that cached prefixes take in both clusters, as bytes; 0 where there are books at most."""
    return 2 * cluster_room_bytes(plan.compute, plan.cache, plan.model, plan.requests)


def shares_prefixes(plan: Plan, agent: Agent) -> str:
    """The cluster whose cached prefixes an agent reads and writes; empty: none."""
    return agent.cluster if prefixes_bytes(plan) and agent.role in {"prefill", "decode"} else ""


def agent_config(
    plan: Plan, agent: Agent, address_of: Callable[[str], str], completed: Collection[int] | None = None
) -> bytes:
    """The JSON file of one agent; `address_of` gives a topology host's IPv4 address. Of `completed` requests
    only, if that is given.
    """
    peers = tuple(
        config.Peer(
            name=one.name,
            role=one.role,
            cluster=one.cluster,
            address=address_of(one.host),
            profile=one.profile,
        )
        for one in plan.agents
    )
    caching = plan.cache != config.Cache()
    prefixes = CONTAINER_SHARED if shares_prefixes(plan, agent) else ""
    asks = agent.role in {"client", "reference"}
    requests = tuple(
        config.Request(
            id=one.id,
            t_ns=one.t_ns,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            tenant=one.tenant,
            hash_ids=one.hash_ids if caching else (),
        )
        for one in plan.requests
        if completed is None or one.id in completed
    )
    return msgspec.json.encode(
        config.Config(
            name=agent.name,
            journal=f"{CONTAINER_JOURNAL}/{agent.name}.jsonl",
            model=plan.model,
            scale=plan.scale,
            transport=plan.transport,
            scheduling=config.Scheduling(
                policy=plan.policy.name,
                threshold_tokens=plan.policy.threshold_tokens,
                interval_ns=plan.policy.interval_ns,
                params=plan.policy.params,
                length_quantiles=plan.policy.length_quantiles,
                prior_arrival_per_s=plan.policy.prior_arrival_per_s,
                output_tokens=round(fmean(one.output_tokens for one in plan.requests)),
                conversion_ns=plan.policy.conversion_ns,
                files={path: file.text for path, file in plan.policy.files.items()},
                log=plan.policy.log,
                service=plan.policy.service,
            ),
            cache=plan.cache,
            compute=config.Compute(plan.seed, prefixes, max(one.input_tokens for one in plan.requests))
            if plan.compute == "real"
            else None,
            timeouts=plan.timeouts,
            failures=plan.failures,
            flaws=plan.flaws,
            stream_interval_tokens=plan.stream_interval_tokens,
            peers=peers,
            profiles=plan.profiles,
            requests=requests if asks else (),
            deadline_ns=plan.duration_ns + plan.drain_ns,
        )
    )


def congestion_controls(plan: Plan) -> set[str]:
    """Those of all TCP connections of the plan."""
    bursts = {burst.congestion_control for burst in plan.bursts}
    tenants = {tenant.congestion_control for tenant in plan.tenants}
    transport = plan.transport
    inside = {transport.lan_congestion_control, transport.control_congestion_control}
    return bursts | tenants | {transport.congestion_control} | (inside if plan.agents else set())
