"""How much faster a sweep is on two processors than on one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Target, figure
from benchmarks.machine import ROOT
from benchmarks.measuring import Effort
from benchmarks.scenario_runs import BenchmarkError

SWEEP = ROOT / "scenarios" / "sweeps" / "capacity.sweep.yaml"
POINTS = 24


def sweep(effort: Effort) -> list[Figure]:
    """The whole command, from nothing: resolving every point, 24 runs, results and page."""
    shorter = ("--set", "duration=2s") if effort.quick else ()

    def measure() -> Mapping[str, float]:
        processors = sorted(os.sched_getaffinity(0))
        one_s = _wall_s(1, shorter, processors[:1])
        by_one_s = _wall_s(1, shorter, processors[:2])
        two_s = _wall_s(2, shorter, processors[:2])
        return {"ratio": one_s / two_s, "one_s": one_s, "by_one_s": by_one_s, "two_s": two_s}

    readings = effort.samples("sweep", measure)
    one_s, by_one_s, two_s = (
        median(one.values[key] for one in readings) for key in ("one_s", "by_one_s", "two_s")
    )
    return [
        figure(
            f"a sweep of {POINTS} points on two processors",
            "times one processor",
            readings,
            "ratio",
            target=Target("at least", 1.8),
            made_of=f"on one {one_s:.3g} s, on two {two_s:.3g} s; one run at a time on two {by_one_s:.3g} s",
        )
    ]


def _wall_s(jobs: int, options: tuple[str, ...], processors: Sequence[int]) -> float:
    """Seconds of a sweep that runs so many points at a time on these processors and no others."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        command = [sys.executable, "-m", "testbed.sweep", str(SWEEP), "--jobs", str(jobs), "--out", place]
        pinned = ["taskset", "--cpu-list", ",".join(map(str, processors))]
        began_s = time.monotonic()
        ended = subprocess.run(
            [*pinned, *command, *options],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        wall_s = time.monotonic() - began_s
        kept = len(list(Path(place).glob("points/*/row.json")))
    if ended.returncode or kept != POINTS:
        raise BenchmarkError(f"sweep, {kept} of {POINTS} runs: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    return wall_s
