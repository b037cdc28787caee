"""The verdict: precedence, exit codes, and what is written."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from testbed import verdict
from testbed.verdict import Result, Status, Verdict, conclude


def result(status: Status, name: str = "x") -> Result:
    return Result(
        name=name, kind="bound", metric="ttft_s.p90", status=status, measured=1.0, unit="s",
        bound="at most 2 s", margin=1.0, sentence="ttft_s.p90 was 1 s", line=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "trust", "status", "code", "note"),
    [
        ((), (), "PASS", 0, "nothing was expected"),
        (("PASS",), (), "PASS", 0, "1 expectation held"),
        (("PASS", "FAIL"), (), "FAIL", 1, "1 of 2 expectations did not hold"),
        (("FAIL", "UNKNOWN"), (), "FAIL", 1, "1 of 2 expectations did not hold"),
        (("PASS", "UNKNOWN"), (), "UNKNOWN", 2, "1 of 2 expectations could not be measured"),
        (("FAIL",), ("died",), "UNKNOWN", 2, "the run cannot be trusted: 1 reason"),
        ((), ("died", "lost"), "UNKNOWN", 2, "the run cannot be trusted: 2 reasons"),
    ],
)
def test_precedence(
    statuses: tuple[Status, ...], trust: tuple[str, ...], status: Status, code: int, note: str
) -> None:
    """Distrust comes before failure, failure before what could not be measured."""
    concluded = conclude(tuple(result(each) for each in statuses), trust)
    assert (concluded.status, concluded.exit_code, concluded.note) == (status, code, note)


def test_the_ledger_is_no_expectation_and_yet_decides() -> None:
    """It is not counted among them; one that does not balance fails a run in which all of them held."""
    for status, note in (("PASS", "1 expectation held"), ("FAIL", "the ledger does not balance")):
        ledger = msgspec.structs.replace(result("PASS", "ledger"), kind="ledger", status=status)
        concluded = conclude((result("PASS"), ledger), ())
        assert (concluded.status, concluded.note) == (status, note)


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    """Reading gives the value that was written."""
    written = conclude((result("PASS"), result("FAIL", 'odd "name" <&>')), ("why",))
    written.write(tmp_path / "verdict.json")
    assert Verdict.read(tmp_path / "verdict.json") == written


def cases(path: Path) -> list[tuple[str, str | None]]:
    """Name and outcome of every test case."""
    return [
        (case.attrib["name"], next((child.tag for child in case if child.tag != "system-out"), None))
        for case in ET.parse(path).getroot().iter("testcase")
    ]


def test_junit_has_one_case_per_expectation(tmp_path: Path) -> None:
    """FAIL is a failure, UNKNOWN an error, and the counts agree."""
    path = tmp_path / "junit.xml"
    results = (result("PASS", "a"), result("FAIL", "b <&>\x01"), result("UNKNOWN", "c"))
    verdict.write_junit(conclude(results, ()), "suite", path)
    assert cases(path) == [("a", None), ("b <&>?", "failure"), ("c", "error")]
    suite = ET.parse(path).getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == ("3", "1", "1")


def test_junit_of_an_untrusted_run_passes_nothing(tmp_path: Path) -> None:
    """Whoever reads only junit.xml sees no pass in a run that cannot be trusted."""
    path = tmp_path / "junit.xml"
    verdict.write_junit(conclude((result("PASS", "a"),), ("died",)), "suite", path)
    assert cases(path) == [("a", "error")]
    verdict.write_junit(conclude((), ("died",)), "suite", path)
    assert cases(path) == [("the run can be trusted", "error")]


def test_the_terminal_shows_status_findings_and_distrust() -> None:
    """Text of the scenario is shown as it is, never taken for markup."""
    out = StringIO()
    Console(file=out, width=100).print(
        verdict.table(conclude((result("FAIL", "[red]a"),), ("the guest [bold]died",)))
    )
    shown = out.getvalue()
    for text in ("UNKNOWN", "[red]a", "ttft_s.p90 was 1 s", "not trusted: the guest [bold]died"):
        assert text in shown
