"""The audit alone, from the command line: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from testbed.verdict import Verdict
from tests.e2e.commands import PROJECT, SCENARIOS, start

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


def calibrate(out: Path, *arguments: str | Path) -> tuple[int, str]:
    """`python -m testbed.calibrate` to its end: exit code and output."""
    with start("testbed.calibrate", *arguments, "--out", out, temporary=out) as process:
        output, _ = process.communicate()
    return process.returncode, output


def test_a_link_is_audited_without_its_workload(tmp_path: Path) -> None:
    """Code 0 and a row for everything that was measured; no agent, no request, nobody's traffic."""
    out = tmp_path / "q[" / "b]"
    out.mkdir(parents=True)
    code, output = calibrate(out, SCENARIOS / "small.yaml")
    assert code == 0, output
    for text in ("the link was as asked", "1 Gbps", "delay, mean", "jitter", "gilbert elliott", "counters"):
        assert text in output, text
    (run,) = out.glob("small-link-*")
    assert output.endswith(f"{run}\n")
    plan = json.loads((run / "plan.json").read_bytes())
    verdict = Verdict.read(run / "verdict.json")
    assert (verdict.status, verdict.note) == ("PASS", "the link alone: as asked")
    assert (plan["agents"], plan["requests"], plan["bursts"]) == ([], [], [])
    probes = pl.read_parquet(run / "record/probes.parquet", glob=False)
    assert probes.filter(pl.col("copy") == 0).height == 4000
    assert probes.filter(pl.col("arrived_s").is_null()).height > 0


def test_what_cannot_be_measured_is_not_as_asked(tmp_path: Path) -> None:
    """A buffer of 5 us at 100 Gbps never keeps a queue long enough to measure a rate: code 2, and why."""
    small = "link.a_to_b.buffer=64KiB"
    code, output = calibrate(tmp_path, PROJECT / "scenarios/full_rate.yaml", "--set", small)
    assert (code, "Traceback" in output) == (2, False), output
    assert "the link was not as asked: 1 of " in output
    assert Verdict.read(tmp_path / "full_rate-link-1/verdict.json").status == "UNKNOWN"


def test_wrong_arguments_end_with_3(tmp_path: Path) -> None:
    """A scenario that does not exist, a clock that does not: code 3 and no traceback."""
    for arguments in (("nowhere.yaml",), (SCENARIOS / "small.yaml", "--clock", "sundial")):
        code, output = calibrate(tmp_path, *arguments)
        assert (code, "Traceback" in output) == (3, False), output
