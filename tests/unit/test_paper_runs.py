"""Runs of the paper's experiments: what they leave, how they are broken off, taking them again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.errors import RunError
from testbed.paper import runs
from testbed.paper.runs import Wanted
from testbed.rundir import RunDir
from testbed.verdict import Result, Status, Verdict
from tests.unit.paper_runs import EMPTY, ROOT


def verdict_of(status: Status, sentence: str = "") -> Verdict:
    """A verdict as told, with a reason where it needs one, and a finding if there is one to be shown."""
    finding = Result(
        name="x", kind="bound", metric="x", status=status, measured=None, unit="s", bound="", margin=None,
        sentence=sentence,
    )  # fmt: skip
    trust = ("as told",) if status == "UNKNOWN" and not sentence else ()
    return Verdict(status=status, results=(finding,) if sentence else (), trust=trust, note="as told")


def test_a_run_that_leaves_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said is passed on, with its exit code."""
    said: list[list[str]] = []

    def ended(_: object, command_line: list[str]) -> subprocess.CompletedProcess[str]:
        said.append(command_line)
        return subprocess.CompletedProcess(command_line, 3, "", "x.yaml:1: is no scenario\n")

    monkeypatch.setattr(runs._Children, "run", ended)
    wanted = Wanted("one", Path("x.yaml"), ("seed=2", "expect=[]"))
    with pytest.raises(
        RunError, match=r"x\.yaml: left no verdict \(exit code 3\): x\.yaml:1: is no scenario"
    ):
        list(runs.run_all([wanted], tmp_path, 1))
    assert said[0][:3] == [sys.executable, "-m", "testbed.run"]
    assert said[0][-4:] == ["--set", "seed=2", "--set", "expect=[]"]


MANY_RUNS = """
import sys
from pathlib import Path

import typer

from testbed.command import run_command
from testbed.paper import runs

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

runs._command = lambda wanted, out: [sys.executable, "-c", CHILD, str(out)]
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


def test_whoever_breaks_off_ends_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that leaves nothing is an error, and does not wait for one that takes long."""
    sleeps = {"one": "0", "two": "30"}
    monkeypatch.setattr(runs, "_command", lambda one, _: ["sleep", sleeps[one.name]])
    began_s = time.monotonic()
    with pytest.raises(RunError, match=r"left no verdict \(exit code 0\)"):
        list(runs.run_all([Wanted(name, Path("x.yaml")) for name in sleeps], tmp_path, 2))
    assert time.monotonic() - began_s < 15


def test_the_newest_runs_are_taken_again(tmp_path: Path) -> None:
    """Without running anything; a run that is not there is named."""
    wanted = [Wanted("one", ROOT / "scenarios/paper/wan.yaml")]
    with pytest.raises(RunError, match="holds no run"):
        list(runs.newest(wanted, tmp_path))
    for name in ("wan-1", "wan-2"):
        run = RunDir(tmp_path / "one" / name)
        run.record.mkdir(parents=True)
        verdict_of("PASS", name).write(run.verdict)
        for table, rows in EMPTY.items():
            rows.write_parquet(run.record / f"{table}.parquet")
    (tmp_path / "one/latest").symlink_to("wan-2")
    (done,) = runs.newest(wanted, tmp_path)
    assert (done.name, done.directory.name) == ("one", "wan-2")
    assert done.verdict.results[0].sentence == "wan-2"
