"""`python -m testbed.report RUN_DIR`: record, verdict and report again, from the journal alone.

Works for a run that was killed, too: what was journalled until then is judged, and the verdict says that
the run did not end. Exit code: that of the verdict, or 3 when RUN_DIR holds no run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from testbed import verdict
from testbed.command import run_command
from testbed.errors import Problem, ScenarioError
from testbed.plan import Plan
from testbed.rundir import RunDir

app = typer.Typer(add_completion=False)


def rebuild(run: RunDir) -> verdict.Verdict:
    """Make record, verdict.json, junit.xml and report.html from the journal; ScenarioError without a plan."""
    from testbed import audit, expect  # noqa: PLC0415 - half a second, which `--help` does not need
    from testbed import tables as record  # noqa: PLC0415 - half a second, which `--help` does not need
    from testbed.report import page  # noqa: PLC0415 - same

    plan = read_plan(run)
    tables = record.build(run, plan)
    findings = audit.judge(plan, tables)
    judged = expect.judge(plan, tables, expect.trust(run, tables, findings))
    judged.write(run.verdict)
    verdict.write_junit(judged, plan.name, run.junit)
    page.write(run, plan, tables, judged, _manifest(run), findings=findings)
    return judged


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Such as runs/latest.", show_default=False)],
) -> None:
    """Make record, verdict and report again. Exit code: 0 PASS, 1 FAIL, 2 UNKNOWN, 3 not a run directory."""
    run = RunDir(run_dir)
    judged = rebuild(run)
    console = Console()
    console.print(verdict.table(judged))
    console.print(f"report: {run.report}", highlight=False, soft_wrap=True)
    raise typer.Exit(judged.exit_code)


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
        manifest = json.loads(run.manifest.read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
