"""Bytes per wall second from one datacenter to the other, and what a byte more costs at each size."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from benchmarks.figures import Beside, Figure, Target, figure, growth, shares
from benchmarks.machine import ROOT
from benchmarks.measuring import Effort, guest_lines
from benchmarks.scenario_runs import BenchmarkError

GUEST_SCRIPT = Path(__file__).with_name("guest_payload.py")
GIB = 1 << 30
GB = 1e9
TARGETS_GB_PER_S = {"synthetic": 5.0, "verified": 1.5}
SIZES_BYTES = {"synthetic": (32 * GIB, 64 * GIB, 96 * GIB), "verified": (4 * GIB, 8 * GIB, 12 * GIB)}
"""In all, after each transfer. A byte costs a quarter less while windows are wide open than after a loss; in
so many both happen."""
QUICK_BYTES = {"synthetic": (2 * GIB, 4 * GIB, 8 * GIB), "verified": (GIB, 2 * GIB, 4 * GIB)}
VETH_BYTES = 4 * GIB


def payload(effort: Effort) -> list[Figure]:
    """Three transfers, one after the other in one guest, behind boot, set-up and slow start."""
    beside = tuple(_veth(effort, cores) for cores in (1, 2))
    return [one for kind in TARGETS_GB_PER_S for one in _figures(kind, effort, beside)]


def _figures(kind: str, effort: Effort, beside: tuple[Beside, ...]) -> list[Figure]:
    sizes = (QUICK_BYTES if effort.quick else SIZES_BYTES)[kind]
    readings = effort.samples(f"payload {kind}", lambda: _transfers(kind, sizes))
    spent = {
        "the guest's kernel": [one.values["kernel_s"] for one in readings],
        "sender and receiver": [one.values["programs_s"] for one in readings],
    }
    limit = f"processor, in all: {shares(spent)}"
    target = Target("at least", TARGETS_GB_PER_S[kind])
    return [
        figure(f"{kind} payload", "GB/s", readings, "gb_per_s", target=target, beside=beside, made_of=limit),
        growth(
            f"linear in bytes, {kind}",
            "GiB",
            [size / GIB for size in sizes],
            readings,
            [_label(size) for size in sizes],
        ),
    ]


def _label(size_bytes: int) -> str:
    return f"{size_bytes / GIB:g} GiB"


def _transfers(kind: str, sizes: tuple[int, ...]) -> Mapping[str, float]:
    """Processor seconds until so many bytes are there; the rate is in the wall time after the first size."""
    parts = [after - before for before, after in pairwise((0, *sizes))]
    lines = guest_lines(GUEST_SCRIPT, kind, ",".join(map(str, parts)))
    marks = [one for one in lines if one.text.startswith(("@begin", "@sent"))][: len(sizes) + 1]
    if len(marks) <= len(sizes) or any(one.text == "refused" for one in lines):
        raise BenchmarkError(f"the guest sent too little: {[one.text for one in lines]}")
    begun, first, *_, last = marks
    spent = [mark.spent.since(begun.spent) for mark in marks[1:]]
    return {
        "gb_per_s": (sizes[-1] - sizes[0]) / GB / (last.wall_s - first.wall_s),
        "gb_per_processor_s": sizes[-1] / GB / spent[-1].guest_s(),
        "kernel_s": spent[-1].kernel_s,
        "programs_s": spent[-1].programs_s,
        **{_label(size): one.guest_s() for size, one in zip(sizes, spent, strict=True)},
    }


def _veth(effort: Effort, cores: int) -> Beside:
    """A plain TCP connection over a veth pair of this machine's kernel."""
    name = f"raw veth, {cores} core{'s' if cores > 1 else ''}"
    allowed = sorted(os.sched_getaffinity(0))
    if os.geteuid():
        return Beside(name, skipped="needs root")
    if len(allowed) < cores:
        return Beside(name, skipped=f"this machine has {len(allowed)}")
    size = VETH_BYTES >> (2 if effort.quick else 0)
    processors = ",".join(map(str, allowed[:cores]))
    command = ["taskset", "-c", processors, sys.executable, "-m", "benchmarks.raw_veth", str(size)]

    def measure() -> Mapping[str, float]:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise BenchmarkError(f"raw veth: {ended.stderr}")
        return {"gb_per_s": size / GB / float(ended.stdout)}

    return Beside(name, tuple(one.values["gb_per_s"] for one in effort.samples(name, measure)))
