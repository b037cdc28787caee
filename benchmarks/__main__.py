"""`make bench`, or `python -m benchmarks --only start`: measure, write results.json and RESULTS.md.

Exit code 0 when everything was measured, whatever came out; 1 when a benchmark gave no figure.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import control_plane, machine, payload, reference, replays, start, sweeps, table, whole_runs
from benchmarks.figures import Figure
from benchmarks.measuring import Effort
from benchmarks.scenario_runs import HERE, BenchmarkError
from testbed.command import run_command
from testbed.errors import Problem, ScenarioError

BENCHMARKS: dict[str, Callable[[Effort], list[Figure]]] = {
    "reference": reference.reference,
    "start": start.start,
    "payload": payload.payload,
    "congestion": whole_runs.congestion,
    "congestion_tenth": whole_runs.congestion_tenth,
    "idle_hour": whole_runs.idle_hour,
    "two_at_once": whole_runs.two_at_once,
    "requests": whole_runs.requests,
    "hosts": start.hosts,
    "agents": start.agents,
    "replay": replays.replay,
    "sweep": sweeps.sweep,
    "control_plane": control_plane.control_plane,
}
PARTIAL = Path("runs/benchmarks")

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    *,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help=", ".join(BENCHMARKS))] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Samples of each figure.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One sample of small sizes, no verdicts.")] = False,
    out: Annotated[
        Path | None, typer.Option(help=f"Directory of the results; {PARTIAL} unless everything is measured.")
    ] = None,
) -> None:
    """Measure how fast the testbed is."""
    names = only or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise ScenarioError(
            *(Problem("--only", f"no benchmark {name}", ", ".join(BENCHMARKS)) for name in unknown)
        )
    place = out or (PARTIAL if only or quick else HERE)
    begun_s = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun_s:6.0f} s  {line}", flush=True)

    described = machine.describe()
    figures: list[Figure] = []
    errors: dict[str, str] = {}
    for name in names:
        try:
            measured = BENCHMARKS[name](Effort(1 if quick else repeats, quick, say))
            figures += [replace(one, target=None) if quick else one for one in measured]
        except BenchmarkError as error:
            errors[name] = str(error)
            say(f"{name}: no figure: {error}")
        page = table.markdown(figures, errors, described)
        results = {**described, "figures": [_as_json(one) for one in figures], "errors": errors}
        place.mkdir(parents=True, exist_ok=True)
        (place / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (place / "RESULTS.md").write_text(page, encoding="utf-8")
    print(f"\n{page}\n{place / 'RESULTS.md'} and results.json written")
    raise typer.Exit(1 if errors else 0)


def _as_json(one: Figure) -> dict[str, Any]:
    """All that was measured, and what follows from it."""
    besides = [
        {**asdict(other), "ratio": ratio}
        for other, ratio in ((other, one.ratio(other)) for other in one.beside)
    ]
    return {**asdict(one), "median": one.median, "met": one.met, "quiet": one.quiet, "beside": besides}


if __name__ == "__main__":
    sys.exit(run_command(app))
