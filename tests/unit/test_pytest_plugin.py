"""pytest with the plugin, as a user starts it, on a machine that can run nothing; and its parts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from testbed import pytest_plugin, runs
from testbed.kernel.choose import KERNELS
from testbed.scenario.load import load
from testbed.testing.items import marks
from testbed.testing.once import Options, Runs, overrides_of
from testbed.testing.tally import row

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "scenarios/full_rate.yaml").read_text(encoding="utf-8")
MINE = """
import pytest

@pytest.fixture(scope="module")
def run(testbed):
    return testbed("scenarios/good.yaml", set={"link.a_to_b.rate": "50gbit"})

def test_needs_a_kernel(run):
    assert run.status == "PASS"

def test_is_no_scenario(testbed):
    testbed("scenarios/good.yaml", seed=-1)
"""
FILES = {
    "scenarios/good.yaml": GOOD,
    "scenarios/broken.yaml": GOOD.replace("a_to_b: {rate: 100gbit", "a_to_b: {rate: -100gbit"),
    "scenarios/sweep.yaml": "sweep: good.yaml\nname: x\nlink: {}\nduration: 1s\n",
    "scenarios/workflow.yaml": "name: ci\non: push\n",
    "notes.yaml": "- buy milk\n",
    "other/workflow.yaml": "name: ci\non: push\n",
    "other/good.yaml": GOOD,
    "test_mine.py": MINE,
}


@dataclass(frozen=True)
class Session:
    """What a session of pytest left."""

    code: int
    output: str
    directory: Path


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Two workers; scenarios/ and a file that is none are asked for, and a machine without a kernel."""
    directory = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "cache").mkdir()
    added = {"TESTBED_CACHE": str(directory / "cache"), "PYTHONPATH": str(ROOT)}
    options = ["-n", "2", "-rs", "--strict-markers", "-p", "testbed.pytest_plugin", "--testbed-kernel", "uml"]
    options += ["--junitxml", "junit.xml", "--testbed-summary", "summary.md"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "scenarios", "notes.yaml", "test_mine.py"],
        check=False,
        cwd=directory,
        env={**os.environ, **added, "GITHUB_STEP_SUMMARY": str(directory / "step.md")},
        capture_output=True,
        text=True,
    )
    return Session(ended.returncode, ended.stdout + ended.stderr, directory)


def test_scenarios_that_were_asked_for_are_tests_and_other_yaml_is_not(session: Session) -> None:
    """One test for each scenario below the directory, and for a file that was named itself."""
    root = ET.parse(session.directory / "junit.xml").getroot()
    ran = {case.attrib["name"] for case in root.iter("testcase")}
    assert ran == {"good", "broken", "notes", "test_needs_a_kernel", "test_is_no_scenario"}
    assert session.code == 1


def test_what_a_machine_lacks_skips_with_the_reason(session: Session) -> None:
    """Scenario and fixture alike; nothing was run."""
    assert "2 skipped" in session.output
    assert "no kernel that this user can run in" in session.output
    assert not list(session.directory.glob("runs/pytest/*/*-1"))


def test_a_broken_scenario_fails_in_its_own_words(session: Session) -> None:
    """File, line, what was found and what is allowed; no traceback of ours."""
    assert "scenarios/broken.yaml:13: link.a_to_b.rate: -100gbit" in session.output
    assert "notes.yaml:1: a list instead of a scenario" in session.output
    assert "--seed -1: is no seed" in session.output
    assert "Traceback" not in session.output
    assert "runtest" not in session.output
    assert "3 failed" in session.output


