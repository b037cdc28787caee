"""Killed at random moments, a run leaves nothing but its run directory.

KILLS says how many times each way of running is killed: `make killed` does so 50 times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from testbed import clean, sysctl
from testbed.command import run_command
from testbed.kernel import enclosed, groups, scratch
from testbed.kernel.uml import Uml
from testbed.kernel.vm import Vm
from testbed.rundir import RunDir
from tests.e2e.commands import SCENARIOS, start, survivors, until

PROJECT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("KILLS", "5"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LONGEST_S = 5.0
"""A run of the scenario takes about as long, so that every part of it is met."""
PATIENCE_S = 20.0
HOST = """
import sys
from pathlib import Path
from testbed.kernel import Needs
from testbed.kernel.host import Host
needs = Needs(memory_bytes=1 << 30, clock="real", seed=1, wall_limit_s=100)
Host(payload=(sys.argv[1],)).execute(Path(sys.argv[2]), needs, lambda line: print(line, flush=True))
"""
PAYLOAD = Path(__file__).with_name("host_payload.py")
PERMITTED = groups.missing() == [] and os.geteuid() == 0

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("whole_machine", "own_mounts")]


def moments() -> Iterator[tuple[float, signal.Signals]]:
    """Seconds after the start, drawn anew each time, and signals by turns."""
    for number in range(KILLS):
        yield random.uniform(0, LONGEST_S), SIGNALS[number % len(SIGNALS)]


def namespaces_of(kind: str) -> set[str]:
    """All namespaces of this kind that a process lives in."""
    found = set()
    for process in Path("/proc").glob("[1-9]*/ns"):
        with suppress(OSError):
            found.add(str((process / kind).readlink()))
    return found


def machine() -> dict[str, Any]:
    """What anybody on this machine can see: mounts, named namespaces, interfaces, groups, settings."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    named = Path("/run/netns")
    return {
        "mounts": sorted(line.split(" ", 2)[2] for line in mounts),
        "named": sorted(path.name for path in named.iterdir()) if named.is_dir() else [],
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "groups": groups.labels(),
        "settings": sysctl.of_kernel(),
        "notes": enclosed.notes(),
        "work": enclosed.WORK.exists(),
    }


def until_same(before: dict[str, Any], place: Path) -> None:
    """Wait until nothing is left of what works in `place`, and the machine is as before."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rest = [
            *survivors(place),
            *(path.name for path in place.iterdir() if path.name.startswith("testbed-")),
        ]
        now = machine()
        changed = {what: (before[what], found) for what, found in now.items() if found != before[what]}
        if not rest and not changed:
            return
        assert time.monotonic() < deadline, (rest, changed)
        time.sleep(0.05)


@pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup")
def test_a_guest_leaves_nothing(tmp_path: Path) -> None:
    """No process, mount, namespace, group or temporary file stays of runs in UML, however they are killed."""
    killed(tmp_path, SCENARIOS / "small.yaml", "small-5")


@pytest.mark.skipif("KILLS" not in os.environ, reason="minutes where the processor is emulated: make killed")
@pytest.mark.skipif(bool(Vm().probe("real")), reason="no VM: make vm builds it")
def test_a_vm_leaves_nothing(tmp_path: Path) -> None:
    """The same of runs in the VM, from before QEMU starts until agents do."""
    killed(tmp_path, PROJECT / "scenarios/smoke.yaml", "smoke-3", "--kernel", "vm", stretch=8)


def killed(tmp_path: Path, scenario: Path, name: str, *options: str, stretch: float = 1.0) -> None:
    """Runs killed at random moments; nothing stays but a run directory called `name`."""
    before = machine()
    for number, (after_s, how) in enumerate(moments()):
        place = tmp_path / str(number)
        place.mkdir()
        with start("testbed.run", scenario, *options, "--out", place, temporary=place) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(after_s * stretch)
            process.send_signal(how)
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in output or "testbed/" not in output, (after_s, how, output)
        until_same(before, place)
        left = {path.name for path in place.iterdir()}
        assert left <= {"latest", name}, (after_s, how, left)
    assert [one.what for one in clean.left() if str(tmp_path) in one.what] == []


def start_here(run: RunDir) -> subprocess.Popen[bytes]:
    """A run of the stand-in on the present kernel."""
    run.path.mkdir(parents=True)
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", HOST, PAYLOAD, run.path],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def is_up(run: RunDir) -> bool:
    """Whether its network and its containers are there."""
    return run.console.is_file() and "up\n" in run.console.read_text()


@pytest.mark.skipif(not PERMITTED, reason="needs root and control groups")
def test_when_all_that_could_clean_up_is_killed_clean_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends every process; groups and settings stay, until somebody cleans up."""
    before = machine()
    run = RunDir(tmp_path / "run")
    with start_here(run) as process:
        until(lambda: is_up(run))
        (note,) = set(enclosed.notes()) - set(before["notes"])
        process.kill()
        os.kill(int(note.stem.removeprefix("testbed-")), signal.SIGKILL)
    until(lambda: not survivors(tmp_path))
    assert machine() != before
    assert note in enclosed.left()
    monkeypatch.setattr(groups, "labels", list)  # other tests may be cleaning, too
    monkeypatch.setattr(scratch, "abandoned", list)
    assert run_command(clean.app, []) == 0
    monkeypatch.undo()
    assert machine() == before


@pytest.mark.skipif(not PERMITTED, reason="needs root and control groups")
def test_the_host_s_kernel_is_as_before(tmp_path: Path) -> None:
    """The same on the present kernel, with namespaces, a shaped link and containers."""
    before, inhabited = machine(), namespaces_of("net")
    for number, (after_s, how) in enumerate(moments()):
        place = tmp_path / str(number)
        run = RunDir(place / "run")
        with start_here(run) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(after_s * 0.6)  # it is up after 1 s
            assert process.poll() is None, run.console.read_text()
            process.send_signal(how)
            process.wait(PATIENCE_S)
        until_same(before, place)
    until(lambda: namespaces_of("net") <= inhabited)


@pytest.mark.skipif(not PERMITTED, reason="needs root and control groups")
def test_two_runs_at_a_time_put_back_what_was_before_both(tmp_path: Path) -> None:
    """When one ends the other's settings stay; after the last they are as before the first."""
    before = machine()
    runs = [RunDir(tmp_path / name / "run") for name in ("first", "second")]
    with start_here(runs[0]) as first:
        until(lambda: is_up(runs[0]))
        with start_here(runs[1]) as second:
            until(lambda: is_up(runs[1]))
            during = machine()["settings"]
            first.send_signal(signal.SIGTERM)
            first.wait(PATIENCE_S)
            until(lambda: len(machine()["notes"]) == len(before["notes"]) + 1)
            assert machine()["settings"] == during != before["settings"]
            second.send_signal(signal.SIGINT)
            second.wait(PATIENCE_S)
    until_same(before, tmp_path)
