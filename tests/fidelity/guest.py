"""Boot a guest, let it measure, return what it found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.kernel import Needs
from testbed.kernel.uml import Uml

TESTS = Path(__file__).parents[1]
Results = dict[str, Any]
MEMORY_BYTES = 4 << 30
WALL_LIMIT_S = 600


def measure(run_dir: Path, asked: dict[str, Any], on_line: Callable[[str], None], seed: int = 1) -> Results:
    """`asked` is what guest_fidelity.py takes. Raises KernelError when the guest does not end well."""
    run_dir.mkdir(parents=True)
    for directory in ("kernel", "fidelity", "field_reports"):
        for script in sorted((TESTS / directory).glob("guest_*.py")):
            shutil.copy(script, run_dir)
    kernel = Uml(payload=("/run/testbed/run/guest_fidelity.py", json.dumps(asked)))
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        on_line(line)

    needs = Needs(memory_bytes=MEMORY_BYTES, clock="virtual", seed=seed, wall_limit_s=WALL_LIMIT_S)
    kernel.execute(run_dir, needs, hear)
    written = run_dir / "results.json"
    if not written.is_file():
        raise RuntimeError("\n".join(["the guest wrote no results", *said]))
    results: Results = json.loads(written.read_text(encoding="utf-8"))
    return results
