"""From the command to the first request, and what building a network takes with stock Mininet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from benchmarks.figures import Beside, Figure, Reading, Target, figure, shares, worst_deviation_percent
from benchmarks.machine import ROOT
from benchmarks.measuring import Effort, guest_lines
from benchmarks.scenario_runs import IDLE_HOUR, BenchmarkError, timed

SHORT = ("--set", "duration=2s")
STOCK_MININET = Path(__file__).with_name("stock_mininet.py")
NOT_START = ("running", "stopping, record, verdict, report")
LINEARITY = Target("at most", 20.0)
HOSTS = (24, 50, 100)
INSTANCES = {12: (4, 3, 5), 24: (8, 6, 10), 48: (16, 12, 20)}
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
    """The same scenario in ever larger networks; the additional hosts have nothing to do."""

    def arguments(count: int) -> tuple[str, ...]:
        return (f"topology.prefill_hosts={count // 3}", f"topology.pd_hosts={count - count // 3 - 4}")

    return [_growth(effort, "hosts", effort.sizes(HOSTS), arguments)]


def agents(effort: Effort) -> list[Figure]:
    """Ever more instances, a host each."""

    def arguments(count: int) -> tuple[str, ...]:
        prfaas, prefill, decode = INSTANCES[count]
        return (
            f"topology.prefill_hosts={prfaas}",
            f"topology.pd_hosts={prefill + decode}",
            f"clusters.prfaas.instances={prfaas}",
            f"clusters.pd.prefill={prefill}",
            f"clusters.pd.decode={decode}",
        )

    return [_growth(effort, "agents", effort.sizes(tuple(INSTANCES)), arguments)]


def _growth(
    effort: Effort, what: str, counts: tuple[int, ...], arguments: Callable[[int], tuple[str, ...]]
) -> Figure:
    """How straight the way to the first request is in the number of `what`."""

    def measure() -> Mapping[str, float]:
        options = {n: [word for one in arguments(n) for word in ("--set", one)] for n in counts}
        return {str(n): timed(IDLE_HOUR, *SHORT, *options[n]).first_request_s for n in counts}

    readings = effort.samples(f"start, by {what}", measure)
    costs = [median(one.values[str(n)] for one in readings) for n in counts]
    return Figure(
        f"start linear in {what}",
        "% off at worst",
        (worst_deviation_percent(counts, costs),),
        LINEARITY,
        made_of=", ".join(f"{n} {what} {cost:.3g} s" for n, cost in zip(counts, costs, strict=True)),
        conditions=tuple(one.conditions for one in readings),
    )
