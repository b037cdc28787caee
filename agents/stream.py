"""One TCP connection whose bytes are handled as they come.

A task that waits for bytes costs one turn of the event loop more, and each turn is a system call. asyncio
reads into 256 KiB of fresh memory otherwise, which are three system calls more and two pages.
"""

from __future__ import annotations

import asyncio
from typing import cast

_READ_BYTES = 1 << 16
_BUFFER = memoryview(bytearray(_READ_BYTES))


class Connection(asyncio.BufferedProtocol):
    """Either end; whoever inherits from it says what to do with what is `received`."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio does not know either
        """All connections share one: what is in it has been handled before the loop reads again."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have been read."""
        self.received(bytes(_BUFFER[:nbytes]))

    def received(self, data: bytes) -> None:
        """Handle what has come in."""
        raise NotImplementedError
