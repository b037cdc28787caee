"""The table of a whole session in Markdown, made where reports of all its processes come together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from testbed import markdown, step_summary

HEAD: Final = ("test", "result", "verdict", "finding", "report")


class Tally:
    """Collects a row for each test that ran a scenario, and writes them when the session ends."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._rows: dict[str, tuple[str, str, str, str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a scenario, or of a test that looked at runs, even if only its set-up came so far."""
        if report.when == "teardown" or (report.when == "setup" and report.passed):
            return
        if any(name.startswith("testbed.") for name, _ in report.user_properties):
            self._rows[report.nodeid] = row(report)

    def pytest_sessionfinish(self) -> None:
        """Append the table to the files that were asked for."""
        if self._rows:
            text = markdown.table(HEAD, sorted(self._rows.values()))
            step_summary.append(f"### Scenarios\n\n{text}\n", self._places)


def row(report: pytest.TestReport) -> tuple[str, str, str, str, str]:
    """Test, how it ended, verdicts of its runs, what was missed or why there is none, reports."""
    said: dict[str, list[str]] = {}
    for name, value in report.user_properties:
        said.setdefault(name, []).append(str(value))
    crash = getattr(report.longrepr, "reprcrash", None)  # a test in Python that failed, whatever its runs did
    finding = (
        crash.message.splitlines()[:1] if crash else said.get("testbed.missed") or said.get("testbed.note")
    )
    return (
        report.nodeid,
        report.outcome,
        ", ".join(said.get("testbed.verdict", [])),
        "\n".join(finding or _reason(report).splitlines()),
        "\n".join(os.path.relpath(path) for path in said.get("testbed.report", [])),
    )


def _reason(report: pytest.TestReport) -> str:
    """Why a test without a run ended as it did."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr or "")