def test_the_summary_has_a_row_for_each(session: Session) -> None:
    """In the file that was asked for, and in that of the CI service; by the main process alone."""
    text = (session.directory / "summary.md").read_text(encoding="utf-8")
    assert text == (session.directory / "step.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[2:4] == ["| test | result | verdict | finding | report |", "| --- | --- | --- | --- | --- |"]
    rows = [line.replace("\\_", "_").split(" | ") for line in lines[4:] if line]
    assert [(cells[0].removeprefix("| "), cells[1]) for cells in rows] == [
        ("notes.yaml::notes", "failed"),
        ("scenarios/broken.yaml::broken", "failed"),
        ("scenarios/good.yaml::good", "skipped"),
        ("test_mine.py::test_is_no_scenario", "failed"),
        ("test_mine.py::test_needs_a_kernel", "skipped"),
    ]
    assert "-100gbit" in rows[1][3]
    assert rows[2][3].startswith("\\--kernel uml: no kernel")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("full_rate", {"testbed"}),
        ("congestion", {"testbed", "testbed_long"}),
        ("real_kernels", {"testbed", "testbed_real"}),
    ],
)
def test_markers_say_how_long_and_what(
    name: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it would run stands beside them, on a machine that can run it."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path))
    assert set(marks(load(ROOT / f"scenarios/{name}.yaml").scenario, "uml")) == expected
    assert marks(None, "uml") == ["testbed"]


@pytest.mark.parametrize("name", KERNELS)
def test_the_marker_of_every_kernel_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown one is an error under --strict-markers."""
    monkeypatch.setattr(KERNELS[name], "probe", lambda *_: [])
    known = {marker.partition(":")[0] for marker in pytest_plugin.MARKERS}
    found = set(marks(None, name))
    assert found <= known
    assert f"testbed_{name}" in found


def counting(out: Path) -> list[str]:
    """A command that leaves a run directory, and nothing else, in `out`."""
    code = "import pathlib, sys, uuid; pathlib.Path(sys.argv[1], uuid.uuid4().hex).mkdir(parents=True)"
    return [sys.executable, "-c", code, str(out)]


def test_a_run_takes_place_once_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same arguments give the same run, in other processes of the session too; others, another one."""
    monkeypatch.setattr(runs.Wanted, "start_command", lambda _, out: counting(out))
    scenario = tmp_path / "x.yaml"
    scenario.write_text("name: x\n", encoding="utf-8")
    first = Runs(Options(out=tmp_path / "out", session="first"))
    made = first.of(scenario)
    assert first.of(scenario) is made
    assert Runs(Options(out=tmp_path / "out", session="first")).of(scenario) == made
    scaled = Runs(Options(out=tmp_path / "out", session="first", scale=0.1)).of(scenario)
    others = [first.of(scenario, seed=2), first.of(scenario, ("seed=2",)), scaled]
    others.append(Runs(Options(out=tmp_path / "out", session="second")).of(scenario))
    scenario.write_text("name: y\n", encoding="utf-8")
    others.append(first.of(scenario))
    assert len({made.directory, *(other.directory for other in others)}) == 6


def test_values_become_overrides_as_on_the_command_line() -> None:
    """Texts as they are, numbers, lists and truth values in a form that YAML reads."""
    values = {"a.b": "50gbit", "k": 2, "c": True, "d": None, "e": [1.5, "x"], "f": {"p": 0.1}}
    assert overrides_of(values) == ("a.b=50gbit", "k=2", "c=true", "d=null", 'e=[1.5,"x"]', 'f={"p":0.1}')


def test_a_row_says_what_was_missed() -> None:
    """Every expectation that did not hold, and the reports beside it; a pass has the verdict's note."""
    report = pytest.TestReport(
        "scenarios/x.yaml::x", ("x.yaml", 0, "x"), {}, "failed", "FAIL ...", "call",
        user_properties=[
            ("testbed.verdict", "FAIL"),
            ("testbed.note", "2 of 3 expectations did not hold"),
            ("testbed.missed", "FAIL a: too late"),
            ("testbed.missed", "FAIL b: too slow"),
            ("testbed.report", "runs/x/report.html"),
        ],
    )  # fmt: skip
    assert row(report) == (
        "scenarios/x.yaml::x",
        "failed",
        "FAIL",
        "FAIL a: too late\nFAIL b: too slow",
        "runs/x/report.html",
    )
    report.user_properties = report.user_properties[:2]
    assert row(report)[3] == "2 of 3 expectations did not hold"


def test_a_session_without_scenarios_loads_nothing_heavy() -> None:
    """Everybody's pytest loads the plugin; the testbed itself is loaded with the first scenario."""
    code = (
        "import sys, testbed.pytest_plugin; print({'polars', 'pydantic', 'rich', 'typer'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout == "set()\n"
