"""What a user would take for bytes: a TCP connection over a veth pair of this machine's kernel.

`python -m benchmarks.raw_veth SIZE_BYTES` prints the seconds that the transfer took. Needs root.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from pyroute2.iproute import IPRoute

from testbed import namespaces

BLOCK_BYTES = 128 << 10
ADDRESSES = {"left": "10.0.0.1", "right": "10.0.0.2"}
PORT = 5201


def connect() -> None:
    """Two namespaces and the pair between them; MTU 9000, as in the scenarios."""
    for name in ADDRESSES:
        namespaces.create(name)
    with namespaces.entered("left"), IPRoute() as netlink:
        peer = {"ifname": "right", "mtu": 9000, "net_ns_fd": str(namespaces.NETNS_DIR / "right")}
        netlink.link("add", ifname="left", kind="veth", mtu=9000, peer=peer)
    for name, address in ADDRESSES.items():
        with namespaces.entered(name), IPRoute() as netlink:
            index = netlink.link_lookup(ifname=name)[0]
            netlink.addr("add", index=index, address=address, prefixlen=24)
            netlink.link("set", index=index, state="up")


def transfer(size_bytes: int) -> float:
    """Seconds from the first byte sent to the last received."""
    with namespaces.entered("right"):
        listener = socket.create_server((ADDRESSES["right"], PORT))
    if not (child := os.fork()):
        with namespaces.entered("left"):
            source = socket.create_connection((ADDRESSES["right"], PORT))
        block = memoryview(bytes(BLOCK_BYTES))
        left = size_bytes
        while left:
            left -= source.send(block[:left])
        os._exit(0)
    sink, _ = listener.accept()
    begun_s, left, sunk = time.monotonic(), size_bytes, bytearray(BLOCK_BYTES)
    while left:
        left -= sink.recv_into(sunk) or left
    took_s = time.monotonic() - begun_s
    os.waitpid(child, 0)
    return took_s


if __name__ == "__main__":
    namespaces.private_mounts()
    connect()
    print(transfer(int(sys.argv[1])))
