"""Programs from their start to their end, without containers: a stand-in for crun starts them as they are."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import programs as module
from testbed.journal import Journal
from testbed.program import SCHEDULER, Program, obituary
from testbed.programs import Programs
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan

MS = 1_000_000
STAND_IN = f"""#!{sys.executable}
import json, os, sys
given = dict(word.split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
process = json.load(open(given["--bundle"] + "/config.json"))["process"]
os.chdir(given["--bundle"] + "/files")
if process["args"] == ["nothing"]:
    sys.exit("no such thing")
with open(given["--pid-file"], "w") as file:
    file.write(str(os.getpid()))
os.execvp(process["args"][0], process["args"])
"""
Started = Callable[..., tuple[list[tuple[str, str]], Path]]


def program(name: str, script: str, **fields: object) -> Program:
    """A shell script as a program."""
    given = {"host": "a1", "files": {}, "memory_bytes": 1, "command": ("sh", "-c", script), **fields}
    return Program(name=name, **given)  # type: ignore[arg-type]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Run programs in a run of 0.6 s with a drain of as much; what became of the first one, and where."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "crun").write_text(STAND_IN)
    (binaries / "crun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setattr("testbed.programs.subprocess.run", lambda *_, **__: None)
    monkeypatch.setattr(module, "READY_S", 1)
    monkeypatch.setattr(module, "GRACE_S", 0.5)
    run = RunDir(tmp_path)
    run.journal.mkdir()

    async def play(programs: Programs) -> None:
        await programs.come_up()
        await asyncio.gather(*programs.jobs(time.monotonic_ns()))
        await programs.close()

    def go(*given: Program, short_ns: int = 600 * MS) -> tuple[list[tuple[str, str]], Path]:
        plan = make_plan(requests=1)
        plan = type(plan)(
            **{name: getattr(plan, name) for name in plan.__struct_fields__}
            | {"programs": given, "duration_ns": short_ns, "drain_ns": short_ns}
        )
        journal = Journal(run.journal / "bench.jsonl")
        asyncio.run(play(Programs(plan, tmp_path / "work", run, journal, {})))
        journal.close()
        lines = [json.loads(line) for line in (run.journal / "bench.jsonl").read_text().splitlines()]
        told = [
            (line.get("state", "trust"), line.get("detail") or line.get("what", ""))
            for line in lines
            if line.get("name", given[0].name) == given[0].name
        ]
        return told[1:] if told[0] == ("started", "") else told, run.programs

    return go


def test_one_that_ends_as_expected(started: Started) -> None:
    """Its words are kept apart, and its files lie where it works."""
    told, place = started(program("one", "cat lib/a; echo b >&2; exit 3", files={"lib/a": b"a"}, exit_code=3))
    assert told == [("ended", "with status 3")]
    assert ((place / "one.out").read_text(), (place / "one.err").read_text()) == ("a", "b\n")


def test_one_that_ends_otherwise(started: Started) -> None:
    """The cause has its last words."""
    told, _ = started(program("one", "echo not this; echo out of luck >&2; exit 7"))
    assert told == [("failed", "ended with status 7, not 0; last words: out of luck")]


def test_one_that_is_stopped_is_not_judged(started: Started) -> None:
    """It is asked at first; one that does not listen is killed."""
    told, place = started(
        program("deaf", "trap '' TERM; exec sleep 60", until_ns=200 * MS),
        program("polite", "trap 'echo bye; exit 5' TERM; while :; do sleep 0.05; done", until_ns=400 * MS),
    )
    assert told == [("stopped", "with status -9")]
    assert (place / "polite.out").read_text() == "bye\n"


def test_one_that_never_ends(started: Started) -> None:
    """Without `until` it should have ended with the drain."""
    told, _ = started(program("one", "exec sleep 60"))
    assert [state for state, _ in told] == ["failed", "stopped"]
    assert told[0][1] == "was still running at the end of the run, without `until`"


def test_one_that_never_becomes_ready(started: Started) -> None:
    """Late, or never: it failed, and those after it start all the same."""
    told, place = started(
        program("one", "echo hello; exec sleep 60", ready="at your service", until_ns=1100 * MS),
        program("two", "echo here", at_ns=MS),
        short_ns=1200 * MS,
    )
    words = "was not ready within 1 s: it never said 'at your service'; last words: hello"
    assert told[0] == ("failed", words)
    assert (place / "two.out").read_text() == "here\n"


def test_one_that_ends_before_it_is_ready(started: Started) -> None:
    """The expected status does not help it."""
    told, _ = started(program("one", "exit 0", listens=9))
    assert ("failed", "ended before it was ready: it never listened on port 9; last words: nothing") in told


def test_later_ones_wait_until_the_one_before_is_ready(started: Started) -> None:
    """A word that comes in pieces is heard."""
    told, place = started(
        program("one", "printf up; sleep 0.3; echo ' now'; touch \"$0\"", ready="up now", at_ns=MS),
        program("two", "date +%s%N", at_ns=2 * MS),
        program("three", "date +%s%N"),
    )
    assert [state for state, _ in told] == ["ready", "ended"]
    waited_ns = int((place / "two.out").read_text()) - int((place / "three.out").read_text())
    assert waited_ns > 250 * MS


def test_only_so_much_is_kept(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is read, so that the program goes on."""
    monkeypatch.setattr(module, "OUTPUT_BYTES", 100_000)
    told, place = started(program("one", "head -c 1000000 /dev/zero; echo done >&2"))
    assert told == [("ended", "with status 0")]
    kept = (place / "one.out").read_bytes()
    assert kept == bytes(100_000) + module.CUT
    assert (place / "one.err").read_text() == "done\n"


def test_the_schedulers_death_is_told_to_the_router(started: Started, tmp_path: Path) -> None:
    """Whatever its status: it should have stayed."""
    told, _ = started(program(SCHEDULER, "echo out of luck >&2; exit 0", host="router", ready="x"))
    cause = "ended with status 0; last words: out of luck"
    assert told[0] == ("failed", cause)
    assert obituary(tmp_path / "journal").read_text() == f"the scheduler {cause}"


def test_one_that_cannot_be_started(started: Started) -> None:
    """No program of its own failed: the run is not to be trusted."""
    told, _ = started(program("one", "", command=("nothing",)))
    assert told == [("trust", "the program one could not be started: no such thing")]
