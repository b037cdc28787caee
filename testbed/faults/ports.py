"""A host without local ports: connections that it has stay, it cannot open any (EADDRNOTAVAIL)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from testbed import namespaces
from testbed.errors import Problem, ShapingError

RANGE: Final = "/proc/sys/net/ipv4/ip_local_port_range"
LEFT: Final = (65_534, 65_535)
"""Above the range that Linux starts with, so no connection has one of them; of an even and an odd one, as the
kernel likes it.
"""


@contextmanager
def exhausted(host: str) -> Iterator[None]:
    """Two ports are left for whoever connects, and somebody else has bound them.

    Were they free, connections to each destination could still be opened, as a port may serve several
    (kernel: net/ipv4/inet_hashtables.c, `__inet_hash_connect`, which leaves out ports that somebody bound).
    """
    with ExitStack() as held:
        with namespaces.entered(host):
            before = _read()
            for port in LEFT:
                one = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                one.bind(("", port))
            _set(host, " ".join(map(str, LEFT)))
        try:
            yield
        finally:
            with namespaces.entered(host):
                _set(host, before)


def _read() -> str:
    file = os.open(RANGE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return " ".join(os.pread(file, 64, 0).decode().split())
    finally:
        os.close(file)


def _set(host: str, value: str) -> None:
    """Set the present namespace's range and read it back; ShapingError when the kernel has another."""
    file = os.open(RANGE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)
    found = _read()
    if found != value:
        raise ShapingError(Problem(f"local ports of {host}", f"kernel says {found!r}", value))
