"""Runs on the host's kernel: two namespaces joined by a shaped veth pair, and two containers that do nothing.

Everything of a run but netem, which not every kernel has. It stays until it is ended, or let go where it is
held. Arguments: the run directory.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from testbed import holding, namespaces, sysctl, wiring
from testbed.containers import Containers, Recipe
from testbed.inside import WORK
from testbed.rundir import RunDir

STAND_IN = b"import time\nprint('ready', flush=True)\ntime.sleep(300)\n"
TC = ("nsenter", f"--net={namespaces.NETNS_DIR}/left", "tc", "qdisc", "add", "dev", "left")


class StandIns(Containers):
    """Containers of a small program in place of an agent, which is its own configuration file."""

    def _specification(self, recipe: Recipe) -> dict[str, Any]:
        specification = super()._specification(recipe)
        specification["process"]["args"] = [sys.executable, "-S", f"/run/agents/{recipe.name}.json"]
        return specification


async def stay(run: RunDir) -> None:
    containers = StandIns(WORK, run.journal, shared_bytes=1 << 20)
    try:
        started = [
            await containers.start(Recipe(name, "any", name, 1 << 27, STAND_IN)) for name in ("left", "right")
        ]
        await containers.all_ready(started)
        print("up", flush=True)
        if run.hold.exists():
            await holding.held(run)
        else:
            await asyncio.sleep(300)
    finally:
        await containers.close()


def main() -> None:
    run = RunDir(Path(sys.argv[1]))
    run.journal.mkdir()
    namespaces.private_mounts(WORK)
    with sysctl.for_kernel(1 << 24, 8):
        for name in ("left", "right"):
            namespaces.create(name)
        wires = wiring.Wires("left")
        there = os.open(namespaces.NETNS_DIR / "right", os.O_RDONLY | os.O_CLOEXEC)
        wires.change(wiring.veth("left", "right", there, 1500))
        subprocess.run([*TC, "root", "handle", "1:", "htb", "default", "1"], check=True)
        asyncio.run(stay(run))


if __name__ == "__main__":
    main()
