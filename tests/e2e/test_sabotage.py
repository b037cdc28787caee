"""A link that somebody changes behind the bench's back: the run ends with 2 and says what it was."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from testbed.kernel.uml import Uml
from testbed.resolve import load_and_resolve
from testbed.run import execute, new_run_dir
from testbed.rundir import RunDir
from testbed.verdict import Verdict
from tests.e2e import commands
from tests.e2e.commands import SCENARIOS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]
SCRIPT = Path(__file__).with_name("guest_sabotage.py")


def sabotaged(out: Path, deed: str) -> tuple[Verdict, RunDir, str]:
    """A run of link.yaml during which somebody does something; the verdict and what the terminal showed."""
    loaded, plan = load_and_resolve(SCENARIOS / "link.yaml")
    run = new_run_dir(out, plan)
    run.scenario.write_bytes(loaded.source.text)
    plan.write(run.plan)
    shutil.copy(SCRIPT, run.path)
    kernel = Uml(payload=(f"/run/testbed/run/{SCRIPT.name}", deed))
    shown = io.StringIO()
    verdict = execute(run, plan, kernel, "virtual", Console(file=shown, width=200), quiet=False, report=True)
    return verdict, run, shown.getvalue()


def test_without_sabotage_the_link_is_as_asked(tmp_path: Path) -> None:
    """The control: the same way into the guest, and nobody who meddles."""
    verdict, run, shown = sabotaged(tmp_path, "nothing")
    assert (verdict.exit_code, verdict.trust) == (0, ()), shown
    assert "the link was as asked" in shown
    assert "The link was as asked" in run.report.read_text()


@pytest.mark.parametrize(
    ("deed", "reasons"),
    [
        ("rate", ("a_to_b: rate: rate: kernel says", "a_to_b, rate while busy: ")),
        ("rate_between_readings", ("a_to_b, rate while busy: ",)),
        ("limit", ("a_to_b: delay: limit: kernel says 10 ", "a_to_b, limit of the delay stage: ")),
        ("loss", ("a_to_b: delay: loss: kernel says", "a_to_b, loss in the run: ")),
        ("delay_for_a_moment", ("wan-b in wan: qdisc netem was changed by somebody else",)),
        ("feed", ("sw-a-edge in sw-a: qdisc tbf was changed by somebody else",)),
    ],
)
def test_sabotage_is_caught_and_named(tmp_path: Path, deed: str, reasons: tuple[str, ...]) -> None:
    """Exit code 2; a reason for each way in which it shows, and none about the other direction."""
    verdict, run, shown = sabotaged(tmp_path, deed)
    assert verdict.exit_code == 2, shown
    for reason in reasons:
        assert [said for said in verdict.trust if reason in said], verdict.trust
    assert [said for said in verdict.trust if "b_to_a" in said] == []
    assert "the link was not as asked" in shown
    report = run.report.read_text()
    assert report.index("The link was not as asked") < report.index("What was expected")


def test_a_limit_below_the_delay_line_says_what_to_do(tmp_path: Path) -> None:
    """Nobody meddles, but the scenario's own limit drops packets: code 2, and its author learns why."""
    ended = commands.run(tmp_path, SCENARIOS / "link.yaml", "--set", "link.a_to_b.limit=10")
    assert ended.code == 2, ended.output
    trust = json.loads((ended.run / "verdict.json").read_bytes())["trust"]
    said = "limit 10 is below the packets in flight over 5 ms: leave `limit` out, and it is computed"
    assert [reason for reason in trust if said in reason], trust


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("far_edge", "edge-b-lan in edge-b: qdisc tbf was changed by somebody else"),
        ("host", "a1-eth0 in a1: qdisc tbf was changed by somebody else"),
        ("receiver", "b1-eth0 in b1: qdisc netem was changed by somebody else"),
        ("ingress", "edge-b-wan in edge-b: filter matchall was changed by somebody else"),
        ("mtu", "edge-a-wan in edge-a: MTU was 1500 where"),
        ("mtu_for_a_moment", "b1-eth0 in b1: MTU was 1500 where"),
    ],
)
def test_whatever_comes_into_the_network_is_named(tmp_path: Path, deed: str, reason: str) -> None:
    """Queues, filters and sizes on any device of any node, if only for a moment: exit code 2."""
    verdict, _, shown = sabotaged(tmp_path, deed)
    assert verdict.exit_code == 2, shown
    assert [said for said in verdict.trust if reason in said], verdict.trust
