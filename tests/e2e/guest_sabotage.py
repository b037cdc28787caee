"""Runs in a guest in place of testbed.inside: the same, while somebody changes the link by `tc`.

Arguments: what to change, and the run directory.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from testbed import inside, namespaces

RATE = ("edge-a", "class change dev edge-a-wan parent 1: classid 1:1 htb rate {} burst 1mb cburst 1mb")
NETEM = ("wan", "qdisc change dev wan-b root handle 1: netem limit {} delay 5ms 0.1ms {}")
DEEDS: dict[str, list[tuple[float, tuple[str, str]]]] = {
    "nothing": [],
    "rate": [(0.3, (RATE[0], RATE[1].format("5gbit")))],
    "rate_between_readings": [
        (0.2, (RATE[0], RATE[1].format("5gbit"))),
        (0.6, (RATE[0], RATE[1].format("10gbit"))),
    ],
    "limit": [(0.3, (NETEM[0], NETEM[1].format("10", "")))],
    "loss": [(0.3, (NETEM[0], NETEM[1].format("100000", "loss 0.1%")))],
}
"""Seconds after t0, and what `tc` is told in which namespace."""


async def meddle(t0_ns: int, deeds: list[tuple[float, tuple[str, str]]]) -> None:
    """Do it all, each at its time."""
    for at_s, (namespace, command) in deeds:
        await inside.until(t0_ns + round(at_s * 1e9))
        with namespaces.entered(namespace):
            subprocess.run(["tc", *command.split()], check=True)  # noqa: ASYNC221 - quick


if __name__ == "__main__":
    wanted = DEEDS[sys.argv.pop(1)]
    timeline = inside.Run._timeline

    async def both(run: inside.Run, t0_ns: int) -> None:
        """The timeline of the plan, and the other one."""
        await asyncio.gather(timeline(run, t0_ns), meddle(t0_ns, wanted))

    inside.Run._timeline = both  # type: ignore[method-assign]
    inside.main()
