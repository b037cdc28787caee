"""A run that is broken off: nothing of it stays but what it recorded, and that can be read."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import SCENARIOS, start, survivors, traces_on_this_machine, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


@contextmanager
def half_way(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A run in the middle of its workload: some requests have ended, others have not."""
    ended = out / "small-5/journal/client.jsonl"
    with start("testbed.run", SCENARIOS / "small.yaml", "--out", out, temporary=out) as process:
        try:
            until(lambda: (ended.is_file() and ended.stat().st_size > 0) or process.poll() is not None)
            assert process.poll() is None, process.communicate()[0]
            assert survivors(out)
            yield process
        finally:
            process.kill()


def assert_unknown(run: Path) -> None:
    """A report that says UNKNOWN, over a record of some ended requests and some that never ended."""
    assert json.loads((run / "verdict.json").read_bytes())["status"] == "UNKNOWN"
    assert "UNKNOWN" in (run / "report.html").read_text(encoding="utf-8")
    states = pl.read_parquet(run / "record/requests.parquet")["state"].to_list()
    assert len(states) == len(json.loads((run / "plan.json").read_bytes())["requests"])
    assert {"completed", "unfinished"} <= set(states)


def test_a_killed_run_leaves_a_record_and_nothing_else(tmp_path: Path) -> None:
    """SIGKILL: no process, mount, namespace or control group stays, and the report can still be made."""
    before = traces_on_this_machine()
    with half_way(tmp_path) as process:
        process.kill()
        process.wait()
        until(lambda: not survivors(tmp_path))
    assert traces_on_this_machine() == before
    run = tmp_path / "small-5"
    assert not (run / "report.html").exists()
    with start("testbed.report", run, temporary=tmp_path) as report:
        output, _ = report.communicate()
    assert (report.returncode, "UNKNOWN" in output, "Traceback" in output) == (2, True, False)
    assert_unknown(run)


def test_ctrl_c_ends_with_a_report(tmp_path: Path) -> None:
    """SIGINT: code 2, the report is there at once, and nothing else stays, not even a temporary file."""
    before = traces_on_this_machine()
    with half_way(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert (process.returncode, "Traceback" in output) == (2, False), output
    assert "interrupted" in output
    assert survivors(tmp_path) == []
    assert traces_on_this_machine() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "small-5"]
    assert_unknown(tmp_path / "small-5")
