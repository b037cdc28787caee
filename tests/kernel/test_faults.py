"""Faults in the guest's kernel: what is done to programs and hosts, read back, and undone.

`guest_faults.py` does it, in one boot; here stands what must come out.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.kernel.uml import Uml
from tests.kernel.booting import run_in_guest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

S = 10**9
TICK_S = 0.01
REACTION_S = 0.02
"""From an order to the kernel's word that a group stands still, and a tick."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boot a guest and let faults happen."""
    directory = tmp_path_factory.mktemp("faults") / "run"
    run_in_guest(directory, "guest_faults.py", wall_limit_s=120)
    return directory


@pytest.fixture(scope="module")
def found(run: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results


def lines_of(run: Path, agent: str) -> list[list[str]]:
    """What a program noted of itself, word by word."""
    text = (run / f"journal/{agent}.txt").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines()]


def ticks(run: Path, found: dict[str, Any], agent: str) -> list[float]:
    """When a program was at work, in seconds after t0."""
    return [(int(words[-1]) - found["t0_ns"]) / S for words in lines_of(run, agent) if words[0] == "tick"]


def heard(run: Path, agent: str) -> list[str]:
    """What a program was told."""
    return [" ".join(words[1:-1]) for words in lines_of(run, agent) if words[0] == "heard"]


def test_a_paused_agent_makes_no_progress(run: Path, found: dict[str, Any]) -> None:
    """It does nothing from begin to end, and goes on at once."""
    seen = ticks(run, found, "decode-1")
    assert not [t_s for t_s in seen if 1 + REACTION_S < t_s < 2]
    assert [t_s for t_s in seen if 1 - 2 * TICK_S < t_s < 1]
    assert [t_s for t_s in seen if 2 <= t_s < 2 + REACTION_S]


def test_a_slow_agent_runs_its_share_of_the_time(run: Path, found: dict[str, Any]) -> None:
    """Four times slower: a quarter of the ticks, in every beat of 100 ms; and it is told so."""
    seen = [t_s for t_s in ticks(run, found, "prfaas-1") if 1 <= t_s < 3]
    assert len(seen) == pytest.approx(200 / 4, rel=0.3)
    assert max(after - before for before, after in pairwise(seen)) == pytest.approx(0.075, abs=REACTION_S)
    assert heard(run, "prfaas-1") == ["slow 4", "slow 1", "corrupt 2"]


def test_a_killed_agent_is_gone_for_good(run: Path, found: dict[str, Any]) -> None:
    """Nothing comes after its death, and its control group is gone; the run goes on."""
    assert 1 - TICK_S <= max(ticks(run, found, "prfaas-2")) <= 1 + TICK_S
    assert found["groups"] == [["decode-1", "prfaas-1"], []]


def test_a_restarted_agent_comes_back(run: Path, found: dict[str, Any]) -> None:
    """Dead from the kill to its new start, then at work, and it can be talked to."""
    seen = ticks(run, found, "decode-1")
    assert not [t_s for t_s in seen if 3 + TICK_S < t_s < 3.5]
    assert [t_s for t_s in seen if 3.5 <= t_s < 4]
    assert heard(run, "decode-1") == ["fill on", "fill off"]


def test_a_host_without_ports_opens_nothing(found: dict[str, Any]) -> None:
    """What was connected stays so; connecting fails at once, and works again afterwards."""
    before, during, after = found["looks"]
    assert (before["new"], during["new"], after["new"]) == (
        "connected",
        "Cannot assign requested address",
        "connected",
    )
    assert during["standing"] == "still there"
    assert during["range"] == ["65534", "65535"]
    assert after["range"] == before["range"] != during["range"]


def test_each_fault_is_noted_as_it_begins_and_ends(run: Path, found: dict[str, Any]) -> None:
    """One line within 10 ms of each moment, a death has no second one."""
    text = (run / "bench.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    noted = {
        (line["fault"], line["target"], line["active"]): (line["t_ns"] - found["t0_ns"]) / S for line in lines
    }
    assert len(noted) == len(lines) == 13
    for fault, target, begin_s, end_s in (
        ("pause", "decode-1", 1, 2),
        ("slow", "prfaas-1", 1, 3),
        ("kill", "prfaas-2", 1, None),
        ("exhaust_ports", "a1", 1, 2),
        ("restart", "decode-1", 3, 3.5),
        ("corrupt", "prfaas-1", 4, 4),
        ("fill", "decode-1", 5, 5.5),
    ):
        assert noted[fault, target, True] == pytest.approx(begin_s, abs=0.01)
        if end_s is not None:
            assert noted[fault, target, False] == pytest.approx(end_s, abs=0.01)


def test_a_death_that_nobody_wanted_is_told(found: dict[str, Any]) -> None:
    """The obituary names the agent that died of itself, and none of those that were killed."""
    assert found["death"].startswith("agent prfaas-1: died with status 137")
    assert found["death"].count("agent ") == 1


def test_frozen_containers_can_be_put_away(found: dict[str, Any]) -> None:
    """Closing does not wait for an agent that stands still."""
    assert found["closing_ns"] < S
