"""Programs of a scenario: what the plan takes along, what their containers get, how they are judged."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from testbed import endings
from testbed.errors import MachineError, ScenarioError
from testbed.journal import Journal
from testbed.plan import Plan
from testbed.program import PATH, Program
from testbed.programs import HIDDEN, NOBODY, Programs, _listening
from testbed.resolve import load_and_resolve
from testbed.resolve.programs import MOST_BYTES, require
from testbed.rundir import RunDir

BASE = Path(__file__).parents[1] / "data/base.yaml"


def resolved(directory: Path, programs: str, *overrides: str) -> Plan:
    """The base scenario in a directory of its own, with these programs."""
    file = directory / "base.yaml"
    file.write_text(f"{BASE.read_text()}programs:\n{programs}", encoding="utf-8")
    return load_and_resolve(file, overrides=overrides)[1]


def test_a_plan_holds_all_that_its_programs_need(tmp_path: Path) -> None:
    """Files of the command and those named beside it, by their names; numbers are arguments like others."""
    (tmp_path / "lib").mkdir()
    for name in ("mine.py", "lib/a.py", "lib/b.txt", "unused.py"):
        (tmp_path / name).write_text(name)
    text = (
        "  - {name: mine, host: a1, command: [python3, mine.py, -n, 3, /etc/hosts], files: [lib], at: 1s}\n"
    )
    (program,) = resolved(tmp_path, text).programs
    assert program.command == ("python3", "mine.py", "-n", "3", "/etc/hosts")
    assert program.files == {name: name.encode() for name in ("lib/a.py", "lib/b.txt", "mine.py")}
    assert (program.at_ns, program.until_ns, program.exit_code) == (10**9, None, 0)


def test_nothing_outside_the_scenarios_directory_is_taken_along(tmp_path: Path) -> None:
    """Neither by its name nor by a link."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_text("x")
    (inside / "link").symlink_to(tmp_path / "secret")
    for name in ("../secret", "link", str(tmp_path / "secret")):
        with pytest.raises(ScenarioError, match="lies outside the scenario's directory"):
            resolved(inside, f"  - {{name: mine, host: a1, command: [cat], files: ['{name}']}}\n")


def test_too_many_bytes_are_refused(tmp_path: Path) -> None:
    """A plan is no archive."""
    (tmp_path / "large").write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(ScenarioError, match=r"its files have .*\n.*at most 8MiB"):
        resolved(tmp_path, "  - {name: mine, host: a1, command: [cat, large]}\n")


def test_a_program_that_this_machine_lacks(tmp_path: Path) -> None:
    """It is named before anything starts; a program among the files is none of the machine's."""
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    commands = {"mine": "./mine", "no": "no-such-program"}
    text = "".join(f"  - {{name: {name}, host: a1, command: [{one}]}}\n" for name, one in commands.items())
    plan = resolved(tmp_path, text)
    assert plan.programs[0].files == {"mine": b"#!/bin/sh\n"}
    with pytest.raises(MachineError, match="the program no-such-program is missing"):
        require(plan.programs)
    require(plan.programs[:1])


def test_a_container_gets_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No capability, no user, no home directory, nothing that it could write to but memory of its own."""
    monkeypatch.setattr("testbed.programs.subprocess.run", lambda *_, **__: None)
    plan = resolved(tmp_path, "  - {name: mine, host: a1, command: [cat, a b]}\n")
    run = RunDir(tmp_path)
    journal = Journal(tmp_path / "journal.jsonl")
    programs = Programs(plan, tmp_path / "work", run, journal, {"a1": "10.0.0.1"})
    found: dict[str, Any] = json.loads(
        json.dumps(programs._specification(plan.programs[0], tmp_path / "files"))
    )
    journal.close()
    process = found["process"]
    assert process["args"] == ["cat", "a b"], "no shell reads it"
    assert process["user"] == {"uid": NOBODY, "gid": NOBODY}
    assert process["noNewPrivileges"] is True
    assert "capabilities" not in process
    assert process["env"][0] == f"PATH={PATH}"
    assert found["root"]["readonly"] is True
    mounts = {mount["destination"]: mount for mount in found["mounts"]}
    binds = [mount for mount in mounts.values() if mount["type"] == "bind"]
    assert {mount["destination"] for mount in binds} == {"/run/program", "/etc/hosts"}
    assert all("ro" in mount["options"] for mount in binds)
    assert {home for home in HIDDEN if Path(home).is_dir()} <= set(mounts)
    assert (tmp_path / "work/hosts").read_text() == "127.0.0.1 localhost\n10.0.0.1 a1\n"


def test_who_listens_is_seen_without_a_connection() -> None:
    """From /proc of any process in the network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _listening(os.getpid(), port)
    assert not _listening(os.getpid(), port)
    assert not _listening(None, port)


def judged(*rows: tuple[float, str, str, str]) -> Any:
    program = Program(name="x", host="a1", command=("x",), files={}, memory_bytes=1)
    plan = type("HasPrograms", (), {"programs": (program,)})()
    events = pl.DataFrame(rows, schema=["t_s", "kind", "name", "detail"], orient="row")
    return endings.judge(plan, {"events": events})


def test_a_failed_program_fails_the_run_with_its_cause() -> None:
    """Each by the first thing that went wrong; a run that was cut short says nothing."""
    end = (9.0, "end", "end", "complete")
    assert judged((1.0, "program_failed", "x", "?")) is None
    fine = judged((1.0, "program_ended", "x", "with status 0"), end)
    assert (fine.status, fine.sentence) == ("PASS", "1 program did as expected")
    failed = judged(
        (2.0, "program_failed", "x", "was still running"),
        (1.0, "program_failed", "x", "was not ready within 10 s"),
        end,
    )
    assert (failed.status, failed.sentence) == ("FAIL", "x was not ready within 10 s")
