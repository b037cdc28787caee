"""A stock Debian kernel in a VM: boots, runs scenarios, leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from testbed.kernel import Needs
from testbed.kernel.uml import Uml
from testbed.kernel.vm import Vm, find_image
from tests.e2e.commands import PROJECT, call, run, start, survivors, until

LACKING = Vm().probe("real")
WHY = "; ".join(problem.found for problem in LACKING)
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif("TESTBED_VM" not in os.environ, reason="minutes: make vm"),
    pytest.mark.skipif(bool(LACKING), reason=f"no VM here: {WHY} (make vm builds it)"),
]
UNKNOWN, TOO_SLOW = 2, "this machine was too slow"
FACTS = """
import os, subprocess
from pathlib import Path
patience = Path("/proc/sys/kernel/hung_task_timeout_secs").read_text().strip()
print("made ready:", "tcp_diag " in Path("/proc/modules").read_text(), patience)
print(os.uname().release, os.geteuid())
add = "ip link add try0 type dummy; tc qdisc add dev try0 root netem delay 10ms; modinfo -n sch_netem"
print(subprocess.run(["sh", "-ec", add], stdout=-1, stderr=-2, text=True, check=False).stdout.strip())
Path("/run/testbed/run/written").write_text("by the guest")
Path("/run/testbed/run/journal/last.jsonl").write_text("as it ends")
try:
    Path("/opt/testbed/testbed/new").write_text("z")
except OSError as error:
    print(error.strerror)
"""
ON_THE_HOST = """
import subprocess, sys
from testbed import clean
scenario, out = sys.argv[1:]
command = [sys.executable, "-m", "testbed.run", scenario, "--kernel", "host", "--out", out]
print("exit code", subprocess.run(command, check=False).returncode, flush=True)
print("left behind:", [one.what for one in clean.left()])
"""


def test_the_guest_has_debian_s_kernel_and_its_netem(tmp_path: Path) -> None:
    """It runs as root, sets netem, writes into the run directory and nowhere else of this machine.

    What looks at sockets is there before a run, and neither a slow disk nor the end says anything of its own.
    """
    (tmp_path / "journal").mkdir()
    said: list[str] = []
    needs = Needs(memory_bytes=1 << 30, clock="real", seed=1, wall_limit_s=60)
    Vm(payload=("-c", FACTS)).execute(tmp_path, needs, said.append)
    disk = find_image()
    assert disk is not None
    release = (disk / "release").read_text().strip()
    assert said[-4] == "made ready: True 0"
    assert said[-3] == f"{release} 0"
    assert said[-2].startswith(f"/lib/modules/{release}/kernel/net/sched/sch_netem.ko")
    assert said[-1] == "Read-only file system"
    assert (tmp_path / "written").read_text() == "by the guest"
    assert (tmp_path / "journal/last.jsonl").read_text() == "as it ends"


def test_the_smoke_scenario_passes_on_it(tmp_path: Path) -> None:
    """Verdict and exit code come through, and the whole run directory."""
    ended = run(tmp_path, PROJECT / "scenarios/smoke.yaml", "--kernel", "vm")
    if ended.code == UNKNOWN and TOO_SLOW in ended.output:
        pytest.skip("this machine is too slow for real time in the VM")
    assert ended.code == 0, ended.output
    assert (ended.manifest["kernel"], ended.manifest["clock"]) == ("vm", "real")
    assert set(ended.table("requests")["state"]) == {"completed"}
    for name in ("verdict.json", "junit.xml", "report.html", "console.log", "outcome.json"):
        assert (ended.run / name).stat().st_size > 0


def test_a_failure_comes_through(tmp_path: Path) -> None:
    """The same with an expectation that cannot hold ends with 1."""
    never = ("--set", "expect.1.min=100TB")
    code, said = call(
        tmp_path, "testbed.run", PROJECT / "scenarios/smoke.yaml", "--kernel", "vm", *never, "--out", tmp_path
    )
    if code == UNKNOWN and TOO_SLOW in said:
        pytest.skip("this machine is too slow for real time in the VM")
    assert code == 1, said


def test_a_scenario_runs_on_the_kernel_that_is_there(tmp_path: Path) -> None:
    """`--kernel host`, with the guest as the machine: Debian's netem, judged there, cleaned up behind it."""
    (tmp_path / "smoke.yaml").write_bytes((PROJECT / "scenarios/smoke.yaml").read_bytes())
    said: list[str] = []
    needs = Needs(memory_bytes=2 << 30, clock="real", seed=1, wall_limit_s=300)
    scenario = "/run/testbed/run/smoke.yaml"
    Vm(payload=("-c", ON_THE_HOST, scenario)).execute(tmp_path, needs, said.append)
    if any(TOO_SLOW in line for line in said):
        pytest.skip("this machine is too slow for real time in the VM")
    assert said[-2:] == ["exit code 0", "left behind: []"], said
    manifest = json.loads((tmp_path / "smoke-3/manifest.json").read_bytes())
    assert (manifest["kernel"], manifest["clock"]) == ("host", "real")
    assert manifest["carried_bps"] > 0
    assert json.loads((tmp_path / "smoke-3/verdict.json").read_bytes())["status"] == "PASS"


@pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup")
def test_it_agrees_with_our_kernel(tmp_path: Path) -> None:
    """The conformance suite's slow links: goodput, delay, loss within their bounds, and the verdict."""
    suite = [PROJECT / f"scenarios/conformance/{name}.yaml" for name in ("one_connection", "losses")]
    code, said = call(tmp_path, "testbed.conformance", *suite, "--kernels", "uml,vm", "--out", tmp_path)
    assert all(fault not in said for fault in ("left no verdict", "the VM died", "the VM could not")), said
    if code == UNKNOWN and "UNKNOWN" in said:
        pytest.skip("this machine is too slow for real time in the VM")
    assert code == 0, said
    assert said.count(": PASS ") == 2 * len(suite)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_vm_outlives_the_run(how: signal.Signals, tmp_path: Path) -> None:
    """However the run ends, QEMU ends with it."""
    out = tmp_path / "out"
    with start(
        "testbed.run", PROJECT / "scenarios/smoke.yaml", "--kernel", "vm", "--out", out, temporary=tmp_path
    ) as process:
        until(lambda: any("qemu" in line for line in survivors(tmp_path)))
        os.kill(process.pid, how)
        process.communicate()
    until(lambda: not any("qemu" in line for line in survivors(tmp_path)))
