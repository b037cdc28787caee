"""How fast the machine itself is: without that no two results can be compared, not even of one machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import Figure, figure
from benchmarks.machine import copied_gb_per_s, loop_turns_per_s
from benchmarks.measuring import Effort, guest_lines
from benchmarks.scenario_runs import BenchmarkError

GUEST_SCRIPT = Path(__file__).with_name("guest_reference.py")
CALLS, PAGES = 50_000, 20_000
"""So many of each in the guest."""
MARKS = ("@begin", "@called", "@touched")


def reference(effort: Effort) -> list[Figure]:
    """What a loop, a copied byte, a guest's system call and a guest's page cost here."""
    readings = effort.samples("reference", _measure)
    names = {
        "python": ("machine: turns of a Python loop", "million/s"),
        "copy": ("machine: memory copied", "GB/s"),
        "call": ("machine: a guest's system call", "us"),
        "page": ("machine: a guest's new page", "us"),
        "boot": ("machine: a guest's boot", "s"),
    }
    return [figure(name, unit, readings, key) for key, (name, unit) in names.items()]


def _measure() -> Mapping[str, float]:
    lines = guest_lines(GUEST_SCRIPT, str(CALLS), str(PAGES))
    begun, called, touched = ({one.text: one.wall_s for one in lines}.get(mark) for mark in MARKS)
    if begun is None or called is None or touched is None:
        raise BenchmarkError(f"the guest said {[one.text for one in lines]}")
    return {
        "python": loop_turns_per_s() / 1e6,
        "copy": copied_gb_per_s(),
        "call": (called - begun) / CALLS * 1e6,
        "page": (touched - called) / PAGES * 1e6,
        "boot": begun,
    }
