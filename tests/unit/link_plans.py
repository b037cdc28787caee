"""The plan of a small bulk scenario, for tests of the link."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from testbed.errors import ScenarioError
from testbed.plan import LinkChange, Plan
from testbed.resolve import load_and_resolve

LINK = Path(__file__).parents[1] / "data/link.yaml"
S = 1_000_000_000
MS = 1_000_000


def planned(*overrides: str, path: Path = LINK, seed: int | None = None, scale: float | None = None) -> Plan:
    """The plan of the link's scenario with some values changed."""
    return load_and_resolve(path, overrides=overrides, seed=seed, scale=scale)[1]


def beside(tmp_path: Path, name: str, text: str) -> Path:
    """The link's scenario in a directory of its own, with a file beside it."""
    (tmp_path / name).write_text(text)
    return Path(shutil.copy(LINK, tmp_path))


def changes(plan: Plan, direction: str = "a_to_b") -> list[LinkChange]:
    """The changes of one direction."""
    return [change for change in plan.changes if change.direction == direction]


def rates(plan: Plan) -> list[tuple[float, int]]:
    """Times (s) and rates (Mbps) of a_to_b, repetitions left out."""
    steps = [(change.t_ns / S, change.state.rate_bps // 10**6) for change in changes(plan)]
    return [step for number, step in enumerate(steps) if number == 0 or step[1] != steps[number - 1][1]]


def refused(*overrides: str, path: Path = LINK) -> str:
    """The message with which the link's scenario is refused after some changes."""
    with pytest.raises(ScenarioError) as caught:
        planned(*overrides, path=path)
    return str(caught.value)
