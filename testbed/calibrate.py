"""Audit the link of a scenario and nothing else: `python -m testbed.calibrate scenarios/congestion.yaml`.

The same path as a run, without agents, workload and anybody else's traffic, for a virtual second. Prints what
was asked, measured and allowed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from testbed.command import run_command
from testbed.plan import Plan
from testbed.resolve import load_and_resolve
from testbed.resolve.lint import lint
from testbed.run import OUT, carry_out, new_run_dir, place

app = typer.Typer(add_completion=False)
DURATION_NS = 1_000_000_000
NOT_AS_ASKED = 2


@app.command()
def calibrate(
    scenario: Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)],
    *,
    kernel: Annotated[str, typer.Option(help="auto, uml, host or vm.")] = "auto",
    clock: Annotated[str | None, typer.Option(help="virtual (default inside uml) or real.")] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces the scenario's seed.")] = None,
    scale: Annotated[float | None, typer.Option(help="Multiplies link rates and sizes alike.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Replaces one value.")
    ] = None,
    traces: Annotated[Path | None, typer.Option(help="Directory of request traces.")] = None,
    out: Annotated[Path, typer.Option(help="Where run directories go.")] = OUT,
) -> None:
    """Measure a scenario's link. Exit code: 0 as asked, 2 not, 3 bad scenario, 4 bad machine."""
    console = Console()
    loaded, whole = load_and_resolve(
        scenario, overrides=overrides or [], seed=seed, scale=scale, traces=traces
    )
    where, time_of = place(kernel, clock)
    for warning in lint(loaded, whole, kernel=where.name, clock=time_of):
        print(f"warning: {warning}", file=sys.stderr)
    plan = link_only(whole)
    directory = new_run_dir(out, plan, latest=False)
    directory.scenario.write_bytes(loaded.source.text)
    plan.write(directory.plan)
    carry_out(directory, plan, where, time_of, console, quiet=True)
    from testbed import audit, expect  # noqa: PLC0415 - loaded while the guest ran
    from testbed import tables as record  # noqa: PLC0415 - loaded while the guest ran

    tables = record.build(directory, plan)
    findings = audit.judge(plan, tables)
    console.print(audit.table(findings))
    missed = {finding.sentence for finding in findings if not finding.ok}
    reasons = expect.trust(directory, tables, findings)
    for reason in reasons:
        if reason not in missed:
            console.print(f"not trusted: {reason}", markup=False, highlight=False, style="yellow")
    # so that nobody takes it for a run that came to no verdict
    note = f"the link alone: {'not to be trusted' if reasons else 'as asked'}"
    judged = expect.judge(plan, tables, reasons)
    msgspec.structs.replace(judged, note=note).write(directory.verdict)
    console.print(str(directory.path), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(NOT_AS_ASKED if reasons else 0)


def link_only(plan: Plan) -> Plan:
    """The plan's link as it begins, and nobody who uses it."""
    return msgspec.structs.replace(
        plan,
        name=f"{plan.name}-link",
        duration_ns=DURATION_NS,
        drain_ns=0,
        changes=tuple(change for change in plan.changes if change.t_ns == 0),
        bursts=(),
        tenants=(),
        microbursts=(),
        captures=(),
        events=(),
        requests=(),
        bulk=(),
        agents=(),
        expectations=(),
    )


if __name__ == "__main__":
    sys.exit(run_command(app))
