"""Runs in a guest in place of testbed.inside: the same, while somebody changes the network.

Arguments: what to change, and the run directory.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from testbed import inside, moments, namespaces

TBF = "tbf rate 5gbit burst 1mb limit 10mb"
EVERY_SECOND = "pass random determ drop 2"
RATE = ("edge-a", "tc class change dev edge-a-wan parent 1: classid 1:1 htb rate {} burst 1mb cburst 1mb")
NETEM = ("wan", "tc qdisc change dev wan-b root handle 1: netem limit {} delay 5ms 0.1ms {}")
DEEDS: dict[str, list[tuple[float, tuple[str, str]]]] = {
    "nothing": [],
    "rate": [(0.3, (RATE[0], RATE[1].format("5gbit")))],
    "rate_between_readings": [
        (0.2, (RATE[0], RATE[1].format("5gbit"))),
        (0.6, (RATE[0], RATE[1].format("10gbit"))),
    ],
    "limit": [(0.3, (NETEM[0], NETEM[1].format("10", "")))],
    "loss": [(0.3, (NETEM[0], NETEM[1].format("100000", "loss 0.1%")))],
    "feed": [(0.3, ("sw-a", f"tc qdisc add dev sw-a-edge root {TBF}"))],
    "far_edge": [(0.3, ("edge-b", f"tc qdisc add dev edge-b-lan root {TBF}"))],
    "host": [(0.3, ("a1", f"tc qdisc add dev a1-eth0 root {TBF}"))],
    "receiver": [(0.3, ("b1", "tc qdisc add dev b1-eth0 root netem loss 0.1%"))],
    "ingress": [
        (0.3, ("edge-b", "tc qdisc add dev edge-b-wan clsact")),
        (0.31, ("edge-b", f"tc filter add dev edge-b-wan ingress matchall action {EVERY_SECOND}")),
        (0.4, ("edge-b", "tc qdisc del dev edge-b-wan clsact")),
    ],
    "mtu": [(0.3, ("edge-a", "ip link set edge-a-wan mtu 1500"))],
    "mtu_for_a_moment": [
        (0.3, ("b1", "ip link set b1-eth0 mtu 1500")),
        (0.35, ("b1", "ip link set b1-eth0 mtu 9000")),
    ],
    "delay_for_a_moment": [
        (0.2, (NETEM[0], NETEM[1].format("100000", "").replace("5ms", "50ms"))),
        (0.6, (NETEM[0], NETEM[1].format("100000", ""))),
    ],
}
"""Seconds after t0, and the command in which namespace."""


async def meddle(t0_ns: int, deeds: list[tuple[float, tuple[str, str]]]) -> None:
    """Do it all, each at its time."""
    for at_s, (namespace, command) in deeds:
        await moments.until(t0_ns + round(at_s * 1e9))
        with namespaces.entered(namespace):
            subprocess.run(command.split(), check=True)  # noqa: ASYNC221 - quick


if __name__ == "__main__":
    wanted = DEEDS[sys.argv.pop(1)]
    timeline = inside.Run._timeline

    async def both(run: inside.Run, t0_ns: int) -> None:
        """The timeline of the plan, and the other one."""
        await asyncio.gather(timeline(run, t0_ns), meddle(t0_ns, wanted))

    inside.Run._timeline = both  # type: ignore[method-assign]
    inside.main()
