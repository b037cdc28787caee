"""How well a recorded profile, replayed in virtual time, tells what real kernels take."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import polars as pl

from benchmarks.figures import Figure, Target, figure
from benchmarks.machine import ROOT
from benchmarks.measuring import Effort
from benchmarks.scenario_runs import BenchmarkError

SCENARIO = ROOT / "scenarios" / "recorded_profile.yaml"
RECORD = (
    "testbed.record --model tiny_hybrid --device cpu --threads 1 --lengths 3072,4096,5632 "
    "--batches 1,2 --contexts 3072,6144 --kernel uml"
)
WITHIN_PERCENT = 5.0


def replay(effort: Effort) -> list[Figure]:
    """Profiles of two runs and of a recording, replayed beside the run that lies between them.

    Runs before and after it, as machines change their pace.
    """
    repeats = 1 if effort.quick else 4

    def measure() -> Mapping[str, float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            place = Path(name)
            before, real, after = (_ttfts(place / one) for one in ("before", "real", "after"))
            _python(f"{RECORD} --repeats {repeats} --out {place / 'alone.parquet'}")
            for one in ("before", "after"):
                _python(f"testbed.record --import {place / one / 'latest'} --out {place / one}.parquet")
            alone, first, second = (
                _ttfts(place / f"replay-{one}", place / f"{one}.parquet")
                for one in ("alone", "before", "after")
            )
        return {
            "of_runs": median(100 * (real[one] * 2 / (first[one] + second[one]) - 1) for one in real),
            "of_recording": median(100 * (real[one] / alone[one] - 1) for one in real),
            "drift": median(100 * (after[one] / before[one] - 1) for one in real),
        }

    readings = effort.samples("replay", measure)
    drift = ", ".join(f"{one.values['drift']:+.1f} %" for one in readings)
    what = "TTFT of real kernels beside its replay, median of 15 requests"
    return [
        figure(
            f"{what}, from profiles of other runs",
            "% more",
            readings,
            "of_runs",
            target=Target("within", WITHIN_PERCENT),
            made_of=f"runs before and after it, between which the machine changed its pace by {drift}",
        ),
        figure(
            f"{what}, from a recording of the kernels alone",
            "% more",
            readings,
            "of_recording",
            made_of="testbed.record --kernel uml: nothing else computes in that guest",
        ),
    ]


def _ttfts(out: Path, profile: Path | None = None) -> Mapping[int, float]:
    """By request: seconds to the first token, with real kernels, or replayed from a profile."""
    options = ""
    if profile is not None:
        clusters = " ".join(f"--set clusters.{name}.profile={profile}" for name in ("prfaas", "pd"))
        options = f"--set compute=replay {clusters}"
    _python(f"testbed.run {SCENARIO} --out {out} --no-report {options}")
    requests = pl.read_parquet(out / "latest" / "record" / "requests.parquet")
    return dict(requests.select("id", "ttft_s").iter_rows())


def _python(command: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if ended.returncode:
        raise BenchmarkError(f"{command}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
