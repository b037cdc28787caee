"""Runs in a guest: KV from one datacenter to the other, by the agents' sender and receiver, a process each.

`guest_payload.py PAYLOAD SIZE,SIZE,... RUN_DIR` says `@begin`, and `@sent I` when transfer I has been
acknowledged; one more follows, so that the guest still lives when its last word is heard. The link is that of
scenarios/congestion.yaml before its trouble.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import cast

from agents import config
from agents.transport.receiver import Receiver, ReceiverSettings
from agents.transport.sender import Sender, SenderSettings
from testbed import namespaces, sysctl
from testbed.plan import DIRECTIONS, LinkState
from testbed.shaping import distributions
from testbed.shaping.link import SUPER_PACKET_BYTES, WanDirection
from testbed.topology import Network
from topologies import TOPOLOGIES

MTU_BYTES, WINDOW_BYTES, CONNECTIONS, CHUNK_BYTES = 9000, 512 << 20, 4, 32 << 20
GROUP_BYTES = 256 << 20
WARM_UP_BYTES = 512 << 20
LINK = LinkState(rate_bps=100 * 10**9, buffer_bytes=125 * 10**6, delay_ns=5_750_000, jitter_ns=100_000)
SOURCE, SINK = "a1", "b1"


async def receive(address: str) -> None:
    """Take whatever comes, for as long as the process lives."""
    receiver = Receiver(
        ReceiverSettings(),
        lambda arrival: receiver.release(arrival.number),
        lambda _arrival, cause: print(cause, flush=True),
    )
    receiver.listen((address, config.KV_PORT), "cubic")
    config.say_ready()
    await asyncio.Event().wait()


async def send(address: str, payload: config.Payload, sizes: list[int]) -> None:
    """One transfer after the other; the first opens the windows, neither it nor the last is counted."""
    sender = Sender(
        SenderSettings(
            name=SOURCE,
            connections=CONNECTIONS,
            chunk_bytes=CHUNK_BYTES,
            payload=payload,
        )
    )
    sender.add_peer(SINK, (address, config.KV_PORT), congestion_control="cubic")
    await sender.connect(SINK)
    for number, size in enumerate([WARM_UP_BYTES, *sizes, WARM_UP_BYTES]):
        groups = [min(GROUP_BYTES, size - start) for start in range(0, size, GROUP_BYTES)]
        transfer = sender.begin(number, SINK, groups)
        for layer, group in enumerate(groups):
            sender.push(transfer, layer, group)
        await transfer.over
        print(f"@sent {number}" if number else "@begin", flush=True)


async def shape(network: Network) -> None:
    """Set both directions."""
    topology = TOPOLOGIES["two_dc"]
    for name in DIRECTIONS:
        direction = WanDirection(
            name,
            rate_stage=topology.wan[name][0],
            delay_stage=topology.wan[name][1],
            feed=topology.feed[name],
            largest_packet_bytes=SUPER_PACKET_BYTES,
            mtu_bytes=MTU_BYTES,
            hosts=network.hosts,
            delay_tables={curve: distributions.table(curve) for curve in distributions.CURVES},
            offload="auto",
        )
        await direction.set(LINK, 1)


def main() -> None:
    """Build, shape, start the receiver, send."""
    payload = cast("config.Payload", sys.argv[1])
    sizes = [int(size) for size in sys.argv[2].split(",")]
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, CONNECTIONS):
        network = Network(
            "two_dc",
            {"prefill_hosts": 1, "pd_hosts": 1},
            mtu_bytes=MTU_BYTES,
            window_bytes=WINDOW_BYTES,
            super_packet_bytes=SUPER_PACKET_BYTES,
        )
        asyncio.run(shape(network))
        address = network.address(SINK)
        with namespaces.entered(SINK):
            receiver = subprocess.Popen(
                [sys.executable, __file__, "receive", address], stdout=subprocess.PIPE, text=True
            )
        assert receiver.stdout is not None
        receiver.stdout.readline()
        with namespaces.entered(SOURCE):
            asyncio.run(send(address, payload, sizes))
        receiver.kill()


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        asyncio.run(receive(sys.argv[2]))
    else:
        main()
