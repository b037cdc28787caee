"""`python -m testbed.conformance`: the same scenarios in every kernel, and whether their figures agree.

Runs all of scenarios/conformance in each kernel that this machine has, one run at a time, prints what each
measured side by side, and ends with 0 if all agree, 1 if not, else 2 if a run cannot be trusted. A kernel
that this machine lacks is left out, with the reason. `--write docs/fidelity.md` puts the table into that
file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed import sections
from testbed.command import run_command
from testbed.conformance import agreement, page
from testbed.conformance.measuring import Case, Measured, cases, made_in, measure
from testbed.conformance.places import PLACES, Place, limits, named
from testbed.errors import MachineError, Problem, ScenarioError
from testbed.readable import quantity

app = typer.Typer(add_completion=False, help=__doc__)
SCENARIOS: Final = Path("scenarios/conformance")
OUT: Final = Path("runs/conformance")


@app.command()
def conformance(
    scenarios: Annotated[
        list[Path] | None, typer.Argument(help=f"Scenario files; by default all of {SCENARIOS}.")
    ] = None,
    *,
    kernels: Annotated[str, typer.Option(help="Which, with commas between.")] = ",".join(PLACES),
    most: Annotated[
        list[str] | None,
        typer.Option(metavar="KERNEL=RATE", help="Leave faster links out there: vm=200mbit."),
    ] = None,
    tries: Annotated[
        int, typer.Option(min=1, max=10, help="How often a run that cannot be trusted is made, in all.")
    ] = 3,
    out: Annotated[Path, typer.Option(help="Where run directories go.")] = OUT,
    again: Annotated[
        bool, typer.Option("--again", help="Take what trusted runs of --out there are, run the rest.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Put the table into this Markdown file.", show_default=False)
    ] = None,
) -> None:
    """Run the same scenarios in every kernel and compare. Exit code: 0 agree, 1 differ, 2 UNKNOWN."""
    wanted, fastest = named(kernels), limits(most or [])
    suite = cases(_files(scenarios))
    if write is not None:
        sections.require(write, page.SECTION, page.PAGE)
    console = Console()
    places, notes = _present(wanted, console)
    measured: list[Measured] = []
    for place in places:
        for one in measure(place, suite, out, most_bps=fastest.get(place.name), tries=tries, again=again):
            measured.append(one)
            console.print(_line(one), markup=False, highlight=False, soft_wrap=True)
    order = {case.name: number for number, case in enumerate(suite)}
    measured.sort(key=lambda one: order[one.ran.scenario])
    rows = agreement.rows([one.ran for one in measured], [place.name for place in places])
    _finish(rows, suite, measured, [*notes, *_notes(measured)], console, write)
    raise typer.Exit(agreement.exit_code(rows))


def _files(scenarios: Sequence[Path] | None) -> list[Path]:
    """Those that were asked for, or all; each by a name of its own."""
    found = list(scenarios or sorted(SCENARIOS.glob("*.yaml")))
    if not found:
        raise ScenarioError(Problem(str(SCENARIOS), "is not there", next_step="run this where scenarios/ is"))
    names = [path.stem for path in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ScenarioError(Problem("arguments", f"{', '.join(twice)} more than once", "each scenario once"))
    return found


def _present(wanted: Sequence[Place], console: Console) -> tuple[list[Place], list[str]]:
    """The places that this machine has, and a note for each of the others; MachineError when it has none."""
    lacks = {place.name: place.lacks() for place in wanted}
    if all(lacks.values()):
        raise MachineError(*(problem for problems in lacks.values() for problem in problems))
    notes = [
        f"`{name}` was left out: {'; '.join(problem.found for problem in problems)}"
        for name, problems in lacks.items()
        if problems
    ]
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    return [place for place in wanted if not lacks[place.name]], notes


def _line(one: Measured) -> str:
    """Progress: one scenario in one place is through."""
    ran = one.ran
    verdict = next((figure.shown for figure in ran.figures if figure.kind == "verdict"), "UNKNOWN")
    said = f"left out: {ran.left_out}" if ran.left_out else verdict
    where = f"   {one.directory}" if one.directory else ""
    return f"{ran.place:10}{ran.scenario}: {said}{where}"


def _notes(measured: Sequence[Measured]) -> list[str]:
    """What a cell has no room for."""
    notes = []
    for one in measured:
        where = f"{one.ran.scenario} in `{one.ran.place}`"
        if one.ran.left_out:
            notes.append(f"{where} was left out: {' '.join(one.ran.left_out.split())}")
        if one.ran.unknown:
            notes.append(f"{where} cannot be trusted: {'; '.join(one.ran.unknown)}")
        elif one.distrusted:
            notes.append(f"{where}: so many runs before this one could not be trusted: {one.distrusted}")
    return notes


def _finish(  # noqa: PLR0917 - what there is to show, and where
    rows: Sequence[agreement.Row],
    suite: Sequence[Case],
    measured: Sequence[Measured],
    notes: Sequence[str],
    console: Console,
    write: Path | None,
) -> None:
    """Print and write."""
    directories: dict[str, list[Path]] = {}
    for one in measured:
        if not one.ran.left_out:
            directories.setdefault(one.ran.place, []).extend(filter(None, [one.directory]))
    made = {name: made_in(directories[name]) for name in PLACES if name in directories}
    labels = {case.name: f"{case.name}, {quantity(case.rate_bps, 'bps')}" for case in suite}
    table = Table(*page.header(list(made)))
    for cells in page.cells(rows, list(made), labels):
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if write is not None:
        sections.write(write, page.SECTION, page.text(rows, made, labels, notes), page.PAGE)


if __name__ == "__main__":
    sys.exit(run_command(app))
