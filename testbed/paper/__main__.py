"""`python -m testbed.paper table6`, `wan`, `scenarios`, `models`: the paper's experiments and figures.

Each runs the scenarios in scenarios/paper, prints what the paper says, what its model gives and what was
measured, and ends with 0 if everything holds, 1 if not, 2 if a run cannot be trusted. `--write docs/paper.md`
puts the table into that file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed import sections
from testbed.command import run_command
from testbed.errors import Problem, RunError, ScenarioError
from testbed.paper import models, scenarios, table6, wan
from testbed.paper.printed import LINKS_GBPS, TABLE_6, THRESHOLD_TOKENS
from testbed.paper.runs import Done, newest, run_all
from testbed.runs import Wanted

app = typer.Typer(add_completion=False, help=__doc__)
SCENARIOS: Final = Path("scenarios/paper")
OUT: Final = Path("runs/paper")
PAGE: Final = "docs/paper.md"
MANY: Final = 1000
"""Shown without decimals from here."""
LEAST_GBPS, MOST_GBPS = 0.6, 400.0
"""Below, the 10 ms of buffer of wan.yaml are too few bytes for a queue; above is nothing to be learnt."""

OutOption = Annotated[Path, typer.Option(help="Where run directories go.")]
JobsOption = Annotated[int, typer.Option(min=1, max=64, help="Runs at a time; each needs 4 GiB and a core.")]
AgainOption = Annotated[bool, typer.Option("--again", help="Take the newest runs of --out, run nothing.")]
WriteOption = Annotated[
    Path | None, typer.Option(help="Put the table into this Markdown file.", show_default=False)
]


@app.command(name="table6")
def table6_command(
    out: OutOption = OUT, jobs: JobsOption = 2, write: WriteOption = None, *, again: AgainOption = False
) -> None:
    """Table 6: the three deployments, over-loaded; three runs, about two minutes."""
    _look(write, "table6")
    wanted = [Wanted(Path(one.scenario).stem, SCENARIOS / one.scenario) for one in TABLE_6]
    done = _run(wanted, out, jobs, again=again)
    tables = {f"{name}.yaml": one.tables for name, one in done.items()}
    header = ["deployment", "", "printed", "model, T(E[L])", "model, E[T(L)]", "emulated"]
    rows = [
        [
            row.deployment,
            row.quantity,
            *map(_number, (row.printed, row.time_of_mean, row.mean_of_times, row.emulated)),
        ]
        for row in table6.rows(tables)
    ]
    checks = table6.checks(tables)
    notes = [
        f"{one.what}: {one.measured:.3f} times, at least {one.least:g}: {'holds' if one.holds else 'FAILS'}"
        for one in checks
    ]
    found = _Found(header, rows, notes, all(one.holds for one in checks))
    _finish("table6", found, done, write)


@app.command(name="wan")
def wan_command(
    out: OutOption = OUT,
    jobs: JobsOption = 2,
    write: WriteOption = None,
    link: Annotated[
        list[float] | None,
        typer.Option(help=f"Gbps, {LEAST_GBPS:g} to {MOST_GBPS:g}; by default all.", show_default=False),
    ] = None,
    *,
    again: AgainOption = False,
) -> None:
    """The best threshold and roles behind 100 to 1 Gbps, found by the scheduler; 14 runs, 15 minutes."""
    _look(write, "wan")
    links = tuple(dict.fromkeys(link)) if link else LINKS_GBPS
    for gbps in links:
        if not LEAST_GBPS <= gbps <= MOST_GBPS:
            found, allowed = "is no link of this experiment", f"{LEAST_GBPS:g} to {MOST_GBPS:g} (Gbps)"
            raise ScenarioError(Problem(f"--link {gbps:g}", found, allowed))
    done = _run(wan.wanted(SCENARIOS, links), out, jobs, again=again)
    rows = [
        wan.Row(
            gbps,
            loop,
            wan.oracle(gbps, loop),
            wan.found(done[wan.name(gbps, loop)].tables, wan.duration_s(gbps)),
        )
        for gbps in links
        for loop in wan.POLICY
    ]
    header = ["Gbps, loops", "oracle: t, N_p", "lambda", "reached: t, N_p", "per s", "settled, near", "holds"]
    cells = [
        [
            f"{row.gbps:g}, {row.loop}",
            f"{_tokens(row.oracle)}, {row.oracle.n_p}",
            f"{row.oracle.lambda_max:.2f} / {row.oracle.true_lambda_max:.2f}",
            f"{row.found.threshold_tokens:,.0f}, {row.found.n_p:g}",
            f"{row.found.throughput_per_s:.2f}",
            f"{row.found.settled_s:.0f} s, {row.found.steady_share:.0%}",
            _holds(row),
        ]
        for row in rows
    ]
    notes = [
        "lambda: requests/s of the oracle's choice by the model, with T(E[L]) / E[T(L)].",
        f"A fixed threshold of {THRESHOLD_TOKENS:,} sustains "
        + ", ".join(f"{wan.fixed_lambda(gbps):.2f} at {gbps:g} Gbps" for gbps in links)
        + ".",
    ]
    holds = all(row.threshold_holds and row.throughput_holds for row in rows)
    _finish("wan", _Found(header, cells, notes, holds), done, write)


@app.command(name="models")
def models_command(write: WriteOption = None) -> None:
    """What each model sends over the link at 32K tokens, by its layers and the paper's profiles; no runs."""
    _look(write, "models")
    header = ["model", "KV, MiB", "prefill, s", "Gbps of 8 GPUs", "of 512 GPUs", "printed"]
    rows = [
        [
            row.model,
            *map(_number, (row.kv_mib, row.prefill_s, row.instance_gbps, row.cluster_gbps, row.printed_gbps)),
        ]
        for row in models.rows()
    ]
    _print(_Found(header, rows, [], holds=True), "models", write)


