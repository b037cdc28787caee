"""Messages between the router and its agents: one JSON object a line over one TCP connection each.

router -> prefill   prefill(id, tokens, decode)                     compute, then send the KV to `decode`
router -> decode    expect(id, tokens, kv_bytes, output_tokens)     KV will come; then generate
                    cancel(id)                                      forget the request and its KV
prefill -> router   prefilled(id)                                   computed, next one may start
                    failed(id, cause)                               the KV will not arrive
                    signals(acked_bytes, retrans_bytes, backlog_bytes, rtt_s, min_rtt_s, active)
decode -> router    tokens(items=[[id, tokens so far, last?], ...]) one message for the whole batch
                    failed(id, cause)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

Message = dict[str, Any]
_LINE_BYTES = 1 << 20


class Channel:
    """One end of a connection that carries messages both ways."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Message)

    @classmethod
    async def open(cls, address: str, port: int) -> Channel:
        """Connect to an agent; OSError when it does not listen."""
        return cls(*await asyncio.open_connection(address, port, limit=_LINE_BYTES))

    def send(self, op: str, **fields: Any) -> None:
        """Send one message; messages are small, so nobody waits for them to go."""
        self._writer.write(self._encoder.encode({"op": op, **fields}) + b"\n")

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def each(self, handle: Callable[[Message], None]) -> None:
        """Hand over every message until the other end closes."""
        while line := await self._reader.readline():
            handle(self._decoder.decode(line))


async def serve(
    address: str, port: int, on_channel: Callable[[Channel], None], handle: Callable[[Message], None]
) -> None:
    """Listen for the router; `on_channel` gets its end of the connection, `handle` its messages."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        on_channel(channel)
        await channel.each(handle)

    await asyncio.start_server(accept, address, port, limit=_LINE_BYTES)
