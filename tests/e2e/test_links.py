"""Every scenario of scenarios/links passes, and its control, where the scenario names one, does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]
LINKS = PROJECT / "scenarios/links"
CONTROLS = {
    "aqm_fq_codel": ("link.a_to_b.queue=tail_drop",),
    "aqm_tail_drop": ("link.a_to_b.queue=fq_codel",),
    "flow_cap": ("transport.connections=12", "workload.transfers.0.size=4GB"),
    "fluctuating_trace": ("link.a_to_b.flow_cap=4gbit",),
    "token_bucket": ("link.a_to_b.token_bucket=none",),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in LINKS.glob("*.yaml")))
def test_a_link_to_copy_from_passes(tmp_path: Path, name: str) -> None:
    """Exit code 0: what was expected from arithmetic was measured, on a link that was as asked."""
    ended = run(tmp_path, LINKS / f"{name}.yaml", "--no-report")
    assert ended.code == 0, ended.output
    assert "the link was as asked" in ended.output


@pytest.mark.parametrize("name", sorted(CONTROLS))
def test_the_control_fails(tmp_path: Path, name: str) -> None:
    """Exit code 1: without the thing that the scenario shows, its expectations do not hold."""
    settings = [argument for one in CONTROLS[name] for argument in ("--set", one)]
    ended = run(tmp_path, LINKS / f"{name}.yaml", "--no-report", *settings)
    assert ended.code == 1, ended.output
