"""manifest.json: what a run was made of, and what its result depends on."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from testbed import record
from testbed.kernel.build import find_kernel
from testbed.plan import Plan
from testbed.rundir import RunDir

PACKAGES = ("fastapi", "httpx", "mininet", "msgspec", "numpy", "polars", "pyroute2", "uvicorn", "xxhash")


def write(
    run: RunDir,
    plan: Plan,
    *,
    kernel: str,
    clock: str,
    wall_s: float,
    tables: Mapping[str, pl.DataFrame],
    command: str,
) -> dict[str, Any]:
    """Write the manifest and return it; `record_digest` is equal for equal runs, byte for byte."""
    ends = tables["events"].filter(pl.col("kind") == "end")["t_s"].to_list()
    lasts = tables["links"]["t_s"].to_list()
    manifest = {
        "name": plan.name,
        "seed": plan.seed,
        "scale": plan.scale,
        "kernel": kernel,
        "kernel_sha256": _kernel_sha256() if kernel == "uml" else platform.release(),
        "clock": clock,
        "command": command,
        "virtual_s": (ends or lasts or [0.0])[-1],
        "wall_s": round(wall_s, 3),
        "record_digest": record.digest_tables(tables),
        "host_cpu": _cpu(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }
    run.manifest.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _kernel_sha256() -> str:
    path = find_kernel()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
