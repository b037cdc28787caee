"""How much faster a sweep is with two runs at a time than with one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
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
        one_s, two_s = _wall_s(1, shorter), _wall_s(2, shorter)
        return {"ratio": one_s / two_s, "one_s": one_s, "two_s": two_s}

    readings = effort.samples("sweep", measure)
    one_s, two_s = (median(one.values[key] for one in readings) for key in ("one_s", "two_s"))
    return [
        figure(
            f"a sweep of {POINTS} points, two runs at a time",
            "times one at a time",
            readings,
            "ratio",
            target=Target("at least", 1.8),
            made_of=f"one at a time {one_s:.3g} s, two {two_s:.3g} s",
        )
    ]


def _wall_s(jobs: int, options: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        command = [sys.executable, "-m", "testbed.sweep", str(SWEEP), "--jobs", str(jobs)]
        began_s = time.monotonic()
        ended = subprocess.run(
            [*command, "--out", place, *options], cwd=ROOT, check=False, capture_output=True, text=True
        )
        wall_s = time.monotonic() - began_s
        kept = len(list(Path(place).glob("points/*/row.json")))
    if ended.returncode or kept != POINTS:
        raise BenchmarkError(f"sweep, {kept} of {POINTS} runs: {ended.stdout[-500:]}{ended.stderr[-500:]}")
    return wall_s
