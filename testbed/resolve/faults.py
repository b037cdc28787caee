"""What is done to agents and hosts: entries of the timeline as faults of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agents.config import Payload
from testbed.plan import Agent, Fault
from testbed.resolve.compute import payload
from testbed.resolve.findings import Findings
from testbed.scenario.faults import FaultEntry
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.workload import BulkWorkload

STOPPING: Final = frozenset({"kill", "restart", "pause"})
"""While one of these lasts, nothing else is done to the agent."""
STARTING_NS: Final = 1_000_000_000
"""Left to an agent that is started again, and beyond that `failures.silence`, for which a router waits for an
instance that is away, before the next thing is done to it.
"""
FOR_EVER_NS: Final = 2**63


def resolve_faults(scenario: Scenario, agents: tuple[Agent, ...], findings: Findings) -> tuple[Fault, ...]:
    """The faults by time; targets that there are not, or that a fault would not touch, go to `findings`."""
    entries: list[tuple[FaultEntry, KeyPath]] = [
        (entry, ("timeline", index))
        for index, entry in enumerate(scenario.timeline)
        if isinstance(entry, FaultEntry)
    ]
    if isinstance(scenario.workload, BulkWorkload):
        for _, path in entries:
            findings.add(path, "has no effect on a bulk workload, which has no agents", next_step="remove it")
        return ()
    faults = [(fault_of(entry), path) for entry, path in entries]
    for fault, path in faults:
        if agents:
            _check_target(fault, path, agents, payload(scenario), findings)
    silence_ns = scenario.failures.silence
    for (one, first), (_, second) in _clashing(faults, silence_ns):
        line = findings.source.line(first)
        found = f"{one.target} is still under the {one.kind} of line {line}"
        allowed = (
            "kill, restart and pause alone, others one of a kind at a time; 1s and failures.silence after a "
            "restart"
        )
        findings.add(second, found, allowed)
    return tuple(sorted((fault for fault, _ in faults), key=lambda fault: fault.t_ns))


def fault_of(entry: FaultEntry) -> Fault:
    """The entry in the terms of the plan."""
    until_ns = None if entry.lasts_ns is None else entry.at + entry.lasts_ns
    return Fault(t_ns=entry.at, kind=entry.kind, target=entry.target, until_ns=until_ns, amount=entry.amount)


def clash(one: Fault, other: Fault, silence_ns: int) -> bool:
    """Whether both act on one target at once, and could not be undone one by one."""
    if one.target != other.target:
        return False
    if one.kind != other.kind and (
        "exhaust_ports" in (one.kind, other.kind) or not STOPPING & {one.kind, other.kind}
    ):
        return False
    first, second = sorted((one, other), key=lambda fault: fault.t_ns)
    return second.t_ns <= _end_ns(first, silence_ns)


def targets(kind: str, agents: tuple[Agent, ...]) -> tuple[str, ...]:
    """Whom a fault can befall: never the client, which measures, or who computes what is right."""
    ours = [agent for agent in agents if agent.role not in {"client", "reference"}]
    match kind:
        case "kill":
            return tuple(agent.name for agent in ours if agent.role != "router")
        case "corrupt":
            return tuple(agent.name for agent in ours if agent.role == "prefill")
        case "fill":
            return tuple(agent.name for agent in ours if agent.role == "decode")
        case "exhaust_ports":
            return tuple(sorted({agent.host for agent in ours}))
        case _:
            return tuple(agent.name for agent in ours)


def _end_ns(fault: Fault, silence_ns: int) -> int:
    """Until when nothing else may begin that clashes."""
    match fault.kind:
        case "kill":
            return FOR_EVER_NS
        case "restart":
            return (fault.until_ns or 0) + STARTING_NS + silence_ns
        case _:
            return fault.until_ns or fault.t_ns


def _clashing(
    faults: list[tuple[Fault, KeyPath]], silence_ns: int
) -> Iterator[tuple[tuple[Fault, KeyPath], tuple[Fault, KeyPath]]]:
    """Each fault that clashes with one before it, with the first such; in the order of time."""
    ordered = sorted(faults, key=lambda item: item[0].t_ns)
    for index, later in enumerate(ordered):
        earlier = next((one for one in ordered[:index] if clash(one[0], later[0], silence_ns)), None)
        if earlier is not None:
            yield earlier, later


def _check_target(
    fault: Fault, path: KeyPath, agents: tuple[Agent, ...], crossing: Payload, findings: Findings
) -> None:
    key: KeyPath = (*path, fault.kind)
    fit = targets(fault.kind, agents)
    if fault.kind == "corrupt" and crossing == "synthetic":
        found = "a damaged chunk is noticed only where chunks have a checksum"
        findings.add(key, found, "transport.payload: verified")
    if fault.target in fit:
        return
    if fault.kind == "exhaust_ports":
        findings.name_unknown(key, "host with an agent under test", fault.target, fit)
    elif fault.target == "client":
        findings.add(key, "the client measures, and has to live", ", ".join(fit))
    elif fault.target == "router" and fault.kind == "kill":
        found = "without the router nothing would be served any more"
        findings.add(key, found, ", ".join(fit), "restart: router, after: 1s")
    elif fault.target in {agent.name for agent in agents}:
        never = "sends KV" if fault.kind == "corrupt" else "takes KV in to decode"
        findings.add(key, f"{fault.target} never {never}", ", ".join(fit))
    else:
        findings.name_unknown(key, "agent", fault.target, fit)
