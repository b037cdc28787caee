"""The two clocks of our own kernel, compared by the command, with real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, call

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_time,
    pytest.mark.skipif(bool(Uml().probe("real")), reason="no UML kernel: make setup"),
]
UNKNOWN = 2
SCENARIO = PROJECT / "scenarios/conformance/eight_connections.yaml"


def test_both_clocks_of_our_kernel_agree(tmp_path: Path) -> None:
    """Goodput, delays and verdict; asked once more, the runs that are there are taken."""
    arguments = (SCENARIO, "--kernels", "uml,uml-real", "--out", tmp_path / "out")
    code, said = call(tmp_path, "testbed.conformance", *arguments)
    assert "uml       eight_connections: PASS " in said, said  # in virtual time no machine is too busy
    assert "the guest died" not in said, said
    if code == UNKNOWN and "eight_connections: UNKNOWN" in said:
        pytest.skip("this machine is too busy for real time")
    assert (code, "Traceback" in said) == (0, False), said
    assert said.count("eight_connections: PASS ") == 2
    made = sorted((tmp_path / "out").glob("*/*/*-2*"))
    code, said = call(tmp_path, "testbed.conformance", *arguments, "--again")
    assert (code, "Traceback" in said) == (0, False), said
    assert sorted((tmp_path / "out").glob("*/*/*-2*")) == made
