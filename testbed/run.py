"""Run a scenario: `python -m testbed.run scenarios/congestion.yaml`.

scenario -> plan -> kernel -> inside -> record -> verdict -> report; this file is the arrows.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer
from rich.console import Console

from testbed import carriers, holding, probe_templates, real_rate, step_summary, verdict
from testbed.capture import tcpdump
from testbed.command import run_command, terminal
from testbed.errors import MachineError, Problem, ScenarioError, TestbedError
from testbed.kernel import Clock, Kernel, Needs
from testbed.kernel.choose import STOCK, choose
from testbed.plan import Plan
from testbed.progress import Progress
from testbed.resolve import load_and_resolve
from testbed.resolve.lint import lint
from testbed.resolve.programs import require
from testbed.rundir import RunDir
from testbed.scenario.load import Loaded

app = typer.Typer(add_completion=False)
OUT = Path("runs")
CLOCKS: tuple[Clock, ...] = ("virtual", "real")


@app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)],
    *,
    kernel: Annotated[str, typer.Option(help="auto, uml, host or vm.")] = "auto",
    clock: Annotated[
        str | None, typer.Option(help="virtual, or real (for real kernels, host and vm).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces the scenario's seed.")] = None,
    scale: Annotated[float | None, typer.Option(help="Multiplies link rates and KV sizes alike.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Replaces one value.")
    ] = None,
    traces: Annotated[Path | None, typer.Option(help="Directory of request traces.")] = None,
    out: Annotated[Path, typer.Option(help="Where run directories go.")] = OUT,
    no_report: Annotated[bool, typer.Option("--no-report", help="Leave report.html out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the verdict only.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Keep the network up at the end (host).")] = False,
    cli: Annotated[bool, typer.Option("--cli", help="The same, with Mininet's prompt (host).")] = False,
    verify_determinism: Annotated[
        bool, typer.Option("--verify-determinism", help="Run twice and compare; 2 when the records differ.")
    ] = False,
) -> None:
    """Run a scenario and judge it. Exit code: 0 PASS, 1 FAIL, 2 UNKNOWN, 3 bad scenario, 4 bad machine."""
    console = terminal()
    loaded, plan = load_and_resolve(
        scenario, overrides=overrides or [], seed=seed, scale=scale, traces=traces
    )
    where, time_of = place(kernel, clock or ("real" if plan.compute == "real" else None))
    _check_real_kernels(loaded, plan, time_of, where.name)
    for warning in lint(loaded, plan, kernel=where.name, clock=time_of):
        print(f"warning: {warning}", file=sys.stderr)
    keep: holding.How | None = "cli" if cli else "hold" if hold else None
    holding.require(keep, where.name)
    tcpdump.require(plan.captures)
    require(plan.programs)
    if verify_determinism and time_of == "real":
        raise ScenarioError(
            Problem(
                "--verify-determinism",
                "no two runs in real time are the same",
                "--clock virtual, without real kernels",
            )
        )
    carried_bps = real_rate.require(plan) if where.name == "host" else None
    directories, exit_codes = [], []
    for _ in range(2 if verify_determinism else 1):
        directory = new_run_dir(out, plan)
        directory.scenario.write_bytes(loaded.source.text)
        carriers.note(directory)
        plan.write(directory.plan)
        if carried_bps is not None:
            real_rate.note(directory, carried_bps)
        judged = execute(
            directory, plan, where, time_of, console, quiet=quiet, report=not no_report, keep=keep
        )
        step_summary.append(step_summary.of_run(plan.name, judged, directory.path), step_summary.asked_for())
        directories.append(directory)
        exit_codes.append(judged.exit_code)
        if judged.status == "UNKNOWN":
            raise typer.Exit(judged.exit_code)
    if verify_determinism:
        exit_codes.append(_compare(directories[0], directories[1], console))
    raise typer.Exit(max(exit_codes))


def _check_real_kernels(loaded: Loaded, plan: Plan, clock: Clock, kernel: str) -> None:
    """In virtual time work costs none, so a prefill by real kernels would be over at once; torch does it."""
    if plan.compute == "real" and kernel == "vm":
        raise ScenarioError(
            Problem(
                loaded.source.where(("compute",)),
                "real kernels in a VM, whose image has no torch",
                "--kernel uml or host, or compute: replay",
            )
        )
    if plan.compute == "real" and clock == "virtual":
        raise ScenarioError(
            Problem(
                loaded.source.where(("compute",)),
                "real kernels in virtual time, where computing takes no time at all",
                "--clock real, or compute: replay",
                f"to replay what real kernels take: python -m testbed.record --model {plan.model}",
            )
        )
    if plan.compute == "real" and find_spec("torch") is None:
        raise MachineError(Problem("real kernels", "torch is not installed", next_step="make setup"))


def _compare(first: RunDir, second: RunDir, console: Console) -> int:
    """Say whether two runs are the same, and where they part; 0 or 2."""
    from testbed.judge import differences  # noqa: PLC0415 - loaded while the guest ran

    parted = differences(first, second)
    same = "not the same:" if parted else "the same, byte for byte:"
    console.print(f"{same} {first.path} and {second.path}", markup=False, highlight=False, soft_wrap=True)
    for one in parted:
        console.print(f"  {one}", highlight=False, soft_wrap=True, markup=False)
    return verdict.EXIT_CODES["UNKNOWN" if parted else "PASS"]


def place(kernel: str, clock: str | None) -> tuple[Kernel, Clock]:
    """The kernel to run in and its clock; virtual wherever there is one."""
    if clock is not None and clock not in CLOCKS:
        raise ScenarioError(Problem("--clock", f"no clock {clock!r}", allowed=", ".join(CLOCKS)))
    wanted: Clock = "real" if clock == "real" or (clock is None and kernel in STOCK) else "virtual"
    if clock is None and kernel == "auto":
        try:
            return choose("uml", "virtual"), "virtual"
        except TestbedError as no_uml:
            try:
                return choose("host", "real"), "real"
            except TestbedError as no_host:
                raise type(no_host)(*no_uml.problems, *no_host.problems) from None
    return choose(kernel, wanted), wanted


def new_run_dir(out: Path, plan: Plan, *, latest: bool = True) -> RunDir:
    """Make `<out>/<scenario>-<seed>[-n]`, point `<out>/latest` to it; ScenarioError when that fails."""
    name = re.sub(r"[^\w.-]+", "-", plan.name).strip(".-") or "scenario"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1_000_000):
            path = out / f"{name}-{plan.seed}{f'-{number}' if number > 1 else ''}"
            try:
                path.mkdir()
                break
            except FileExistsError:
                continue
        directory = RunDir(path)
        directory.journal.mkdir()
        if latest:
            link = out / "latest"
            link.unlink(missing_ok=True)
            with suppress(FileExistsError):  # another run that has begun meanwhile is the newest as well
                link.symlink_to(path.name)
    except OSError as error:
        problem = Problem(f"--out {out}", f"cannot make a run directory: {error}", "a writable directory")
        raise ScenarioError(problem) from None
    return directory


def execute(
    directory: RunDir,
    plan: Plan,
    kernel: Kernel,
    clock: Clock,
    console: Console,
    *,
    quiet: bool,
    report: bool,
    keep: holding.How | None = None,
) -> verdict.Verdict:
    """Run the plan in `kernel`, then judge what it left behind; Ctrl-C ends the guest and judges, too."""
    started_s = time.monotonic()
    carry_out(directory, plan, kernel, clock, console, quiet=quiet, keep=keep)
    from testbed.judge import judge  # noqa: PLC0415 - loaded while the guest ran

    judged = judge(directory, plan, kernel=kernel.name, clock=clock, started_s=started_s, report=report)
    if not quiet:
        console.print(judged.link, markup=False, highlight=False)
    console.print(verdict.table(judged.verdict))
    console.print(
        f"{judged.manifest['virtual_s']:.0f} virtual s in {judged.manifest['wall_s']:.1f} s   "
        f"record {judged.manifest['record_digest']:.12}   {directory.report if report else directory.path}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return judged.verdict


def carry_out(
    directory: RunDir,
    plan: Plan,
    kernel: Kernel,
    clock: Clock,
    console: Console,
    *,
    quiet: bool,
    keep: holding.How | None = None,
) -> None:
    """Run the plan in `kernel`, which fills the journal; what goes wrong on the way is in trouble.json.

    This process has nothing to do once the guest speaks, so it loads what judges the run meanwhile.
    Raises MachineError, and leaves nothing behind, when the kernel cannot start.
    """
    needs = Needs(plan.memory_bytes, clock, plan.seed, math.inf if keep else _wall_limit_s(plan, clock))
    trouble: list[str] = []
    probe_templates.write(directory, plan)
    loader = Thread(target=import_module, args=("testbed.judge",))
    with Progress(plan, console, directory.journal, quiet=quiet) as progress:
        held = holding.Holding(keep, directory, plan, progress.end) if keep else None

        def hear(line: str) -> None:
            if loader.ident is None:
                loader.start()
            if held is None or not held.hear(line):
                progress.line(line)

        try:
            kernel.execute(directory.path, needs, hear)
        except MachineError:
            shutil.rmtree(directory.path)
            raise
        except TestbedError as error:
            trouble = [str(problem) for problem in error.problems]
        except KeyboardInterrupt:
            trouble = ["interrupted"]
        finally:
            if held is not None:
                held.close()
    if trouble:
        directory.trouble.write_text(json.dumps(trouble), encoding="utf-8")


def _wall_limit_s(plan: Plan, clock: Clock) -> float:
    """The watchdog's patience: far more than a run takes, far less than a night."""
    virtual_s = (plan.duration_ns + plan.drain_ns) / 1e9
    if plan.compute == "real":  # the reference comes after it, and torch is loaded by each
        return 600 + (2 + len(plan.agents)) * virtual_s
    if clock == "real":
        return 120 + 1.5 * virtual_s
    return 120 + 10 * virtual_s + 0.2 * len(plan.requests)


if __name__ == "__main__":
    sys.exit(run_command(app))
