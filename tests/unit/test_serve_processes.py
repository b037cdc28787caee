"""Runs as processes: found by their directories, told to end, never mistaken for others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from testbed import carriers
from testbed.carriers import Carrier
from testbed.errors import ScenarioError
from testbed.serve import processes
from testbed.serve.processes import Processes
from tests.unit.serve_runs import nobody, write_small

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def of(process: subprocess.Popen[bytes]) -> Carrier:
    found = carriers.of_process(process.pid)
    assert found is not None
    return found


def test_a_process_is_known_by_more_than_its_number(sleeper: subprocess.Popen[bytes]) -> None:
    """Another boot or another start is another process: it is not alive, and gets no signal."""
    mine = of(sleeper)
    assert mine.alive
    for other in (
        msgspec.structs.replace(mine, started_ticks=mine.started_ticks - 1),
        msgspec.structs.replace(mine, boot="another"),
        nobody(),
    ):
        assert not other.alive
        assert not other.send(signal.SIGKILL)
    assert sleeper.poll() is None
    assert mine.send(signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_a_zombie_carries_nothing_out() -> None:
    """It has ended, though nobody has asked how."""
    with subprocess.Popen(["true"]) as process:
        mine = carriers.of_process(process.pid)
        deadline = time.monotonic() + 10
        while carriers.of_process(process.pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert mine is None or not mine.alive


def test_the_note_of_a_run_is_of_this_process(tmp_path: Path) -> None:
    """Damaged or missing notes are none."""
    run = write_small(tmp_path)
    assert carriers.of_run(run) is None
    carriers.note(run)
    noted = carriers.of_run(run)
    assert noted is not None
    assert (noted.pid, noted.alive) == (os.getpid(), True)
    run.carrier.write_text("{")
    assert carriers.of_run(run) is None


def test_a_run_is_told_to_end_first_gently(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """SIGINT makes it judge what it has; told again, SIGTERM. Nobody is told for a run that is over."""
    run = write_small(tmp_path, status=None)
    runs = Processes(tmp_path)
    assert not runs.stop(run.path.name)
    run.carrier.write_bytes(msgspec.json.encode(of(sleeper)))
    assert runs.stop(run.path.name)
    assert sleeper.wait(10) not in (0, -signal.SIGTERM)
    assert not runs.stop(run.path.name)
    deaf = "import signal; signal.signal(signal.SIGINT, lambda *_: print('told', flush=True));"
    command = [sys.executable, "-c", f"{deaf} {SLEEPER[-1]}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run.carrier.write_bytes(msgspec.json.encode(of(process)))
        assert runs.stop(run.path.name)
        assert process.stdout.readline() == b"told\n"
        assert runs.stop(run.path.name)
        assert process.wait(10) == -signal.SIGTERM


def test_the_process_of_a_judged_run_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """With --verify-determinism it is at the second run by then."""
    run = write_small(tmp_path)
    run.carrier.write_bytes(msgspec.json.encode(of(sleeper)))
    assert not Processes(tmp_path).stop(run.path.name)
    assert sleeper.poll() is None


def test_who_was_told_is_a_process_and_not_a_name(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """A directory may be removed, and the next run has its name: it is told gently, too."""
    run = write_small(tmp_path, status=None)
    runs = Processes(tmp_path)
    for _ in range(2):
        with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.readline()
            run.carrier.write_bytes(msgspec.json.encode(of(process)))
            assert runs.stop(run.path.name)
            assert process.wait(10) != -signal.SIGTERM
    run.carrier.write_bytes(msgspec.json.encode(of(sleeper)))
    assert runs.stop(run.path.name)
    assert sleeper.wait(10) != -signal.SIGTERM
    assert len(runs._told) == 1


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Processes]:
    """Processes whose starts are over when the test is."""
    runs = Processes(tmp_path / "runs")
    yield runs
    for start in runs._starts.values():
        start.process.kill()
        start.process.wait()


def ended(runs: Processes, number: int) -> processes.Start:
    deadline = time.monotonic() + 60
    while (start := runs.get(number)) is None or start.exit_code is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return start


def test_no_name_of_a_scenario_is_a_command(tmp_path: Path, tried: Processes) -> None:
    """Arguments are a list, and what follows `--` is a file, whatever it is called."""
    pwned = tmp_path / "pwned"
    path = tmp_path / f"--help; touch {pwned.name}; $(touch {pwned.name}) .yaml"
    path.write_text("name: x\n")
    start = ended(tried, tried.start(path, [f"--set=`touch {pwned}`=1"]))
    assert start.exit_code == 3, start.said()
    assert start.run is None
    assert not pwned.exists()
    assert sorted(one.name for one in (tmp_path / "runs").iterdir()) == ["started"]


def test_only_so_many_runs_are_started_at_once(
    tmp_path: Path, tried: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is refused with what to do."""
    monkeypatch.setattr(processes, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(processes.sys, "executable", "sleep")
    monkeypatch.setattr(processes, "_spawn", lambda _command, output: _asleep(output))
    tried.start(tmp_path / "x.yaml", [])
    with pytest.raises(ScenarioError, match="stop one, or wait"):
        tried.start(tmp_path / "x.yaml", [])


def _asleep(output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(SLEEPER, stdout=file)


def test_the_directory_of_a_start_is_that_of_its_own_process(
    tmp_path: Path, tried: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the latest one, which may be anybody's."""
    monkeypatch.setattr(processes, "_spawn", lambda _command, output: _asleep(output))
    number = tried.start(tmp_path / "x.yaml", [])
    start = tried.get(number)
    assert start is not None
    assert start.run is None
    mine = write_small(tmp_path / "runs", seed=1, status=None)
    theirs = write_small(tmp_path / "runs", seed=2, status=None)
    (tmp_path / "runs/latest").symlink_to(theirs.path.name)
    carriers.note(theirs)
    mine.carrier.write_bytes(msgspec.json.encode(of(start.process)))
    found = tried.get(number)
    assert found is not None
    assert found.run == "congestion-1"
    shutil.rmtree(mine.path)
    found = tried.get(number)
    assert found is not None
    assert found.run is None
