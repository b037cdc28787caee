"""The Vagrantfile, as far as it can be looked at without a VM."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.commands import PROJECT


@pytest.mark.skipif(shutil.which("vagrant") is None, reason="no vagrant: apt-get install vagrant")
@pytest.mark.parametrize(
    "more", [{}, {"TESTBED_BOX": "/nowhere/testbed-libvirt.box", "TESTBED_DRIVER": "qemu"}]
)
def test_vagrant_finds_no_fault_with_the_vagrantfile(more: dict[str, str], tmp_path: Path) -> None:
    """`vagrant validate` passes, with the box that is pinned and with one of our own."""
    ended = subprocess.run(
        ["vagrant", "validate", "--ignore-provider"],
        cwd=PROJECT,
        env={
            **os.environ,
            "VAGRANT_HOME": str(tmp_path / "home"),
            "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot"),
            **more,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
