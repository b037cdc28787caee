"""Faults that the seed decides: further entries of the timeline, such as an author could have written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from testbed.plan import DIRECTIONS, Agent, Direction
from testbed.resolve.compute import payload
from testbed.resolve.faults import clash, fault_of, targets
from testbed.resolve.findings import Findings
from testbed.resolve.patterns import span
from testbed.resolve.seeds import generator
from testbed.resolve.system import resolve_agents
from testbed.scenario.entry import Entry
from testbed.scenario.faults import LINK_KINDS, DrawnFaults, FaultEntry, IdleEntry, Kind
from testbed.scenario.model import Scenario
from testbed.scenario.timeline import (
    ENTRIES,
    FlapEntry,
    LinkEntry,
    OutageEntry,
    PartitionEntry,
    RampEntry,
    SetEntry,
    TraceEntry,
    WaveEntry,
)
from testbed.scenario.workload import BulkWorkload
from testbed.units import NS_PER_S, format_duration_ns
from testbed.workload import Load

TRIES: Final = 200
"""At an entry; after so many that did not fit beside the others, there are no more of them."""
NS_PER_MS: Final = NS_PER_S // 1000
SHORTEST_SHARE: Final = 10
"""A fault lasts at least a tenth of the longest."""
LEAST_LOSS, MOST_LOSS = 0.001, 0.05
MOST_FACTOR, MOST_CHUNKS, MOST_FLAPS = 10, 8, 5
BLACK_HOLE_BYTES: Final = 1200
"""Below the least MTU that a link may have (1280)."""


@dataclass(frozen=True)
class Ground:
    """What there is for faults to befall, and what is there already."""

    end_ns: int
    agents: tuple[Agent, ...]
    verified: bool
    silence_ns: int
    arrivals_ns: tuple[int, ...]
    written: tuple[Entry, ...]
    outages: frozenset[Direction] = frozenset()
    """Directions with an outage of their own, at any time."""

    def impossible(self, kind: Kind) -> str:
        """Why no fault of that kind can be drawn here; empty when one can."""
        if kind in LINK_KINDS:
            return ""
        if not self.agents:
            return "has no effect on a bulk workload, which has no agents"
        if kind == "corrupt" and not self.verified:
            return "a damaged chunk is noticed only where chunks have a checksum (payload: verified)"
        return ""


def with_drawn(
    scenario: Scenario, seed: int, hosts: tuple[str, ...], load: Load | None, findings: Findings
) -> Scenario:
    """The scenario with the drawn entries at the end of its timeline."""
    spec = scenario.faults
    if spec is None:
        return scenario
    bulk = isinstance(scenario.workload, BulkWorkload)
    ground = Ground(
        end_ns=scenario.duration,
        # what is wrong with them is said where they are resolved for the plan
        agents=() if bulk else resolve_agents(scenario, hosts, 0, Findings(findings.source)),
        verified=payload(scenario) != "synthetic",
        silence_ns=scenario.failures.silence,
        arrivals_ns=tuple(request.t_ns for request in load.requests) if load else (),
        written=scenario.timeline,
        outages=frozenset(each for each in DIRECTIONS if getattr(scenario.link, each).outage is not None),
    )
    if "kinds" in spec.model_fields_set:
        for index, kind in enumerate(spec.kinds):
            reason = ground.impossible(kind)
            if reason:
                findings.add(("faults", "kinds", index), f"{kind}: {reason}", next_step="leave it out")
    end = format_duration_ns(scenario.duration)
    if spec.until > scenario.duration:
        found = f"ends at {format_duration_ns(spec.until)}, after the end of the run at {end}"
        findings.add(("faults", "until"), found, f"up to {end}", "move it, or make duration longer")
        return scenario
    return scenario.model_copy(update={"timeline": (*scenario.timeline, *draw(spec, seed, ground))})


def draw(spec: DrawnFaults, seed: int, ground: Ground) -> tuple[Entry, ...]:
    """As many entries as the seed says, by time; fewer when no more find room beside the others."""
    kinds = [kind for kind in dict.fromkeys(spec.kinds) if not ground.impossible(kind)]
    random = generator(seed, "faults")
    count = int(random.integers(spec.count[0], spec.count[1], endpoint=True))
    drawn: list[Entry] = []
    for _ in range(count if kinds else 0):
        for _ in range(TRIES):
            entry = _candidate(kinds[random.integers(len(kinds))], spec, random, ground)
            if entry is not None and _fits(entry, (*ground.written, *drawn), ground):
                drawn.append(entry)
                break
    return tuple(sorted(drawn, key=lambda entry: entry.at))


def _candidate(kind: Kind, spec: DrawnFaults, random: np.random.Generator, ground: Ground) -> Entry | None:
    """An entry of a kind, on the grid of milliseconds; None when it has no target or no room."""
    from_ms, until_ms = -(-spec.start // NS_PER_MS), spec.until // NS_PER_MS
    longest_ms = min(spec.longest // NS_PER_MS, until_ms - from_ms)
    if longest_ms < 1:
        return None
    shortest_ms = max(1, longest_ms // SHORTEST_SHARE)
    length_ms = int(random.integers(shortest_ms, longest_ms, endpoint=True))
    at_ms = int(random.integers(from_ms, until_ms - length_ms, endpoint=True))
    at, length = f"{at_ms}ms", f"{length_ms}ms"
    if kind in LINK_KINDS:
        key, fields = _on_link(kind, at_ms, length_ms, random)
    elif kind == "idle":
        key, fields = "idle", {"idle": length}
    else:
        names = targets(kind, ground.agents)
        if not names:
            return None
        key = kind
        fields = {kind: names[random.integers(len(names))], **_beside(kind, length, random)}
    return ENTRIES[key].model_validate({"at": at, **fields})


def _on_link(
    kind: Kind, at_ms: int, length_ms: int, random: np.random.Generator
) -> tuple[str, dict[str, Any]]:
    """The key of a link's entry and what stands beside `at`."""
    length = f"{length_ms}ms"
    one, some = (ways[random.integers(len(ways))] for ways in (DIRECTIONS, ("both", *DIRECTIONS)))
    match kind:
        case "partition":
            return "partition", {"link": "both", "partition": True, "for": length}
        case "one_way":
            return "partition", {"link": one, "partition": True, "for": length}
        case "flap":
            each = f"{max(1, length_ms // (2 * int(random.integers(2, MOST_FLAPS, endpoint=True))))}ms"
            flap = {"down": each, "up": each}
            return "flap", {"link": some, "flap": flap, "until": f"{at_ms + length_ms}ms"}
        case "loss_storm":
            ratio = float(LEAST_LOSS * (MOST_LOSS / LEAST_LOSS) ** random.random())
            return "set", {"link": some, "set": {"loss": round(ratio, 6)}, "for": length}
        case "black_hole":
            return "set", {"link": some, "set": {"black_hole_above": BLACK_HOLE_BYTES}, "for": length}
    raise AssertionError(kind)


