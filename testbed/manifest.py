"""manifest.json: what a run was made of, and all that its record depends on (docs/determinism.md)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl

from testbed import tables as record
from testbed.capture.tcpdump import PATH
from testbed.kernel import digest
from testbed.kernel.image import PACKAGES as OWN_PACKAGES
from testbed.kernel.image import PROJECT
from testbed.plan import Plan
from testbed.rundir import RunDir

PACKAGES = ("fastapi", "httptools", "mininet", "msgspec", "numpy", "polars", "pyroute2", "uvicorn", "xxhash")
"""Named with their versions; the digest is over all that are installed."""
PROGRAMS = ("crun", "ip", "mnexec", "mount", "sh", "tcpdump")
"""What a run starts, of this machine's own."""
SHORT = 16
"""Hexadecimal digits of a digest that only has to tell two machines apart."""


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
        "clock": clock,
        "command": command,
        "virtual_s": max(0.0, (ends or lasts or [0.0])[-1]),  # links are watched before t0, too
        "wall_s": round(wall_s, 3),
        "record_digest": record.digest_tables(tables),
        "scenario_sha256": _of_file(run.scenario),
        "plan_sha256": _of_file(run.plan),
        "kernel": kernel,
        **_guest(run),
        **(_host() if kernel == "host" else {}),
        **_policy(plan),
        "version": _version(),
        **_commit(),
        "host_cpu": cpu("model name"),
        "host_cpu_stepping": "/".join(cpu(name) for name in ("cpu family", "model", "stepping")),
        "host_cpu_flags": _short(cpu("flags").split()),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "python": sys.version,
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "packages": {name: version(name) for name in (*PACKAGES, *_computing(plan))},
        "packages_digest": _short(_installed()),
        "stale_byte_code": _stale(),
        "programs": dict(_programs()),
    }
    run.manifest.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _policy(plan: Plan) -> dict[str, Any]:
    """What a policy that does not come with the testbed was made of."""
    policy = plan.policy
    if policy.log is not None:
        return {"policy": {"name": policy.name, "log_sha256": policy.log_sha256}}
    if not policy.files:
        return {}
    files = {path: file.sha256 for path, file in policy.files.items()}
    return {"policy": {"name": policy.name, "directory": policy.directory, "sha256": files}}


def _computing(plan: Plan) -> tuple[str, ...]:
    """What real kernels are made of."""
    return ("torch",) if plan.compute == "real" else ()


def _guest(run: RunDir) -> dict[str, Any]:
    """What the guest was when it booted; of the host's kernel, what it was found to carry."""
    noted: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        noted = json.loads(run.guest.read_bytes())
    return noted


def _host() -> dict[str, Any]:
    """The same of a run in this machine's kernel and straight from the checkout."""
    return {"kernel_name": platform.release(), "project_sha256": digest.of_project(PROJECT)}


def _of_file(path: Path) -> str:
    return digest.of_file(path) if path.is_file() else ""


def _short(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:SHORT]


def _version() -> str:
    """Of the project, as it lies here or as it was installed."""
    with suppress(OSError, KeyError):
        return str(
            tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        )
    with suppress(PackageNotFoundError):
        return version("testbed")
    return ""


def _commit() -> dict[str, Any]:
    """Where the checkout stands; nothing where it is none, or git does not trust its owner."""
    if not (PROJECT / ".git").exists() or shutil.which("git") is None:
        return {}
    status = ["git", "--no-optional-locks", "-C", str(PROJECT), "status", "--porcelain=v2", "--branch"]
    ended = subprocess.run(
        [*status, "--untracked-files=all", "--", *OWN_PACKAGES],
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    return {"commit": commits[0], "changed_files": sum(line[0] != "#" for line in lines)} if commits else {}


def cpu(name: str) -> str:
    """A line of the first processor in /proc/cpuinfo; empty where this kind of processor has none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.partition(":")[0].strip() == name:
            return line.partition(":")[2].strip()
    return ""


def _installed() -> list[str]:
    """Names and versions of all installed packages, from the names of their directories."""
    return sorted(path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))


def _stale() -> list[str]:
    """Installed packages that Python compiles anew at each start, which takes virtual time.

    Looked at is the first module of those that this process has loaded. Format of byte code: PEP 552.
    """
    site = sysconfig.get_path("purelib")
    stale = []
    for name, module in sorted(sys.modules.items()):
        source, cached = getattr(module, "__file__", None), getattr(module, "__cached__", None)
        if "." in name or not source or not cached or not source.startswith(site):
            continue
        status = Path(source).stat()
        with suppress(OSError), Path(cached).open("rb") as file:
            flags, modified_s, size = struct.unpack("<4xLLL", file.read(16))
            if flags or (modified_s, size) == (int(status.st_mtime) % 2**32, status.st_size):
                continue
        stale.append(name)
    return stale


def _programs() -> Iterable[tuple[str, str]]:
    """The programs that a run starts, and what they contain; those that are missing are left out."""
    found = {name: shutil.which(name, path=PATH) for name in PROGRAMS}
    found["python"] = os.path.realpath(sys.executable)
    return [(name, digest.of_file(Path(path))[:SHORT]) for name, path in sorted(found.items()) if path]
