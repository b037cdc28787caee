"""Run directories for tests of the control plane: small ones by the thousand, and one with a record."""

from __future__ import annotations

import json
import os
from pathlib import Path

from testbed.carriers import Carrier
from testbed.rundir import RunDir

BASE_S = 1_700_000_000


def write_small(
    runs: Path,
    name: str = "congestion",
    seed: int = 7,
    *,
    status: str | None = "PASS",
    measured: float = 0.4,
    note: str = "6 expectations held",
    at_s: int = 0,
    command: str = "python -m testbed.run scenarios/congestion.yaml",
) -> RunDir:
    """A judged run without journal and record; `status` None: it has no verdict."""
    run = RunDir(runs / f"{name}-{seed}")
    run.path.mkdir(parents=True)
    head = {
        "name": name,
        "question": f"What of {name}?",
        "seed": seed,
        "scale": 1.0,
        "duration_ns": 120 * 10**9,
    }
    run.plan.write_text(json.dumps({"version": 1, **head, "requests": []}))
    os.utime(run.plan, (BASE_S + at_s, BASE_S + at_s))
    manifest = {"virtual_s": 152.0, "wall_s": 49.4, "record_digest": f"{seed:064x}", "clock": "virtual"}
    run.manifest.write_text(
        json.dumps({**manifest, "kernel": "uml", "scenario_sha256": "ab", "command": command})
    )
    if status is not None:
        write_verdict(run, status, measured, note)
    return run


def write_verdict(run: RunDir, status: str, measured: float = 0.4, note: str = "") -> None:
    result = {
        "name": "threshold crosses", "kind": "reaction", "metric": "threshold_tokens", "status": status,
        "measured": measured, "unit": "s", "bound": "within 3 s", "margin": 3 - measured,
        "sentence": "it did", "line": 12,
    }  # fmt: skip
    text = json.dumps({"status": status, "results": [result], "trust": [], "note": note})
    run.verdict.write_text(text)


def nobody() -> Carrier:
    """A process that has ended, if it ever was."""
    return Carrier(pid=2**22 - 1, started_ticks=1, boot="none", since_s=0.0)
