"""Scenarios of the paper, whole: what must pass passes, its control fails, every decision can be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.kernel.uml import Uml
from testbed.paper.scenarios import CONTROLS
from tests.e2e.commands import PROJECT, SCENARIOS, Ended, call, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

TRIED = ("decode_bound", "fair_share", "falls_to_5gbps", "hot_prefixes")
"""`make paper` runs all."""


def paper(tmp_path: Path, name: str, *options: str) -> Ended:
    return run(tmp_path, PROJECT / f"scenarios/paper/{name}.yaml", "--no-report", *options)


@pytest.mark.parametrize("name", TRIED)
def test_it_passes_and_its_decisions_can_be_replayed(tmp_path: Path, name: str) -> None:
    """PASS; and the policy, asked again from the record alone, answers the same."""
    ended = paper(tmp_path, name)
    assert ended.code == 0, ended.output
    code, said = call(tmp_path, "testbed.replay", ended.run)
    assert code == 0, said
    assert "the same answers" in said


@pytest.mark.parametrize("name", TRIED)
def test_its_control_fails(tmp_path: Path, name: str) -> None:
    """FAIL without what is to deal with the trouble; not UNKNOWN, the link was as asked."""
    ended = paper(tmp_path, CONTROLS[name])
    assert ended.code == 1, ended.output


@pytest.mark.parametrize("policy", ["aimd", "learned", "bandwidth_aware", "compression"])
def test_decisions_of_the_other_policies_can_be_replayed(tmp_path: Path, policy: str) -> None:
    """The policies that no scenario above uses."""
    settings = ("--set", f"policy.name={policy}", "--set", "transport.compression=half")
    ended = run(tmp_path, SCENARIOS / "small.yaml", "--no-report", *settings)
    assert ended.code in {0, 1}, ended.output
    code, said = call(tmp_path, "testbed.replay", ended.run)
    assert code == 0, said
