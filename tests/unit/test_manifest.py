"""The manifest: all that a record depends on, and of the guest what it was when it booted."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from testbed import manifest
from testbed import tables as record
from testbed.kernel import digest
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

NOTED = {
    "kernel_name": "kernel-1",
    "kernel_sha256": "ab" * 32,
    "project_sha256": "cd" * 32,
    "fixed_addresses": True,
}
IDENTITY = {
    "seed", "scale", "clock", "scenario_sha256", "plan_sha256", "kernel", *NOTED, "version", "python", "libc",
    "packages", "packages_digest", "stale_byte_code", "programs", "host_cpu", "host_cpu_stepping",
    "host_cpu_flags", "user",
}  # fmt: skip


def written(run: RunDir, kernel: str = "uml") -> dict[str, Any]:
    """The manifest of a synthetic run, from the file."""
    plan = make_plan()
    tables = record.build(run, plan)
    manifest.write(run, plan, kernel=kernel, clock="virtual", wall_s=1, tables=tables, command="run")
    found: dict[str, Any] = json.loads(run.manifest.read_bytes())
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = write_run(tmp_path / "run", make_plan())
    run.guest.write_text(json.dumps(NOTED), encoding="utf-8")
    run.scenario.write_bytes(b"name: x\n")
    return run


def test_a_run_that_never_began_took_no_time(run: RunDir) -> None:
    """Broken off before t0 it has samples of links, whose times are negative."""
    plan = make_plan()
    tables = record.build(run, plan)
    early = tables["links"].with_columns(pl.lit(-0.3).alias("t_s"))
    tables = {**tables, "events": tables["events"].clear(), "links": early}
    found = manifest.write(run, plan, kernel="uml", clock="virtual", wall_s=1, tables=tables, command="run")
    assert f"{found['virtual_s']:.0f}" == "0"


def test_all_that_the_record_depends_on_is_there(run: RunDir) -> None:
    """Each key has a value; what the guest noted when it booted is taken over as it is."""
    found = written(run)
    assert IDENTITY - found.keys() == set()
    assert {key: found[key] for key in NOTED} == NOTED
    assert found["scenario_sha256"] == hashlib.sha256(b"name: x\n").hexdigest()
    assert [key for key in IDENTITY if found[key] in ("", {}, None)] == []
    assert "python" in found["programs"]


def test_the_host_s_kernel_and_the_checkout_stand_in_for_a_guest(run: RunDir) -> None:
    """Without a guest: this machine's kernel, the sources as they lie here."""
    found = written(run, kernel="host")
    assert found["kernel_name"] == os.uname().release
    assert found["project_sha256"] == digest.of_project(manifest.PROJECT)


def test_the_digest_of_the_project_knows_names_and_contents(tmp_path: Path) -> None:
    """Byte code and other directories do not count; an edit, a new file and a new name do."""
    package = tmp_path / "agents"
    (package / "__pycache__").mkdir(parents=True)
    (package / "a.py").write_text("1")
    digests = [digest.of_project(tmp_path)]
    (package / "__pycache__/a.pyc").write_text("2")
    (tmp_path / "README").write_text("3")
    assert digest.of_project(tmp_path) == digests[0]
    (package / "a.py").write_text("4")
    digests.append(digest.of_project(tmp_path))
    (package / "a.py").rename(package / "b.py")
    digests.append(digest.of_project(tmp_path))
    (package / "a.py").write_text("")
    digests.append(digest.of_project(tmp_path))
    assert len(set(digests)) == 4


def test_stale_byte_code_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte code that is missing, or belongs to another source, makes every start compile."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    for name, fresh in (("fresh", True), ("stale", False), ("bare", None)):
        source = tmp_path / f"{name}.py"
        source.write_text("a = 1\n")
        module = ModuleType(name)
        module.__file__, module.__cached__ = str(source), importlib.util.cache_from_source(str(source))
        monkeypatch.setitem(sys.modules, name, module)
        if fresh is not None:
            py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
        if fresh is False:
            os.utime(source, (1, 1))
    assert manifest._stale() == ["bare", "stale"]
