"""A machine that has no time for a run: in real time it is UNKNOWN, in virtual time nothing happens."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, start, until

LINK = PROJECT / "tests/data/link.yaml"
SHORT = ("--set", "sample=100ms", "--set", "duration=5s")
STANDSTILL_S = 1.5
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_time,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


def guest(place: Path) -> int:
    """The kernel of the guest that works below `place`: of its processes the one that has no parent there."""
    parents = {}
    for process in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):
            works, program = (process / "cwd").readlink(), (process / "exe").readlink()
            if works.is_relative_to(place) and program.name == "linux":
                status = (process / "stat").read_text().rpartition(")")[2].split()
                parents[int(process.name)] = int(status[1])
    (kernel,) = (pid for pid, parent in parents.items() if parent not in parents)
    return kernel


def started(journal: Path) -> bool:
    return journal.is_file() and b'"start"' in journal.read_bytes()


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_standstill_counts_in_real_time_only(clock: str, tmp_path: Path) -> None:
    """A guest that gets no processor for a while says how late it was, unless its clock stood as well."""
    journal = tmp_path / "link-1/journal/bench.jsonl"
    options = ["--clock", clock, "--scale", "0.01", *SHORT, "--out", tmp_path]
    with start("testbed.run", LINK, *options, temporary=tmp_path) as process:
        try:
            until(lambda: process.poll() is not None or started(journal))
            assert process.poll() is None, process.communicate()[0]
            kernel = guest(tmp_path)
            os.kill(kernel, signal.SIGSTOP)
            time.sleep(STANDSTILL_S)
            os.kill(kernel, signal.SIGCONT)
            output, _ = process.communicate()
        finally:
            process.kill()
    verdict = json.loads((tmp_path / "link-1/verdict.json").read_bytes())
    late = [reason for reason in verdict["trust"] if reason.startswith("this machine was too slow")]
    if clock == "virtual":
        assert (verdict["status"], late) == ("PASS", []), output
    else:
        assert (process.returncode, verdict["status"]) == (2, "UNKNOWN")
        (reason,) = late
        worst_ms = float(reason.split("at worst ")[1].split(" ms")[0])
        assert worst_ms >= 0.9 * STANDSTILL_S * 1000, output
