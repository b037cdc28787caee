"""Runs in a guest: sets fields of the link, one at a time, and writes what changed to results.json.

Arguments: a group of checks and the run directory. Says nothing of right and wrong; the tests compare with
arithmetic.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import guest_delay_fields as delay
import guest_loss_fields as loss
import guest_path_fields as path
import guest_rate_fields as rate
from guest_bench import WINDOW_BYTES, Bench, Results
from guest_states import extremes, read_backs

from testbed import namespaces, sysctl

CONNECTIONS = 32
MTU_BYTES = 1500
Check = Callable[[Bench], Awaitable[Results]]
GROUPS: dict[str, tuple[Check, ...]] = {
    "delay": (read_backs, extremes, *delay.CHECKS, *loss.CHECKS),
    "rate": (*rate.CHECKS, *path.CHECKS),
}


async def main(group: str, run: Path) -> None:
    """Do the checks of a group, one after the other, on one network."""
    bench = Bench(MTU_BYTES, ecn=True)
    results: Results = {}
    for check in GROUPS[group]:
        results[check.__name__] = await check(bench)
        print(f"{check.__name__}: done after {time.monotonic():.1f} virtual s", flush=True)
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, CONNECTIONS):
        asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
