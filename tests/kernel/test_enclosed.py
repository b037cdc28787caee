"""What encloses a run on the present kernel, and how it passes on that the run is to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.kernel import groups

PROJECT = Path(__file__).resolve().parents[2]
ENCLOSED = """
import sys
from pathlib import Path
from testbed.kernel import enclosed
enclosed.NOTES = Path(sys.argv.pop(1))
enclosed.sysctl.put_back = lambda _: None
enclosed.main()
"""
"""With notes of its own, and no settings: other tests look for those of all runs."""
COMMAND = """
import time
try:
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("asked to end", flush=True)
"""
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0 or groups.missing() != [], reason="needs root and control groups"),
]


@pytest.mark.parametrize("heard", ["default", "ignore"])
def test_a_run_in_the_background_is_asked_to_end_as_well(heard: str, tmp_path: Path) -> None:
    """A shell starts what it starts in the background deaf to SIGINT, by which a run is asked."""
    with subprocess.Popen(
        [
            "env",
            f"--{heard}-signal=INT",
            sys.executable,
            "-c",
            ENCLOSED,
            tmp_path,
            sys.executable,
            "-c",
            COMMAND,
        ],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "asked to end\n"
    assert process.returncode == 0
