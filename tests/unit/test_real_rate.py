"""Scenarios that the host's kernel cannot carry in real time are refused, with what would do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from testbed import real_rate, run
from testbed.command import run_command
from testbed.errors import MachineError
from testbed.kernel import Needs, carry
from testbed.real_rate import LEAST_SCALE, SHARE, refuse
from tests.unit.link_plans import LINK, planned

GBIT = 10**9
PLAN = structs.replace(planned(), changes=())


def refusal(carried_bps: int, *overrides: str, scale: float | None = None) -> str:
    with pytest.raises(MachineError) as caught:
        refuse(planned(*overrides, scale=scale), carried_bps)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_half_of_what_is_carried_may_be_asked_for() -> None:
    """The link of 10 Gbps needs a machine that carries 20."""
    refuse(planned(), 20 * GBIT)
    assert refusal(20 * GBIT - 2) == (
        "--kernel host: the link has 10gbit, "
        "and this machine carries 19gbit through seven namespaces, unshaped\n"
        "    allowed: links of up to 50% of that\n"
        "    next: --scale 0.99, or --kernel uml, whose virtual clock carries any rate"
    )


def test_a_later_change_counts_as_well() -> None:
    """The fastest state of either direction decides."""
    faster = "timeline=[{at: 5s, link: b_to_a, set: {rate: 40gbit}}]"
    assert "the link has 40gbit" in refusal(30 * GBIT, faster)


def test_the_scale_that_is_given_counts() -> None:
    """What is suggested is a value for --scale, not one to multiply it by."""
    assert "--scale 0.05," in refusal(GBIT, scale=0.1)


def test_where_no_scale_would_do_none_is_suggested() -> None:
    """Below the smallest scale only another kernel is left."""
    assert "next: --kernel uml" in refusal(int(10 * GBIT * LEAST_SCALE))


@given(st.integers(10**7, 19 * GBIT))
def test_the_suggested_scale_is_accepted(carried_bps: int) -> None:
    """Whatever is carried, the scenario at that scale is not refused again."""
    with pytest.raises(MachineError) as caught:
        refuse(PLAN, carried_bps)
    scale = float(str(caught.value).split("--scale ")[1].split(",")[0])
    links = {
        name: structs.replace(state, rate_bps=round(state.rate_bps * scale))
        for name, state in PLAN.link.items()
    }
    refuse(structs.replace(PLAN, link=links, scale=scale), carried_bps)
    assert scale > 0.85 * carried_bps * SHARE / (10 * GBIT)


def test_what_cannot_be_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words of the measuring process are part of the message."""
    ended = SimpleNamespace(stdout="", stderr="Traceback\nOSError: no veth\n", returncode=1)
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_options: ended)
    with pytest.raises(
        MachineError, match=r"could not be measured: .*OSError: no veth\n    next: --kernel uml"
    ):
        real_rate.require(planned())


class Nowhere:
    """The host's kernel, in which nothing happens."""

    name = "host"

    def execute(self, run_dir: Path, needs: Needs, on_line: Callable[[str], None]) -> None:
        """End at once."""


@pytest.mark.parametrize(("carried_bps", "exit_code"), [(30 * GBIT, 2), (3 * GBIT, 4)])
def test_a_run_on_the_host_is_preceded_by_the_measurement(
    carried_bps: int, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure stands in the manifest; a run that is refused makes no directory."""
    monkeypatch.setattr(run, "place", lambda *_arguments: (Nowhere(), "real"))
    monkeypatch.setattr(real_rate, "carries_bps", lambda: carried_bps)
    assert run_command(run.app, [str(LINK), "--out", str(tmp_path / "runs")]) == exit_code
    manifests = list(tmp_path.glob("runs/latest/manifest.json"))
    assert [json.loads(one.read_bytes())["carried_bps"] for one in manifests] == [carried_bps][
        : exit_code < 4
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_a_measurement_leaves_nothing() -> None:
    """It gives a rate that any machine has, and no namespace or interface stays."""
    before = sorted(Path("/sys/class/net").iterdir())
    assert carry.carries_bps() > 10**8
    assert sorted(Path("/sys/class/net").iterdir()) == before
