"""Runs a few at a time: how they are started, what becomes of each, how they are broken off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed import runs
from testbed.runs import Wanted

ROOT = Path(__file__).parents[2]


def test_a_run_that_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said is passed on, with its exit code; it was started as a user would start it."""
    said: list[list[str]] = []

    def ended(_: object, command_line: list[str]) -> subprocess.CompletedProcess[str]:
        said.append(command_line)
        return subprocess.CompletedProcess(command_line, 3, "", "x.yaml:1: is no scenario\n")

    monkeypatch.setattr(runs._Children, "run", ended)
    one = Wanted("one", Path("x.yaml"), ("seed=2", "expect=[]"))
    two = Wanted("two", Path("x.yaml"), seed=17, report=False)
    (first, second) = runs.run_all([one, two], tmp_path, 1)
    assert (first.directory, first.verdict, first.exit_code) == (None, None, 3)
    assert first.left_nothing == "left no verdict (exit code 3): x.yaml:1: is no scenario"
    start = [sys.executable, "-m", "testbed.run", "--quiet", "--out"]
    assert said[0] == [*start, str(tmp_path / "one"), "x.yaml", "--set", "seed=2", "--set", "expect=[]"]
    assert said[1] == [*start, str(tmp_path / "two"), "--no-report", "x.yaml", "--seed", "17"]
    assert second.wanted == two


def test_each_is_told_of_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one that was started first is no reason to wait."""
    sleeps = {"long": "2", "short": "0", "shorter": "0"}
    monkeypatch.setattr(Wanted, "start_command", lambda one, _: ["sleep", sleeps[one.name]])
    ended = runs.run_all([Wanted(name, Path("x.yaml")) for name in sleeps], tmp_path, 2)
    assert [one.wanted.name for one in ended] == ["short", "shorter", "long"]


@pytest.mark.parametrize("text", ["", "{", '{"status": "PASS"}'])
def test_half_a_verdict_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A run that was cut off while it wrote; its directory is told."""
    code = (
        "import sys, pathlib; run = pathlib.Path(sys.argv[1], 'x-1'); run.mkdir(parents=True); "
        "(run / 'verdict.json').write_text(sys.argv[2])"
    )
    monkeypatch.setattr(Wanted, "start_command", lambda _, out: [sys.executable, "-c", code, str(out), text])
    (ended,) = runs.run_all([Wanted("one", Path("x.yaml"))], tmp_path, 1)
    assert (ended.directory, ended.verdict, ended.exit_code) == (tmp_path / "one/x-1", None, 0)


MANY_RUNS = """
import sys
from pathlib import Path

import typer

from testbed import runs
from testbed.command import run_command

CHILD = '''
import signal, sys, time
from pathlib import Path

def end(*_):
    with ended.open("a") as file:
        file.write("told\\\\n")
    time.sleep(1)
    ended.with_suffix(".gone").touch()
    sys.exit(2)

ended = Path(sys.argv[1] + ".ended")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
Path(sys.argv[1] + ".started").touch()
time.sleep(30)
'''

def many():
    for _ in runs.run_all([runs.Wanted(str(number), Path()) for number in range(5)], Path(sys.argv[1]), 2):
        pass

runs.Wanted.start_command = lambda wanted, out: [sys.executable, "-c", CHILD, str(out)]
app = typer.Typer()
app.command()(many)
sys.exit(run_command(app, []))
"""
"""Five runs, two at a time, each of which would take half a minute and takes its time to end when told."""


@pytest.mark.parametrize("whom", ["group", "process"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_an_interrupt_nothing_runs_and_nothing_starts(
    tmp_path: Path, number: signal.Signals, whom: str
) -> None:
    """Ctrl-C, or told to end: the two that run are told once and end, then the command does, with code 2."""
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", MANY_RUNS, str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    ) as process:  # fmt: skip
        deadline_s = time.monotonic() + 20
        while len(list(tmp_path.glob("*.started"))) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        (os.killpg if whom == "group" else os.kill)(process.pid, number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (2, "", "interrupted\n")
    assert sorted(path.name for path in tmp_path.glob("*.started")) == ["0.started", "1.started"]
    assert sorted(path.name for path in tmp_path.glob("*.gone")) == ["0.gone", "1.gone"]
    assert {path.read_text() for path in tmp_path.glob("*.ended")} == {"told\n"}
