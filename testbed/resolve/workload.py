"""The workload as requests or transfers, and where its trace lies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from testbed.errors import ScenarioError
from testbed.plan import BulkTransfer
from testbed.resolve.findings import Findings
from testbed.resolve.profiles import Covered
from testbed.resolve.seeds import generator
from testbed.resolve.traffic import check_hosts
from testbed.scenario.faults import IdleEntry
from testbed.scenario.model import Scenario
from testbed.scenario.source import KeyPath
from testbed.scenario.workload import (
    BulkWorkload,
    LengthSpec,
    LognormalWorkload,
    MixWorkload,
    RequestWorkload,
    SessionsWorkload,
    TraceWorkload,
)
from testbed.units import format_duration_ns
from testbed.workload import Load, lognormal, mix, sessions
from testbed.workload.arrivals import expected_arrivals
from testbed.workload.replay import replay
from testbed.workload.trace_file import TraceFile

TRACES_VARIABLE: Final = "TESTBED_TRACES"
MAX_REQUESTS: Final = 200_000


def resolve_load(
    scenario: Scenario, seed: int, directories: Sequence[Path], covered: Covered, findings: Findings
) -> Load | None:
    """The requests; None for a bulk workload, and when there are problems.

    The first of `directories` that has a trace counts; inputs that are not `covered` cannot be computed.
    """
    spec = scenario.workload
    surroundings = _Surroundings(
        duration_ns=scenario.duration,
        seed=seed,
        directories=tuple(directories),
        covered=covered,
        findings=findings,
    )
    if isinstance(spec, BulkWorkload):
        return None
    if isinstance(spec, MixWorkload):
        return _mix(spec, surroundings)
    return _requests(spec, ("workload",), surroundings)


def without_idle(load: Load | None, scenario: Scenario, findings: Findings) -> Load | None:
    """The load without the requests of times in which nobody asks; what is known beforehand stays."""
    idle = [(i, entry) for i, entry in enumerate(scenario.timeline) if isinstance(entry, IdleEntry)]
    if isinstance(scenario.workload, BulkWorkload):
        for index, _ in idle:
            findings.add(("timeline", index), "has no effect on a bulk workload", next_step="remove it")
    if load is None or not idle:
        return load
    spans = [(entry.at, entry.at + entry.idle) for _, entry in idle]
    requests = tuple(
        request
        for request in load.requests
        if not any(begin_ns <= request.t_ns < end_ns for begin_ns, end_ns in spans)
    )
    if not requests:
        findings.add(("timeline", idle[-1][0], "idle"), "no request is left", "a shorter time")
        return None
    return msgspec.structs.replace(load, requests=requests)


def resolve_bulk(
    scenario: Scenario, scale: float, hosts: Collection[str], findings: Findings
) -> tuple[BulkTransfer, ...]:
    """The bulk transfers by time; sizes are multiplied by `scale`."""
    spec = scenario.workload
    if not isinstance(spec, BulkWorkload):
        return ()
    for index, transfer in enumerate(spec.transfers):
        check_hosts(("workload", "transfers", index), transfer.source, transfer.sink, hosts, findings)
    transfers = (
        BulkTransfer(
            t_ns=transfer.at,
            source=transfer.source,
            sink=transfer.sink,
            size_bytes=max(1, round(transfer.size * scale)),
        )
        for transfer in spec.transfers
    )
    return tuple(sorted(transfers, key=lambda transfer: transfer.t_ns))


@dataclass(frozen=True)
class _Surroundings:
    """What requests depend on besides their own section."""

    duration_ns: int
    seed: int
    directories: tuple[Path, ...]
    covered: Covered
    findings: Findings

    def covers(self, spec: LengthSpec, path: KeyPath, shared_tokens: int = 0) -> bool:
        """Whether lengths behind so many shared tokens can be computed, whatever is drawn."""
        least, most, next_step = self.covered
        least, most = max(least - shared_tokens, 1), most - shared_tokens
        with_shared = f" with {shared_tokens} shared ones" if shared_tokens else ""
        if spec.low < least:
            found = f"{spec.low} tokens{with_shared} are fewer than the compute profiles cover"
            self.findings.add((*path, "low"), found, f"at least {least}", next_step)
        if spec.high > most:
            found = f"{spec.high} tokens{with_shared} are more than the compute profiles cover"
            self.findings.add((*path, "high"), found, f"at most {most}", next_step)
        return least <= spec.low <= spec.high <= most

    def draws(self, path: KeyPath, use: str) -> np.random.Generator:
        """A generator for one use in the section at `path`."""
        return generator(self.seed, *path, use)


def _mix(spec: MixWorkload, around: _Surroundings) -> Load | None:
    """All parts, so that all problems come at once; None when one of them has any."""
    path: KeyPath = ("workload", "parts")
    loads = [_requests(part, (*path, index), around) for index, part in enumerate(spec.parts)]
    whole = [load for load in loads if load is not None]
    if len(whole) < len(loads):
        return None
    total = sum(len(load.requests) for load in whole)
    if total > MAX_REQUESTS:
        around.findings.add(path, f"{total} requests within the run", f"at most {MAX_REQUESTS}")
        return None
    phases = [part.phase(around.duration_ns) for part in spec.parts]
    return mix.merge(whole, max(end for _, end in phases) - min(start for start, _ in phases))


def _requests(spec: RequestWorkload, path: KeyPath, around: _Surroundings) -> Load | None:
    if not _within_run(spec, path, around):
        return None
    match spec:
        case LognormalWorkload():
            return _lognormal(spec, path, around)
        case SessionsWorkload():
            return _sessions(spec, path, around)
        case TraceWorkload():
            return _trace(spec, path, around)


def _within_run(spec: RequestWorkload, path: KeyPath, around: _Surroundings) -> bool:
    """Whether the phase begins and ends within the run."""
    start_ns, until_ns = spec.phase(around.duration_ns)
    end, move = format_duration_ns(around.duration_ns), "move it, or make duration longer"
    if start_ns >= around.duration_ns:
        found = f"{format_duration_ns(start_ns)} is not before the end of the run at {end}"
        around.findings.add((*path, "from"), found, f"before {end}", move)
        return False
    if until_ns > around.duration_ns:
        found = f"ends at {format_duration_ns(until_ns)}, after the end of the run at {end}"
        around.findings.add((*path, "until"), found, f"up to {end}", move)
        return False
    return True


def _lognormal(spec: LognormalWorkload, path: KeyPath, around: _Surroundings) -> Load | None:
    if not around.covers(spec, path):
        return None
    if _too_many(spec, 1, path, around):
        return None
    load = lognormal.generate(
        spec,
        around.duration_ns,
        arrivals=around.draws(path, "arrivals"),
        lengths=around.draws(path, "lengths"),
    )
    return _not_empty(load, path, around)


def _sessions(spec: SessionsWorkload, path: KeyPath, around: _Surroundings) -> Load | None:
    shared = spec.shared.tokens if spec.shared else 0
    most_tokens = around.covered.most_tokens
    if shared >= most_tokens:
        found = f"{shared} tokens leave nothing of what the compute profiles cover"
        allowed = f"below {most_tokens}"
        around.findings.add((*path, "shared", "tokens"), found, allowed, around.covered.next_step)
        return None
    if not around.covers(spec.first, (*path, "first"), shared):
        return None
    if _too_many(spec, spec.turns, path, around):
        return None
    load = sessions.generate(
        spec,
        around.duration_ns,
        max_tokens=most_tokens,
        arrivals=around.draws(path, "arrivals"),
        sessions=around.draws(path, "sessions"),
        lengths=around.draws(path, "lengths"),
        pauses=around.draws(path, "pauses"),
    )
    return _not_empty(load, path, around)


def _too_many(
    spec: LognormalWorkload | SessionsWorkload, turns: float, path: KeyPath, around: _Surroundings
) -> bool:
    """Whether arrivals of so many requests each make more in the phase than a run can take."""
    start_ns, end_ns = spec.phase(around.duration_ns)
    expected = turns * expected_arrivals(spec.arrivals, spec.rate, end_ns - start_ns)
    if expected <= MAX_REQUESTS:
        return False
    found = f"about {expected:.3g} requests within the run"
    around.findings.add((*path, "rate"), found, f"at most {MAX_REQUESTS}")
    return True


def _not_empty(load: Load, path: KeyPath, around: _Surroundings) -> Load | None:
    if load.requests:
        return load
    around.findings.add((*path, "rate"), "no request arrives within the run", "a higher rate or a longer run")
    return None


def _trace(spec: TraceWorkload, path: KeyPath, around: _Surroundings) -> Load | None:
    try:
        directory = next((one for one in around.directories if (one / spec.trace).is_file()), None)
    except OSError as error:
        around.findings.add((*path, "trace"), f"cannot be looked for: {error.strerror}", "the path of a file")
        return None
    if directory is None:
        looked_for = " or ".join(str(one / spec.trace) for one in around.directories)
        around.findings.add(
            (*path, "trace"),
            f"there is no trace {looked_for}",
            "the path of a trace, relative to the directory of traces or to the scenario",
            f"name that directory with --traces DIR or {TRACES_VARIABLE}=DIR",
        )
        return None
    file = directory / spec.trace
    try:
        load = replay(
            spec,
            around.duration_ns,
            TraceFile(file, quotes=file.resolve().is_relative_to(directory.resolve())),
            max_tokens=around.covered.most_tokens,
            where=around.findings.source.where((*path, "window")),
            draws=around.draws(path, "sample"),
        )
    except ScenarioError as error:
        around.findings.add_error((*path, "trace"), error)
        return None
    if len(load.requests) > MAX_REQUESTS:
        found = f"{len(load.requests)} requests within the run"
        around.findings.add((*path, "window"), found, f"at most {MAX_REQUESTS}", "a shorter one, or sample")
        return None
    least_tokens = around.covered.least_tokens
    short = [one.input_tokens for one in load.requests if one.input_tokens < least_tokens]
    if short:
        found = f"{len(short)} of the window's inputs are too short, down to {min(short)} tokens"
        allowed = f"at least {least_tokens} tokens, where the compute profiles begin"
        around.findings.add((*path, "trace"), found, allowed, around.covered.next_step)
        return None
    return load
