"""pytest on two schedulers of one's own: one that follows the link, and one that does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]
SCENARIO = """
name: {name}
question: When 100 Gbps become 8, does the threshold follow within 3 s?
seed: 7
duration: 14s
drain: 60s
scale: 0.05
topology: {{name: two_dc, prefill_hosts: 4, pd_hosts: 8}}
model: internal_1t
clusters:
  prfaas: {{instances: 4, profile: h200}}
  pd: {{prefill: 3, decode: 5, profile: h20}}
transport: {{payload: synthetic, connections: 4, chunk: 32MiB, layer_group: 4, congestion_control: cubic}}
policy: {{name: {policy}, threshold: 15700}}
link:
  a_to_b: {{rate: 100gbit, buffer: 10ms, delay: 5.75ms}}
  b_to_a: {{rate: 100gbit, buffer: 10ms, delay: 5.75ms}}
workload:
  {{kind: lognormal, rate: 4/s, mu: 9.9, sigma: 1, low: 128, high: 65536, output_tokens: 16}}
timeline:
  - {{at: 8s, event: drop, link: a_to_b, set: {{rate: 8gbit}}}}
expect:
  - {{reaction: threshold_tokens, after: drop, crosses: above, level: 18000, within: 3s}}
"""
MINE = """
def test_the_threshold_follows(testbed):
    run = testbed("scenarios/follows.yaml")
    assert run.status == "PASS"
    assert run.reaction("threshold_tokens", after="drop", crosses="above", level=18000) < 3
    assert run.requests.height > 40
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    """Exit code, output and directory; two runs, of which the test in Python looks at one again."""
    directory = tmp_path_factory.mktemp("session")
    (directory / "scenarios").mkdir()
    for name, policy in (("follows", "bandwidth_aware"), ("stays", "static_threshold")):
        text = SCENARIO.format(name=name, policy=policy)
        (directory / f"scenarios/{name}.yaml").write_text(text, encoding="utf-8")
    (directory / "test_mine.py").write_text(MINE, encoding="utf-8")
    options = ["-p", "testbed.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers"]
    options += ["--rootdir", str(directory), "-c", "/dev/null", "--testbed-out", str(directory / "out")]
    options += ["--testbed-kernel", "uml", "--junitxml", str(directory / "junit.xml")]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory)],
        check=False,
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stdout + ended.stderr, directory


def test_a_broken_policy_fails_with_reaction_measured_value_and_bound(
    session: tuple[int, str, Path],
) -> None:
    """One line says what was expected, what was measured and what was allowed; the report stands below."""
    code, output, directory = session
    assert code == 1, output
    assert "1 failed, 2 passed" in output
    expected = (
        "threshold_tokens crosses above 18000 tokens within 3s of drop: "
        "threshold_tokens never crossed 18,000 tokens from 8 to"
    )
    lines = set(output.splitlines())  # the summary at the end repeats them where CI is set
    (line,) = [one for one in lines if one.startswith("  FAIL ") and expected in one]
    assert line.endswith("(allowed 3 s)")
    (report,) = [one for one in lines if one.startswith("report: ")]
    assert Path(report.removeprefix("report: ")).is_file()
    assert len(list(directory.glob("out/*/*-7/report.html"))) == 2


def test_junit_has_what_was_measured(session: tuple[int, str, Path]) -> None:
    """Run directory, record and measured values, of the scenario and of the test that looked at its run."""
    root = ET.parse(session[2] / "junit.xml").getroot()
    cases = {
        case.attrib["name"]: {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        for case in root.iter("testcase")
    }
    assert cases["follows"] == cases["test_the_threshold_follows"]
    assert Path(cases["follows"]["testbed.run"], "verdict.json").is_file()
    assert len(cases["follows"]["testbed.record"]) == 64
    measured = [value for name, value in cases["follows"].items() if name.startswith("testbed.measured: th")]
    assert [value.split()[1] for value in measured] in (["s"], ["ms"])
    assert cases["stays"]["testbed.verdict"] == "FAIL"
