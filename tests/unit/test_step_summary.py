"""The table for a CI service's page: complete, and nothing in it can leave its cell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import markdown, run, runs, step_summary
from testbed.command import run_command
from testbed.kernel import Clock
from testbed.runs import Wanted
from testbed.verdict import Result, conclude
from tests.unit.test_run import BASE, Recorded

FAILED = Result(
    name="a|b", kind="bound", metric="ttft_s.p90", status="FAIL", measured=3.0, unit="s", bound="at most 2 s",
    margin=-1.0, sentence="ttft_s.p90 was 3 s\n(allowed <2 s)",
)  # fmt: skip


@given(st.text())
def test_a_cell_stays_in_its_row(text: str) -> None:
    """Whatever stands in it: one line, no bar that is not escaped, no tag but a new line's, and a comment."""
    line = markdown.table(("x",), [(text,)]).split("\n")[2]
    inner = line.removeprefix("| ").removesuffix(" |").replace("\\\\", "").replace("\\|", "")
    assert "|" not in inner
    assert "<" not in inner.replace("<br>", "").replace("<!-- -->", "")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("# PASS", "\\#<!-- --> PASS"),
        ("~~not~~ $x$ @user", "\\~\\~not\\~\\~ \\$x\\$ @<!-- -->user"),
        ("see #1", "see \\#<!-- -->1"),
        ("- item", "\\- item"),
        ("===", "\\==="),
        ("---", "\\---"),
        ("12. May", "12\\. May"),
        ("-1.5 s", "-1.5 s"),
        ("1.25 s", "1.25 s"),
        ("\x1b[31mred\x9b\ud800\x07", "?\\[31mred???"),
    ],
)
def test_text_is_no_markup(text: str, written: str) -> None:
    """Neither a heading, a list or a rule, nor a name that is told, nor what a terminal obeys."""
    assert markdown.escaped(text) == written


def test_a_run_has_a_row_for_each_expectation(tmp_path: Path) -> None:
    """And its verdict, its place, and why it cannot be trusted."""
    text = step_summary.of_run("x_1", conclude((FAILED,), ("no *end*",)), tmp_path)
    assert text.startswith("### UNKNOWN: x\\_1, the run cannot be trusted: 1 reason\n")
    assert "| FAIL | a\\|b | ttft\\_s.p90 was 3 s<br>(allowed &lt;2 s) |\n" in text
    assert "\n- not trusted: no \\*end\\*\n" in text
    assert tmp_path.name.replace("_", "\\_") in text


def test_a_run_appends_to_the_file_that_the_service_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside what is there already; where it cannot, that is a warning and the exit code is the same."""
    summary = tmp_path / "summary.md"
    summary.write_text("# Before\n", encoding="utf-8")

    def chosen(_name: str, _clock: Clock) -> Recorded:
        return Recorded()

    monkeypatch.setattr(run, "choose", chosen)
    codes = []
    for place in (summary, tmp_path):
        monkeypatch.setenv(step_summary.VARIABLE, str(place))
        codes.append(run_command(run.app, [BASE, "--quiet", "--no-report", "--out", str(tmp_path / "runs")]))
    assert codes == [2, 2]
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("# Before\n### UNKNOWN: base, ")
    assert "the run left no outcome.json" in text
    assert f"warning: no summary in {tmp_path}" in capsys.readouterr().err


def test_runs_of_a_sweep_leave_the_summary_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred tables would hide what became of them."""
    monkeypatch.setenv(step_summary.VARIABLE, str(tmp_path / "summary.md"))
    monkeypatch.setattr(runs.Wanted, "start_command", lambda *_: ["printenv", step_summary.VARIABLE])
    (ended,) = runs.run_all([Wanted("one", Path("x.yaml"))], tmp_path, 1)
    assert ended.said == ""
    assert step_summary.VARIABLE in os.environ
