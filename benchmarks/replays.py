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
    """Record, run with real kernels, replay; recorded before and after, as machines change their pace."""
    repeats = 1 if effort.quick else 4

    def measure() -> Mapping[str, float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as place:
            before, after = Path(place) / "before.parquet", Path(place) / "after.parquet"
            _python(f"{RECORD} --repeats {repeats} --out {before}")
            real = _ttfts(Path(place) / "real")
            _python(f"{RECORD} --repeats {repeats} --out {after}")
            replays = [_ttfts(Path(place) / one.stem, one) for one in (before, after)]
        off = [100 * (real[one] / (sum(each[one] for each in replays) / 2) - 1) for one in real]
        drift = [100 * (replays[1][one] / replays[0][one] - 1) for one in real]
        return {"off": median(off), "drift": median(drift), "real_s": median(real.values())}

    readings = effort.samples("replay", measure)
    drift = ", ".join(f"{one.values['drift']:+.1f} %" for one in readings)
    return [
        figure(
            "TTFT of real kernels beside its replay, median of 15 requests",
            "% more",
            readings,
            "off",
            target=Target("within", WITHIN_PERCENT),
            made_of=f"recorded before and after it: the machine itself changed its pace by {drift}",
        )
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