def _beside(kind: Kind, length: str, random: np.random.Generator) -> dict[str, Any]:
    """What stands in an entry of an agent beside the moment and the target."""
    match kind:
        case "kill":
            return {}
        case "restart":
            return {"after": length}
        case "slow":
            return {"for": length, "factor": float(random.integers(2, MOST_FACTOR, endpoint=True))}
        case "corrupt":
            return {"chunks": int(random.integers(1, MOST_CHUNKS, endpoint=True))}
        case _:
            return {"for": length}


def _fits(entry: Entry, others: tuple[Entry, ...], ground: Ground) -> bool:
    """Whether an entry can stand beside others, and leaves somebody to serve and something to do."""
    if isinstance(entry, LinkEntry):
        return _moves_alone(entry, others, ground)
    if isinstance(entry, IdleEntry):
        idle = [(one.at, one.at + one.idle) for one in (*others, entry) if isinstance(one, IdleEntry)]
        return any(not any(b <= t_ns < e for b, e in idle) for t_ns in ground.arrivals_ns)
    assert isinstance(entry, FaultEntry)
    faults = [fault_of(one) for one in others if isinstance(one, FaultEntry)]
    fault = fault_of(entry)
    if any(clash(fault, one, ground.silence_ns) for one in faults):
        return False
    return fault.kind != "kill" or _somebody_left(
        ground.agents, {one.target for one in (*faults, fault) if one.kind == "kill"}
    )


def _somebody_left(agents: tuple[Agent, ...], dead: set[str]) -> bool:
    """Whether each role of each cluster is still there once these are dead."""
    everybody = {(agent.cluster, agent.role) for agent in agents}
    return everybody == {(agent.cluster, agent.role) for agent in agents if agent.name not in dead}


def _moves_alone(entry: LinkEntry, others: tuple[Entry, ...], ground: Ground) -> bool:
    """Whether no other entry moves one of its values while it lasts."""
    moved = set(_moved(entry))
    if any(name == "partitioned" and direction in ground.outages for direction, name in moved):
        return False
    begin_ns, end_ns = span(entry, ground.end_ns)
    for other in others:
        if isinstance(other, LinkEntry) and moved & set(_moved(other)):
            other_begin_ns, other_end_ns = span(other, ground.end_ns)
            if begin_ns <= other_end_ns and other_begin_ns <= end_ns:
                return False
    return True


def _moved(entry: LinkEntry) -> Iterator[tuple[Direction, str]]:
    """The values that an entry moves, of those that drawn ones move; a trace may move the loss."""
    match entry:
        case SetEntry(set=patch) | RampEntry(ramp=patch) | WaveEntry(wave=patch):
            names = list(patch.changes())
        case TraceEntry():
            names = ["loss"]
        case PartitionEntry() | FlapEntry() | OutageEntry():
            names = ["partitioned"]
        case _:
            names = []
    return ((direction, name) for direction in entry.directions for name in names)
