"""Runs of the paper's experiments: what they leave, taking them again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from testbed import runs as all_runs
from testbed.errors import RunError
from testbed.paper import runs
from testbed.rundir import RunDir
from testbed.runs import Wanted
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


def test_whoever_breaks_off_ends_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that leaves nothing is an error, and does not wait for one that takes long."""
    sleeps = {"one": "0", "two": "30"}
    monkeypatch.setattr(all_runs.Wanted, "start_command", lambda one, _: ["sleep", sleeps[one.name]])
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
