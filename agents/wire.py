"""Messages between the router and the instances: one JSON object a line over one TCP connection each.

router -> instance
    prefill(id, tokens, kv_tokens, prompt_tokens, decode, compress, order_s)
                                                      compute `tokens`; send `decode` the KV of the last
                                                      `kv_tokens` of the prompt
    expect(id, output_tokens, unpack_bytes)           KV will come; then generate
    cancel(id)                                        forget the request and its KV
    ship(id, kv_tokens, prompt_tokens, to)            send an instance the end of a cached prefix
    become(role, conversion_s)                        finish the work of one role, take the other
instance -> router
    prefilled(id)                                     computed, the next one may start
    sent(id)                                          its KV has arrived
    failed(id, cause)                                 it will not, or what came was damaged
    tokens(items=[[id, tokens so far, last?], ...])   one message for the whole batch
    fetched(id)                                       cached KV has arrived here
    became(role)
    signals(acked_bytes, retrans_bytes, backlog_bytes, rtt_s, min_rtt_s, active)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from agents.stream import Connection

Message = dict[str, Any]
Handle = Callable[[Message], None]


class Channel(Connection):
    """One end of a connection that carries messages both ways; `handle` gets what comes in."""

    def __init__(
        self,
        handle: Handle,
        on_made: Callable[[Channel], None] = lambda _channel: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle, self._on_made, self._on_lost = handle, on_made, on_lost
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Message)
        self._line = b""

    @classmethod
    async def open(cls, address: str, port: int, handle: Handle, on_lost: Callable[[], None]) -> Channel:
        """Connect to an agent; OSError when it does not listen. `on_lost` is called when it goes away."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(handle, on_lost=on_lost), address, port)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        super().connection_made(transport)
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        """The other end closed, or this one did."""
        self._on_lost()

    def received(self, data: bytes) -> None:
        """Hand over every message that is complete."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._handle(self._decoder.decode(line))

    def send(self, op: str, **fields: Any) -> None:
        """Send one message; messages are small, so nobody waits for them to go."""
        self.transport.write(self._encoder.encode({"op": op, **fields}) + b"\n")

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()


async def serve(address: str, port: int, on_made: Callable[[Channel], None], handle: Handle) -> None:
    """Listen for the router; `on_made` gets its end of the connection, `handle` its messages."""
    await asyncio.get_running_loop().create_server(lambda: Channel(handle, on_made), address, port)
