"""`python -m testbed.report RUN_DIR`: record, verdict and report again, from the journal alone.

Works for a run that was killed, too: what was journalled until then is judged, and the verdict says that
the run did not end. Exit code: that of the verdict, or 3 when RUN_DIR holds no run. The report is a page, or
in another format what stands in the page as Markdown or as one picture.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from testbed import regular, verdict
from testbed.command import run_command, terminal
from testbed.errors import Problem, ScenarioError
from testbed.lettering import shown
from testbed.plan import Plan
from testbed.rundir import RunDir

if TYPE_CHECKING:
    import polars as pl

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Rebuilt:
    """A run and what was made of it again."""

    run: RunDir
    plan: Plan
    tables: Mapping[str, pl.DataFrame]
    verdict: verdict.Verdict
    manifest: Mapping[str, object]


def rebuild(run: RunDir) -> Rebuilt:
    """Make record, verdict.json, junit.xml and report.html from the journal; ScenarioError without a plan."""
    from testbed import audit, expect  # noqa: PLC0415 - half a second, which `--help` does not need
    from testbed import tables as record  # noqa: PLC0415 - half a second, which `--help` does not need
    from testbed.report import page  # noqa: PLC0415 - same

    plan = read_plan(run)
    _make_room(run)
    tables = record.build(run, plan)
    findings = audit.judge(plan, tables)
    judged = expect.judge(plan, tables, expect.trust(run, tables, findings))
    judged.write(run.verdict)
    verdict.write_junit(judged, plan.name, run.junit)
    manifest = _manifest(run)
    page.write(run, plan, tables, judged, manifest, findings=findings)
    return Rebuilt(run, plan, tables, judged, manifest)


def _make_room(run: RunDir) -> None:
    """Remove what will be written anew: in a run of somebody else's it may be links to files of ours."""
    if run.record.is_symlink():
        run.record.unlink()
    made = run.record.glob("*.parquet") if run.record.is_dir() else ()
    for path in (run.verdict, run.junit, run.report, *made):
        path.unlink(missing_ok=True)


class Format(StrEnum):
    """What the report can be."""

    HTML = "html"
    MD = "md"
    PNG = "png"


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Such as runs/latest.", show_default=False)],
    *,
    kind: Annotated[
        Format, typer.Option("--format", help="A page, Markdown for a pull request, or one picture.")
    ] = Format.HTML,
    out: Annotated[
        Path | None,
        typer.Option(help="Where it goes; default: RUN_DIR/report.html, .md or .png; -: to standard output."),
    ] = None,
) -> None:
    """Make record, verdict and report again. Exit code: 0 PASS, 1 FAIL, 2 UNKNOWN, 3 not a run directory."""
    run = RunDir(run_dir)
    if out is not None:
        _check(out, run)
    rebuilt = rebuild(run)
    place = out or run.report.with_suffix(f".{kind}")
    if out is None and kind is not Format.HTML:
        place.unlink(missing_ok=True)  # as in `_make_room`
    to_pipe = place == Path("-")
    content = _content(rebuilt, kind, Path() if to_pipe else place.parent)
    if to_pipe:
        sys.stdout.buffer.write(content)
        raise typer.Exit(rebuilt.verdict.exit_code)
    try:
        place.write_bytes(content)
    except OSError as error:
        raise ScenarioError(
            Problem(f"--out {place}", error.strerror or str(error), "a file that can be written")
        ) from None
    console = terminal()
    console.print(verdict.table(rebuilt.verdict))
    console.print(f"report: {shown(str(place))}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(rebuilt.verdict.exit_code)


def _check(out: Path, run: RunDir) -> None:
    """ScenarioError: it is what the run consists of."""
    where = f"--out {out}"
    if out == Path("-"):
        return
    names = [name for name, value in vars(RunDir).items() if isinstance(value, property) and name != "report"]
    if any(out.resolve().is_relative_to(getattr(run, name).resolve()) for name in names):
        raise ScenarioError(Problem(where, "is a part of the run", "another name"))


def _content(rebuilt: Rebuilt, kind: Format, directory: Path) -> bytes:
    """The report in a format, for a place in `directory`."""
    from testbed import tables as record  # noqa: PLC0415 - as in rebuild
    from testbed.report import numbers, picture, summary  # noqa: PLC0415 - same

    if kind is Format.HTML:
        return rebuilt.run.report.read_bytes()
    plan, judged, manifest = rebuilt.plan, rebuilt.verdict, rebuilt.manifest
    digest = record.digest_tables(rebuilt.tables)
    main_numbers = numbers.main_numbers(plan, rebuilt.tables, manifest, digest)
    if kind is Format.PNG:
        return picture.png(picture.draw(plan, rebuilt.tables, judged, main_numbers))
    link = os.path.relpath(rebuilt.run.report, directory)
    return summary.text(plan, judged, main_numbers, manifest, link).encode()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(app, arguments)


def read_plan(run: RunDir) -> Plan:
    """The plan of a run; ScenarioError when there is none of this version."""
    try:
        return Plan.read(run.plan)
    except (OSError, msgspec.DecodeError) as error:
        problem = Problem(str(run.plan), str(error), "a run directory with the plan.json of this version")
        raise ScenarioError(problem) from error


def _manifest(run: RunDir) -> dict[str, object]:
    """A killed run has no manifest, or half of one: the report does without."""
    try:
        manifest = json.loads(regular.read(run.manifest))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
