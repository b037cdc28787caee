"""Control groups of the host, in the three ways in which a machine may have them.

v2       one hierarchy at /sys/fs/cgroup
v1       a hierarchy for each controller, at /sys/fs/cgroup/<controller>
hybrid   v1, and beside it a hierarchy of version 2, at /sys/fs/cgroup/unified, which runs do not see

Kernel: Documentation/admin-guide/cgroup-v1, cgroup-v2.rst. A run's groups are called after its label, at the
top of each hierarchy: there crun puts the agents, and there they are looked for after a crash.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path("/sys/fs/cgroup")
BESIDE: Final = "unified"
LABEL: Final = re.compile(r"testbed-([1-9][0-9]*)")
"""Of everything that belongs to one run on the host's kernel; the number is that of the process around it."""
NEEDED: Final = ("memory", "pids")
"""Controllers of the agents' limits."""
GONE_S, STEP_S = 3.0, 0.01

Layout = Literal["v1", "v2", "hybrid", "none"]


def layout(root: Path = ROOT) -> Layout:
    """How this machine has its control groups."""
    if (root / "cgroup.controllers").is_file():
        return "v2"
    if not any(hierarchy.name != BESIDE for hierarchy in hierarchies(root)):
        return "none"
    return "hybrid" if (root / BESIDE / "cgroup.controllers").is_file() else "v1"


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The tops of all mounted hierarchies."""
    if (root / "cgroup.controllers").is_file():
        return [root]
    try:
        found = [path for path in sorted(root.iterdir()) if (path / "cgroup.procs").is_file()]
    except OSError:
        return []
    return list({path.resolve(): path for path in found if not path.is_symlink()}.values())


def missing(root: Path = ROOT) -> list[str]:
    """What a run needs and these groups lack, each by its name; the way to stop an agent is one of them."""
    kind = layout(root)
    if kind == "none":
        return ["control groups"]
    if kind == "v2":
        offered = set((root / "cgroup.controllers").read_text(encoding="ascii").split())
    else:
        offered = {name for path in hierarchies(root) for name in path.name.split(",")}
    needed = NEEDED if kind == "v2" else (*NEEDED, "freezer")
    return [name for name in needed if name not in offered]


def withheld(root: Path = ROOT) -> list[str]:
    """What a run needs and groups in `root` cannot be given, as in the part of version 2 that containers see.

    Only the top of all passes controllers on while it has processes of its own: cgroup-v2.rst, "No Internal
    Process Constraint". It is the one without a type.
    """
    if layout(root) != "v2" or not (root / "cgroup.type").is_file():
        return []
    if not (root / "cgroup.procs").read_text(encoding="ascii").split():
        return []
    passed_on = set((root / "cgroup.subtree_control").read_text(encoding="ascii").split())
    return [name for name in NEEDED if name not in passed_on]


def of_label(label: str, root: Path = ROOT) -> list[Path]:
    """A run's groups, one in each hierarchy that has it."""
    return [path for top in hierarchies(root) if (path := top / label).is_dir()]


def labels(root: Path = ROOT) -> list[str]:
    """Of all runs that have groups."""
    found = {path.name for top in hierarchies(root) for path in top.glob("testbed-*") if path.is_dir()}
    return sorted(name for name in found if LABEL.fullmatch(name))


def members(label: str, root: Path = ROOT) -> set[int]:
    """The processes in a run's groups."""
    found: set[int] = set()
    for group in of_label(label, root):
        for one in _below(group):
            with suppress(OSError, ValueError):
                found |= {int(pid) for pid in (one / "cgroup.procs").read_text(encoding="ascii").split()}
    return found - {0}


def remove(label: str, root: Path = ROOT) -> bool:
    """End all that is in a run's groups, and remove them; whether they are gone."""
    deadline_s = time.monotonic() + GONE_S
    while of_label(label, root):
        for pid in members(label, root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in of_label(label, root):
            for one in _below(group):
                with suppress(OSError):  # frozen by version 1, it would not even die
                    if (one / "freezer.state").is_file():
                        (one / "freezer.state").write_text("THAWED", encoding="ascii")
                with suppress(OSError):
                    one.rmdir()
        if time.monotonic() > deadline_s:
            return not of_label(label, root)
        time.sleep(STEP_S)
    return True


def _below(group: Path) -> Iterator[Path]:
    """The group and all in it, the deepest first."""
    for place, _, _ in os.walk(group, topdown=False):
        yield Path(place)
