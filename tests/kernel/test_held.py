"""A network on the present kernel that is held, as others see it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed.kernel import Needs, enclosed, groups
from testbed.kernel.host import Host
from testbed.namespaces import NETNS_DIR
from testbed.rundir import RunDir

PAYLOAD = Path(__file__).with_name("host_payload.py")
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("whole_machine"),
    pytest.mark.skipif(os.geteuid() != 0 or groups.missing() != [], reason="needs root and control groups"),
]


def test_others_enter_it_by_the_process_it_names(tmp_path: Path) -> None:
    """What is said of a held network is enough for `nsenter`; when it is let go the run ends by itself."""
    run, links = RunDir(tmp_path / "run"), list[str]()
    run.path.mkdir()
    run.hold.touch()

    def hear(line: str) -> None:
        word, _, pid = line.partition(" ")
        if word != "@held":
            return
        place = f"/proc/{pid}/root{NETNS_DIR}/left"
        shown = subprocess.run(
            ["nsenter", f"--net={place}", "tc", "qdisc", "show", "dev", "left"],
            capture_output=True,
            text=True,
            check=True,
        )
        links.append(shown.stdout)
        run.hold.unlink()

    notes = enclosed.notes()
    Host(payload=(str(PAYLOAD),)).execute(run.path, Needs(1 << 30, "real", 1, 60), hear)
    (link,) = links
    assert link.startswith("qdisc htb 1: root")
    assert enclosed.notes() == notes
