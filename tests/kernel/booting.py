"""A guest that runs one of the scripts beside this file, for tests only."""

from __future__ import annotations

import shutil
from pathlib import Path

from testbed.kernel import Needs
from testbed.kernel.uml import Uml


def run_in_guest(directory: Path, script: str, wall_limit_s: int) -> None:
    """Boot, run `script`, and end; it leaves results.json in `directory`, which is made."""
    directory.mkdir()
    for file in sorted(Path(__file__).parent.glob("guest_*.py")):
        shutil.copy(file, directory)
    said: list[str] = []
    needs = Needs(memory_bytes=3 << 30, clock="virtual", seed=1, wall_limit_s=wall_limit_s)
    Uml(payload=(f"/run/testbed/run/{script}",)).execute(directory, needs, said.append)
    assert (directory / "results.json").is_file(), "\n".join(said)