@app.command(name="scenarios")
def scenarios_command(
    out: OutOption = OUT, jobs: JobsOption = 2, write: WriteOption = None, *, again: AgainOption = False
) -> None:
    """Every scenario about a reaction, and all controls, which must fail; 26 runs, about 15 minutes."""
    _look(write, "scenarios")
    done = _run(scenarios.wanted(SCENARIOS), out, jobs, again=again)
    rows = [
        [name, scenarios.expected()[name], one.verdict.status, _findings(one)] for name, one in done.items()
    ]
    held = all(scenarios.holds(one) for one in done.values())
    found = _Found(["scenario", "must", "verdict", "measured"], rows, [], held)
    _print(found, "scenarios", write)
    raise typer.Exit(0 if held else 1)


def _findings(done: Done) -> str:
    return "; ".join(result.sentence for result in done.verdict.results)


def _tokens(oracle: wan.Oracle) -> str:
    """The threshold, and the range in which it does not matter where that is wider than the tolerance."""
    wide = oracle.most_tokens - oracle.least_tokens > 2 * wan.THRESHOLD_TOLERANCE * oracle.threshold_tokens
    between = f" ({oracle.least_tokens:,} to {oracle.most_tokens:,} as good)" if wide else ""
    return f"{oracle.threshold_tokens:,}{between}"


def _holds(row: wan.Row) -> str:
    missed = [
        what
        for what, holds in (("threshold", row.threshold_holds), ("throughput", row.throughput_holds))
        if not holds
    ]
    return f"not the {' and the '.join(missed)}" if missed else "yes"


def _run(wanted: Sequence[Wanted], out: Path, jobs: int, *, again: bool) -> dict[str, Done]:
    """Run them all, or take what they left the last time; in the order of `wanted`.

    One that cannot be trusted has no numbers, and ends the command.

    Raises:
        RunError: verdicts are UNKNOWN; the message has each one's reasons.
    """
    if missing := [str(one.scenario) for one in wanted if not one.scenario.is_file()]:
        raise ScenarioError(Problem(missing[0], "is not there", next_step="run this where scenarios/ is"))
    done: dict[str, Done] = {}
    console = Console()
    with closing(newest(wanted, out) if again else run_all(wanted, out, jobs)) as runs:
        for one in runs:
            done[one.name] = one
            console.print(
                f"{one.verdict.status:8}{one.name}: {one.verdict.note}   {one.directory}",
                markup=False,
                highlight=False,
            )
    if problems := [_distrust(one) for one in done.values() if one.verdict.status == "UNKNOWN"]:
        raise RunError(*problems)
    return {one.name: done[one.name] for one in wanted}


def _distrust(done: Done) -> Problem:
    verdict = done.verdict
    reasons = verdict.trust or [result.sentence for result in verdict.results if result.status == "UNKNOWN"]
    return Problem(f"{done.name} ({done.directory})", "\n    ".join([verdict.note, *reasons]))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= MANY else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _look(write: Path | None, section: str) -> None:
    """Before minutes of runs: whether there is a place for the table."""
    if write is not None:
        sections.require(write, section, PAGE)


class _Found(msgspec.Struct, frozen=True):
    """A table for people, with remarks below it, and whether everything that was asked holds."""

    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    holds: bool


def _finish(section: str, found: _Found, done: dict[str, Done], write: Path | None) -> None:
    """Print, write, and end with the exit code."""
    _print(found, section, write)
    passed = all(one.verdict.status == "PASS" for one in done.values())
    raise typer.Exit(0 if passed and found.holds else 1)


def _print(found: _Found, section: str, write: Path | None) -> None:
    console = Console()
    table = Table(*found.header)
    for row in found.rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for note in found.notes:
        console.print(note, markup=False, highlight=False)
    if write is not None:
        lines = sections.table(found.header, found.rows)
        text = "\n".join([*lines, *([""] if found.notes else []), *(f"- {note}" for note in found.notes)])
        sections.write(write, section, text, PAGE)


if __name__ == "__main__":
    sys.exit(run_command(app))
