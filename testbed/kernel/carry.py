"""How much this machine's own kernel carries, raw: `python -m testbed.kernel.carry` prints it, in bit/s.

One TCP connection for half a second, through as many namespaces in a row as the longest path of a topology
has, without shaping. It is root's, and has mounts and namespaces of its own, which go with it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

from testbed import namespaces
from testbed.errors import MachineError, Problem

SPAN_S: Final = 0.5
NODES: Final = ("h0", "h1", "h2", "h3", "h4", "h5", "h6")
"""As many as host, switch, edge, WAN, edge, switch, host; here the inner ones are routers."""
PIECE_BYTES: Final = 1 << 20
PORT: Final = 5001
PATIENCE_S: Final = 20.0


def carries_bps() -> int:
    """What a path carries now, measured by a process of its own.

    Raises MachineError when it cannot be measured.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "testbed.kernel.carry"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        return int(ended.stdout)
    except subprocess.TimeoutExpired:
        said = f"it took more than {PATIENCE_S:g} s"
    except ValueError:
        said = " | ".join(ended.stderr.strip().splitlines()[-2:]) or f"status {ended.returncode}"
    raise MachineError(
        Problem(
            "--kernel host",
            f"what this machine carries could not be measured: {said}",
            next_step="--kernel uml, whose virtual clock carries any rate",
        )
    )


def measure_bps(span_s: float = SPAN_S) -> int:
    """In this process, which keeps a mount namespace of its own."""
    namespaces.private_mounts()
    _build()
    first, last = NODES[0], NODES[-1]
    with namespaces.entered(last):
        listener = socket.create_server((_address(len(NODES) - 1, 2), PORT))
    with namespaces.entered(first):
        sender = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
    receiver, _ = listener.accept()
    with listener, sender, receiver:
        threading.Thread(target=_send, args=(sender,), daemon=True).start()
        room = bytearray(PIECE_BYTES)
        receiver.settimeout(PATIENCE_S)
        receiver.recv_into(room)
        begin_s, got_bytes = time.monotonic(), 0
        while (now_s := time.monotonic()) < begin_s + span_s:
            got_bytes += receiver.recv_into(room)
        return round(got_bytes * 8 / (now_s - begin_s))


def _send(sender: socket.socket) -> None:
    piece = bytes(PIECE_BYTES)
    try:
        while True:
            sender.sendall(piece)
    except OSError:  # the other end has what it wants
        return


def _build() -> None:
    """A chain of routers: each link has a network of its own, 10.9.<number>.0/24."""
    for name in NODES:
        namespaces.create(name)
    for number, (left, right) in enumerate(pairwise(NODES), start=1):
        _ip(left, f"link add fore type veth peer name back netns {right}")
        _ip(left, f"addr add {_address(number, 1)}/24 dev fore", "link set fore up")
        _ip(right, f"addr add {_address(number, 2)}/24 dev back", "link set back up")
    for number, name in enumerate(NODES):
        with namespaces.entered(name):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
        if number < len(NODES) - 2:
            _ip(name, f"route add 10.9.{len(NODES) - 1}.0/24 via {_address(number + 1, 2)}")
        if number > 1:
            _ip(name, f"route add 10.9.1.0/24 via {_address(number, 1)}")


def _address(link: int, end: int) -> str:
    return f"10.9.{link}.{end}"


def _ip(name: str, *commands: str) -> None:
    """In the namespace `name`."""
    lines = "".join(f"{command}\n" for command in commands)
    subprocess.run(["ip", "-n", name, "-batch", "-"], input=lines, text=True, check=True)


def main() -> None:
    """Print the rate."""
    print(measure_bps())


if __name__ == "__main__":
    main()
