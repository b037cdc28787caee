"""Whether anything has come or gone at the devices of a node, by one system call."""

from __future__ import annotations

import os

from testbed import namespaces

_PAGE_BYTES = 4096
"""As much as the kernel prints at once: some thirty devices."""


class Devices:
    """All devices of a node but the last of very many."""

    def __init__(self, namespace: str) -> None:
        with namespaces.entered(namespace):
            self._file = os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)

    def counted(self) -> bytes:
        """Packets and bytes of each, both ways, as text: the same as before if nothing has moved."""
        return os.pread(self._file, _PAGE_BYTES, 0)
