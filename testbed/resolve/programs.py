"""Programs and scheduler services: hosts, names, and the files that they take along."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from agents import config
from agents.policies.find import HTTP
from testbed.containers import CONTAINER_JOURNAL
from testbed.errors import MachineError, Problem
from testbed.plan import Agent
from testbed.program import PATH, SCHEDULER, Program, obituary
from testbed.resolve.findings import Findings
from testbed.scenario import programs as spec
from testbed.scenario.model import Scenario
from testbed.scenario.quantities import did_you_mean
from testbed.scenario.source import KeyPath
from testbed.units import format_duration_ns, format_size_bytes

MOST_BYTES: Final = 8 << 20
"""Of all files of one program: they stand in the plan."""
MEMORY_BYTES: Final = 512 << 20
"""Of a program without what its sockets hold."""
SOCKETS: Final = 8
"""So many full windows it may hold as well: of four connections, as Linux counts twice what it keeps."""


def require(programs: Sequence[Program]) -> None:
    """MachineError when this machine lacks a program that a plan starts."""
    missing = dict.fromkeys(
        one.command[0]
        for one in programs
        if "/" not in one.command[0] and shutil.which(one.command[0], path=PATH) is None
    )
    if missing:
        raise MachineError(
            *(
                Problem("programs", f"the program {name} is missing", next_step="install it")
                for name in missing
            )
        )


def resolve_programs(
    scenario: Scenario,
    directory: Path,
    hosts: Collection[str],
    agents: Sequence[Agent],
    findings: Findings,
    *,
    window_bytes: int,
) -> tuple[Program, ...]:
    """All programs, the scheduler's service first; their files are those of the scenario's `directory`.

    `window_bytes`: the largest TCP window.
    """
    programs: list[Program] = []
    taken = {SCHEDULER, *(agent.name for agent in agents)}
    service = scenario.policy.service if scenario.policy is not None else None
    if service is not None:
        programs.append(
            Program(
                name=SCHEDULER,
                host="router",
                command=service.command,
                files=_files(service, ("policy", "service"), directory, findings),
                memory_bytes=MEMORY_BYTES,
                listens=service.port,
            )
        )
    for index, one in enumerate(scenario.programs):
        path: KeyPath = ("programs", index)
        if hosts and one.host not in hosts:
            findings.add(
                (*path, "host"), f"unknown host {one.host}", ", ".join(hosts), did_you_mean(one.host, hosts)
            )
        if one.name in taken:
            findings.add((*path, "name"), f"there is a {one.name} already", "a name of its own")
        taken.add(one.name)
        _check_times(scenario, one, path, findings)
        programs.append(
            Program(
                name=one.name,
                host=one.host,
                command=one.command,
                files=_files(one, path, directory, findings),
                memory_bytes=MEMORY_BYTES + SOCKETS * window_bytes,
                at_ns=one.at,
                until_ns=one.until,
                exit_code=one.exit,
                ready=one.ready or "",
                listens=one.listens or 0,
            )
        )
    return tuple(programs)


def resolve_service(scenario: Scenario, findings: Findings) -> config.Service | None:
    """Where the policy `http` asks; a service without that policy, or the other way round, is a problem."""
    policy = scenario.policy
    if policy is None:
        return None
    if policy.service is None:
        if policy.name == HTTP:
            findings.add(("policy", "service"), "is missing", "command and port of the service to ask")
        return None
    if policy.name != HTTP:
        findings.add(("policy", "service"), f"has no effect on the policy {policy.name}", f"name: {HTTP}")
        return None
    ended = str(obituary(Path(CONTAINER_JOURNAL)))
    return config.Service(policy.service.port, policy.service.timeout, ended)


def _check_times(scenario: Scenario, one: spec.Program, path: KeyPath, findings: Findings) -> None:
    if one.at >= scenario.duration:
        found = f"{format_duration_ns(one.at)} is not before the end of the run"
        findings.add((*path, "at"), found, f"before {format_duration_ns(scenario.duration)}")
    last_ns = scenario.duration + scenario.drain
    if one.until is not None and one.until > last_ns:
        found = f"{format_duration_ns(one.until)} is after the run and its drain"
        findings.add((*path, "until"), found, f"up to {format_duration_ns(last_ns)}")


def _files(
    one: spec.Program | spec.Service, path: KeyPath, directory: Path, findings: Findings
) -> dict[str, bytes]:
    """What lies in the program's working directory: the files that it names, and those of its command."""
    base = directory.resolve()
    places: dict[Path, KeyPath] = {}
    for number, word in enumerate(one.command):
        starts_here = number == 0 and "/" in word and not word.startswith("/")
        if starts_here or (number and (base / word).is_file() and not word.startswith("/")):
            places[base / word] = (*path, "command", number)
    places |= {base / name: (*path, "files", number) for number, name in enumerate(one.files)}
    found: list[Path] = []
    for place, where in places.items():
        below = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
        shown = directory / os.path.relpath(place, base)
        if any(not file.resolve().is_relative_to(base) for file in (place, *below)):
            findings.add(where, f"{shown} lies outside the scenario's directory", f"a file below {directory}")
        elif not below:
            findings.add(where, f"there is no file {shown}", "a file or a directory beside the scenario")
        else:
            found += below
    try:
        size_bytes = sum(file.stat().st_size for file in found)
        if size_bytes <= MOST_BYTES:
            return {os.path.relpath(file, base): file.read_bytes() for file in sorted(found)}
    except OSError as error:
        findings.add(path, f"{error.filename} cannot be read: {error.strerror}", "a file that you may read")
        return {}
    too_much = f"its files have {format_size_bytes(size_bytes)}"
    findings.add(path, too_much, f"at most {format_size_bytes(MOST_BYTES)}", "name fewer files")
    return {}
