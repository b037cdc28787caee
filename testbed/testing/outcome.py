"""What became of a run, in words, for a test that failed. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from testbed.errors import MachineError, ScenarioError
from testbed.readable import quantity
from testbed.rundir import RunDir
from testbed.runs import Ended
from testbed.verdict import Result, Verdict

NOT_TRUSTED: Final = "not trusted"


@dataclass(frozen=True)
class Outcome:
    """How a test ends: passed, failed or skipped, and why."""

    kind: Literal["passed", "failed", "skipped"]
    text: str = ""


def of_scenario(ended: Ended, *, control: bool) -> Outcome:
    """A scenario must PASS, a control must FAIL; UNKNOWN is neither."""
    if ended.verdict is None:
        return without_verdict(ended)
    if control and ended.verdict.status == "PASS":
        head = "PASS, but this is a control, which must FAIL: its expectations are too weak"
        return Outcome("failed", described(ended.verdict, ended.directory, head))
    if ended.verdict.status == ("FAIL" if control else "PASS"):
        return Outcome("passed")
    return Outcome("failed", described(ended.verdict, ended.directory))


def of_trusted(ended: Ended) -> Outcome:
    """A run that is to be looked at must have taken place and be trusted, whether it passed or not."""
    if ended.verdict is None:
        return without_verdict(ended)
    if ended.verdict.status == "UNKNOWN":
        return Outcome("failed", described(ended.verdict, ended.directory))
    return Outcome("passed")


def without_verdict(ended: Ended) -> Outcome:
    """A machine that lacks something skips the test; whatever else kept a run from being judged fails it."""
    if ended.exit_code == MachineError.exit_code:
        return Outcome("skipped", ended.said)
    if ended.exit_code == ScenarioError.exit_code:
        return Outcome("failed", ended.said)
    where = f"\nrun: {ended.directory}" if ended.directory else ""
    return Outcome("failed", f"UNKNOWN  the run {ended.left_nothing}{where}")


def described(verdict: Verdict, directory: Path | None, head: str = "") -> str:
    """The verdict, a line for each expectation, reasons not to trust the run, and where its report lies."""
    lines = [head or f"{verdict.status}  {verdict.note}"]
    lines += [
        f"  {result.status:<7}  {_place(result)}{result.name}: {result.sentence}"
        for result in verdict.results
    ]
    lines += [f"  {NOT_TRUSTED}: {reason}" for reason in verdict.trust]
    if directory is not None:
        report = RunDir(directory).report
        lines.append(f"report: {report}" if report.is_file() else f"run: {directory}")
    return "\n".join(lines)


def properties(ended: Ended) -> list[tuple[str, str]]:
    """What JUnit and the summary say of a run: where it lies, what was measured, what was missed."""
    if ended.directory is None or ended.verdict is None:
        return []
    run = RunDir(ended.directory)
    missed = [
        f"{one.status} {one.name}: {one.sentence}" for one in ended.verdict.results if one.status != "PASS"
    ]
    missed += [f"{NOT_TRUSTED}: {reason}" for reason in ended.verdict.trust]
    found = [
        ("testbed.verdict", ended.verdict.status),
        ("testbed.note", ended.verdict.note),
        ("testbed.run", str(run.path)),
    ]
    found += [("testbed.record", record_digest(run))] if run.manifest.is_file() else []
    found += [("testbed.report", str(run.report))] if run.report.is_file() else []
    found += [
        (f"testbed.measured: {one.name}", quantity(one.measured, one.unit, digits=6))
        for one in ended.verdict.results
        if one.measured is not None
    ]
    return [*found, *(("testbed.missed", one) for one in missed)]


def record_digest(run: RunDir) -> str:
    """Of its tables, as hexadecimal text: equal for equal runs."""
    return str(json.loads(run.manifest.read_bytes())["record_digest"])


def _place(result: Result) -> str:
    return f"line {result.line}: " if result.line else ""
