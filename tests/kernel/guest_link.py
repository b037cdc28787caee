"""Runs in a guest: sets links, loads them, and writes what it measured to results.json.

Arguments: a group of checks, the seed of the dice, and the run directory. Says nothing of right and wrong;
test_link.py compares with arithmetic.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import guest_clean as clean
import guest_trouble as trouble
from guest_bench import WINDOW_BYTES, Bench, Results

from testbed import namespaces, sysctl

CONNECTIONS = 32
Check = Callable[[Bench], Awaitable[Results]]
CLEAN: tuple[Check, ...] = (
    clean.delays,
    clean.rates,
    clean.buffers,
    clean.rate_steps,
    clean.parsers,
    clean.read_back,
    clean.clocks,
)
TROUBLE: tuple[Check, ...] = (
    trouble.random_loss,
    trouble.bursts_of_loss,
    trouble.jitter,
    trouble.partition,
)


async def main(group: str, seed: int, run: Path) -> None:
    """Do the checks of a group, one after the other, on one network."""
    bench = Bench(9000 if group == "clean" else 1500)
    results: Results = {}
    if group == "seeded":
        results["seeded"] = await trouble.seeded(bench, seed)
    else:
        for check in CLEAN if group == "clean" else TROUBLE:
            results[check.__name__] = await check(bench)
            print(f"{check.__name__}: done after {time.monotonic():.1f} virtual s", flush=True)
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, CONNECTIONS):
        asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
