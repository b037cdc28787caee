"""Runs in a guest: faults are done to programs that note what becomes of them.

Arguments: the run directory. Says nothing of right and wrong; test_faults.py does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from guest_bench import Bench, Results

from testbed import namespaces, sysctl
from testbed.containers import Containers, Recipe
from testbed.faults import Faults
from testbed.faults.freezer import Freezer
from testbed.faults.ports import RANGE
from testbed.journal import Journal
from testbed.plan import Fault

RUN = Path(sys.argv[1])
S = 10**9
PORT = 7000
FAULTS = (
    Fault(t_ns=1 * S, kind="pause", target="decode-1", until_ns=2 * S),
    Fault(t_ns=1 * S, kind="slow", target="prfaas-1", until_ns=3 * S, amount=4.0),
    Fault(t_ns=1 * S, kind="kill", target="prfaas-2"),
    Fault(t_ns=1 * S, kind="exhaust_ports", target="a1", until_ns=2 * S),
    Fault(t_ns=3 * S, kind="restart", target="decode-1", until_ns=3 * S + S // 2),
    Fault(t_ns=4 * S, kind="corrupt", target="prfaas-1", amount=2),
    Fault(t_ns=5 * S, kind="fill", target="decode-1", until_ns=5 * S + S // 2),
)
STAND_IN = b"""
import sys, threading, time

journal = open(f"/run/journal/{sys.argv[1]}.txt", "a", buffering=1)
hear = lambda: [print("heard", line.strip(), time.monotonic_ns(), file=journal) for line in sys.stdin]
threading.Thread(target=hear, daemon=True).start()
print("ready", flush=True)
while True:
    print("tick", time.monotonic_ns(), file=journal)
    time.sleep(0.01)
"""


class StandIns(Containers):
    """Containers of a small program in place of an agent, which is its own configuration file."""

    def _specification(self, recipe: Recipe) -> dict[str, Any]:
        specification = super()._specification(recipe)
        command = [sys.executable, "-S", f"/run/agents/{recipe.name}.json", recipe.name]
        specification["process"]["args"] = command
        return specification


def connected(address: str) -> str:
    """What comes of an attempt to connect from a1."""
    with namespaces.entered("a1"):
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.settimeout(1)
    try:
        one.connect((address, PORT))
    except OSError as error:
        return type(error).__name__ if error.errno is None else os.strerror(error.errno)
    finally:
        one.close()
    return "connected"


def port_range() -> list[str]:
    with namespaces.entered("a1"):
        return Path(RANGE).read_text(encoding="ascii").split()


async def at_its_time(t0_ns: int, t_s: float, what: Coroutine[Any, Any, Any]) -> Any:
    await asyncio.sleep(t_s - (time.monotonic_ns() - t0_ns) / 1e9)
    return await what


async def faults(bench: Bench) -> Results:
    """All kinds of faults, and connections from a1 before, during and after it has no ports."""
    journal = RUN / "journal"
    journal.mkdir()
    containers = StandIns(Path("/run/testbed/work"), journal)
    places = {"prfaas-1": "a1", "prfaas-2": "a1", "decode-1": "b1"}
    started = [await containers.start(Recipe(n, "any", h, 1 << 28, STAND_IN)) for n, h in places.items()]
    await containers.all_ready(started)
    address = bench.network.address("b1")
    with namespaces.entered("b1"):
        server = socket.create_server((address, PORT))
    with namespaces.entered("a1"):
        standing = socket.create_connection((address, PORT))
    served = server.accept()[0]

    async def look() -> Results:
        standing.send(b"still there")
        await asyncio.sleep(0.1)
        return {"new": connected(address), "standing": served.recv(64).decode(), "range": port_range()}

    t0_ns = time.monotonic_ns()
    jobs = Faults(FAULTS, containers, Journal(RUN / "bench.jsonl")).jobs(t0_ns)
    looks = [at_its_time(t0_ns, t_s, look()) for t_s in (0.5, 1.5, 2.5)]
    found = await asyncio.gather(*looks, *jobs)
    await asyncio.sleep(0.1)
    return {"t0_ns": t0_ns, "looks": found[:3], **await ends(containers)}


async def ends(containers: StandIns) -> Results:
    """An agent that dies of itself, and a container that is frozen as all are put away."""
    groups = Path("/sys/fs/cgroup") / f"testbed-{os.getpid()}"
    before = sorted(path.name for path in groups.iterdir() if path.is_dir())
    os.kill(containers.running("prfaas-1").pid, signal.SIGKILL)
    death = await asyncio.wait_for(containers.death(), 5)
    await Freezer("decode-1", containers.running("decode-1").pid).freeze()
    start_ns = time.monotonic_ns()
    await asyncio.wait_for(containers.close(), 5)
    after = sorted(path.name for path in groups.iterdir() if path.is_dir()) if groups.is_dir() else []
    return {
        "death": str(death),
        "closing_ns": time.monotonic_ns() - start_ns,
        "groups": [before, after],
    }


def main() -> None:
    namespaces.private_mounts()
    with sysctl.for_kernel(1 << 24, 8):
        results = asyncio.run(faults(Bench(9000)))
    (RUN / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
