"""The verdict: what was expected, what was measured, and what follows from it.

    PASS     every expectation held, and the checks of every run             exit code 0
    FAIL     an expectation did not hold, or such a check failed             exit code 1
    UNKNOWN  the run cannot be trusted, or something could not be measured   exit code 2

Distrust comes first: a run that was not what the scenario asked for is UNKNOWN even when an expectation
failed in it, because the failure may be the bench's and not that of the system under test. In a run that
can be trusted, one failed expectation makes it FAIL, whatever else could not be measured.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Literal

import msgspec
from rich.table import Table
from rich.text import Text

from testbed import regular
from testbed.lettering import shown

Status = Literal["PASS", "FAIL", "UNKNOWN"]

CHECKS = {
    "ledger": "the ledger does not balance",
    "answers": "answers are wrong",
    "policy": "the policy failed",
    "programs": "a program failed",
}
"""Kinds of results that no scenario has to ask for, and what it means when they fail."""
EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}
STYLES: dict[Status, str] = {"PASS": "bold green", "FAIL": "bold red", "UNKNOWN": "bold yellow"}


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one expectation, or of a check that every run has to pass."""

    name: str
    kind: str
    metric: str
    status: Status
    measured: float | None
    """The metric (bound), the seconds until it happened (reaction, recovery, settling), the direction changes
    (stability), the amplitude (oscillation), a ratio (overshoot, fairness, oracle); None when it could not be
    measured or never happened."""
    unit: str
    """Unit of `measured` and `margin`."""
    bound: str
    """What was allowed, for people."""
    margin: float | None
    """Distance to the nearest bound; negative when it was missed."""
    sentence: str
    """The finding in one sentence."""
    line: int = 0
    """Line of the scenario file, 0 when unknown."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of a run."""

    status: Status
    results: tuple[Result, ...]
    trust: tuple[str, ...]
    """Reasons not to trust the run."""
    note: str
    """The verdict in one sentence."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Verdict:
        """The verdict in `path`; msgspec.ValidationError when another version wrote it."""
        return msgspec.json.decode(regular.read(path), type=cls)


def conclude(results: tuple[Result, ...], trust: tuple[str, ...]) -> Verdict:
    """The verdict that follows from the results, by the rules above.

    A scenario that expects nothing passes, and the note says that nothing was expected. The checks of every
    run are no expectations of the scenario's, but fail it like those.
    """
    checks = [result for result in results if result.kind in CHECKS]
    wrong = [CHECKS[result.kind] for result in checks if result.status == "FAIL"]
    expected = [result for result in results if result.kind not in CHECKS]
    failed = sum(result.status == "FAIL" for result in expected)
    unknown = sum(result.status == "UNKNOWN" for result in expected)
    unchecked = [result.name for result in checks if result.status == "UNKNOWN"]
    status: Status
    if trust:
        status, note = "UNKNOWN", f"the run cannot be trusted: {_count(len(trust), 'reason')}"
    elif failed or wrong:
        missed = [f"{failed} of {_count(len(expected), 'expectation')} did not hold"] if failed else []
        status, note = "FAIL", "; ".join([*missed, *wrong])
    elif unchecked:
        status, note = "UNKNOWN", f"could not be checked: {', '.join(unchecked)}"
    elif unknown:
        status, note = "UNKNOWN", f"{unknown} of {_count(len(expected), 'expectation')} could not be measured"
    elif expected:
        status, note = "PASS", f"{_count(len(expected), 'expectation')} held"
    else:
        status, note = "PASS", "nothing was expected"
    return Verdict(status=status, results=results, trust=trust, note=note)


def write_junit(verdict: Verdict, suite: str, path: Path) -> None:
    """JUnit XML: one test case per expectation.

    FAIL is a failure and UNKNOWN an error. In a run that cannot be trusted every case is an error, so
    that no reader of the file takes a part of it for a pass.
    """
    root = ET.Element("testsuites")
    cases = ET.SubElement(root, "testsuite", name=shown(suite), tests=str(len(verdict.results)))
    distrust = "; ".join(verdict.trust)
    results = verdict.results
    if distrust and not results:
        _case(cases, suite, "the run can be trusted", "error", distrust)
        cases.set("tests", "1")
    for result in results:
        outcome = "error" if distrust else {"PASS": "", "FAIL": "failure", "UNKNOWN": "error"}[result.status]
        message = f"the run cannot be trusted: {distrust}" if distrust else result.sentence
        _case(cases, suite, result.name, outcome, message).set("line", str(result.line))
    for outcome in ("failure", "error"):
        cases.set(f"{outcome}s", str(len(cases.findall(f"testcase/{outcome}"))))
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def table(verdict: Verdict) -> Table:
    """For the terminal: one row per expectation, the verdict below."""
    view = Table(
        title=Text(shown(f"{verdict.status}  {verdict.note}"), style=STYLES[verdict.status]),
        title_justify="left",
        caption_justify="left",
    )
    view.add_column("expectation", overflow="fold")
    view.add_column("status")
    view.add_column("finding", overflow="fold", ratio=1)
    for result in verdict.results:
        view.add_row(
            Text(shown(result.name)),
            Text(result.status, style=STYLES[result.status]),
            Text(shown(result.sentence)),
        )
    if verdict.trust:
        reasons = "\n".join(f"not trusted: {reason}" for reason in verdict.trust)
        view.caption = Text(shown(reasons), style="yellow")
    return view


def _case(suite: ET.Element, classname: str, name: str, outcome: str, message: str) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=shown(classname), name=shown(name))
    if outcome:
        ET.SubElement(case, outcome, message=shown(message))
    else:
        ET.SubElement(case, "system-out").text = shown(message)
    return case


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
