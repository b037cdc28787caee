"""From the command to the first request, and what building a network takes with stock Mininet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import Beside, Figure, Reading, Target, figure, growth, shares
from benchmarks.machine import ROOT
from benchmarks.measuring import Effort, guest_lines
from benchmarks.scenario_runs import IDLE_HOUR, BenchmarkError, Timed, timed

SHORT = ("--set", "duration=2s")
STOCK_MININET = Path(__file__).with_name("stock_mininet.py")
NOT_START = ("running", "stopping, record, verdict, report")
HOSTS, OTHER_HOSTS = (20, 60, 100), 4
"""All, and of these client, router and a tenant on each side."""
INSTANCES = {12: (4, 3, 5), 30: (10, 8, 12), 48: (16, 12, 20)}
"""By number: prefill in DC A, prefill and decode in DC B."""


def start(effort: Effort) -> list[Figure]:
    """A scenario of 12 instances, router and client; its first request is sent at once."""
    readings = effort.samples("start", lambda: timed(IDLE_HOUR, *SHORT).values())
    return [
        figure(
            "start: command to first request",
            "s",
            readings,
            "first_request_s",
            target=Target("at most", 10.0),
            beside=(_mininet_on_host(effort), _mininet_in_guest(effort)),
            made_of=f"processor, until then: {_stages(readings)}",
        )
    ]


def _stages(readings: list[Reading]) -> str:
    totals = ("wall_s", "processor_s", "first_request_s")
    names = [name for name in readings[0].values if name not in (*totals, *NOT_START)]
    return shares({name: [one.values[name] for one in readings] for name in names})


def _mininet_on_host(effort: Effort) -> Beside:
    name = "stock Mininet, same network, host kernel"
    if os.geteuid():
        return Beside(name, skipped="needs root")
    apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*apart, sys.executable, str(STOCK_MININET)]

    def measure() -> Mapping[str, float]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return {"built_s": _built_s(ended.stdout.splitlines() or [ended.stderr])}

    return Beside(name, tuple(one.values["built_s"] for one in effort.samples(name, measure)))


def _mininet_in_guest(effort: Effort) -> Beside:
    name = "stock Mininet, same network, inside UML"
    if effort.quick:
        return Beside(name, skipped="takes long")

    def measure() -> Mapping[str, float]:
        lines = guest_lines(STOCK_MININET)
        moments = {one.text.split()[0]: one.wall_s for one in lines if one.text.startswith("@")}
        _built_s([one.text for one in lines])
        return {"built_s": moments["@built"] - moments["@begin"]}

    return Beside(name, tuple(one.values["built_s"] for one in effort.samples(name, measure)))


def _built_s(lines: list[str]) -> float:
    """What it says of its own; in a guest that is virtual time."""
    for line in lines:
        if line.startswith("@built "):
            return float(line.split()[1])
    raise BenchmarkError(f"stock Mininet did not get there: {' | '.join(lines[-5:])}")


def hosts(effort: Effort) -> list[Figure]:
    """Ever larger networks; the additional hosts have nothing to do, so only building them takes longer."""

    def measure() -> Mapping[str, float]:
        return {str(n): _with(_hosts(n)).parts["building network"][1] for n in HOSTS}

    readings = effort.samples("network, by hosts", measure)
    return [growth("network linear in hosts", "hosts", HOSTS, readings, [str(n) for n in HOSTS])]


def agents(effort: Effort) -> list[Figure]:
    """Ever more instances, a host each: the way to the first request."""

    def measure() -> Mapping[str, float]:
        return {str(n): _until_first_request_s(_with(_agents(*one))) for n, one in INSTANCES.items()}

    readings = effort.samples("start, by agents", measure)
    counts = tuple(INSTANCES)
    return [growth("start linear in agents", "agents", counts, readings, [str(n) for n in counts])]


def _hosts(count: int) -> tuple[str, ...]:
    return (f"topology.prefill_hosts={count // 3}", f"topology.pd_hosts={count - count // 3 - OTHER_HOSTS}")


def _agents(prfaas: int, prefill: int, decode: int) -> tuple[str, ...]:
    return (
        f"topology.prefill_hosts={prfaas}",
        f"topology.pd_hosts={prefill + decode}",
        f"clusters.prfaas.instances={prfaas}",
        f"clusters.pd.prefill={prefill}",
        f"clusters.pd.decode={decode}",
    )


def _until_first_request_s(run: Timed) -> float:
    """Processor seconds."""
    return sum(processor_s for name, (_, processor_s) in run.parts.items() if name not in NOT_START)


def _with(overrides: tuple[str, ...]) -> Timed:
    return timed(IDLE_HOUR, *SHORT, *(word for one in overrides for word in ("--set", one)))
