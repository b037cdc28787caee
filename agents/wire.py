"""Messages between the router and the instances: one JSON object a line, over one TCP connection each.

router -> instance (`id`: the job, see `agents.config.job`)
    prefill(id, tokens, kv_tokens, prompt_tokens, decode, compress, order_s, since_ns)
                                                      compute `tokens`; send `decode` the KV of the last
                                                      `kv_tokens` of the prompt; asked for at `since_ns`.
                                                      For real kernels also `prompt`, the token ids, `chain`,
                                                      the ids of its full blocks where prefixes are cached,
                                                      and behind which `state_tokens` to keep states
    expect(id, output_tokens, context_tokens, kv_bytes, unpack_bytes)
                                                      KV of so many tokens will come; then generate. For real
                                                      kernels also that it is that of the last `kv_tokens`,
                                                      and `chain` where the cluster has, or keeps, the blocks
    cancel(id)                                        forget the job and its KV
    ship(id, kv_tokens, prompt_tokens, to, since_ns)  send an instance the end of a cached prefix; since null:
                                                      nobody waits for it. For real kernels also its `chain`
    land(id, kv_tokens, prompt_tokens, chain)         real kernels: keep the prefix that comes by this number
    become(role, conversion_s)                        finish the work of one role, take the other
instance -> router
    reserved(id)                                      there is room for its KV (`destination_first`)
    prefilled(id)                                     computed, the next one may start
    sent(id)                                          its KV has arrived
    failed(id, cause)                                 it will not, or what came was damaged
    tokens(items=[[id, tokens so far, last?], ...])   one message for the whole batch; of real kernels each
                                                      with a list of the token ids since the last message
    fetched(id)                                       cached KV has arrived here, and is kept
    became(role)
    signals(acked_bytes, retrans_bytes, backlog_bytes, rtt_s, min_rtt_s, active)
    beat(computing, moved, decoding)                  whether it does either; transfers that have moved

What makes of connections that break a conversation that does not is in `agents.session`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from agents.stream import Connection

Message = dict[str, Any]
Handle = Callable[[Message], None]

_MAX_LINE_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


class MalformedError(ValueError):
    """What came in is no message, or none that can come now."""


def encode(op: str, fields: Message) -> bytes:
    """One message as it goes over the wire."""
    return _encoder.encode({"op": op, **fields}) + b"\n"


class Lines(Connection):
    """One end of a connection that carries messages both ways.

    `handle` gets what comes in; it may raise MalformedError. `on_lost` gets the cause when the connection is
    gone, whoever ended it.
    """

    def __init__(
        self,
        handle: Callable[[Lines, Message], None],
        on_made: Callable[[Lines], None],
        on_lost: Callable[[Lines, str], None],
    ) -> None:
        self._handle, self._on_made, self._on_lost = handle, on_made, on_lost
        self._rest = b""
        self._cause = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        super().connection_made(transport)
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end closed, or this one did."""
        self._on_lost(self, self._cause or (str(exc) if exc is not None else "the connection was closed"))

    def received(self, data: bytes) -> None:
        """Hand over every message that is complete; the connection ends with the first that is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                if self.transport.is_closing():
                    return
                self._handle(self, _parsed(line))
        except MalformedError as error:
            self.abort(str(error))
        if len(self._rest) > _MAX_LINE_BYTES:
            self.abort(f"a line of more than {_MAX_LINE_BYTES} bytes")

    def write(self, data: bytes) -> None:
        """Send whole messages; they are small, so nobody waits for them to go."""
        self.transport.write(data)

    def abort(self, cause: str) -> None:
        """End the connection at once, on both sides (RST); nothing more comes of it but `on_lost`."""
        if self.transport.is_closing():
            return
        self._cause = cause
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def close(self) -> None:
        """End the connection when everything is sent."""
        self.transport.close()


def _parsed(line: bytes) -> Message:
    try:
        message = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a message: {error}") from error
    if not isinstance(message.get("op"), str):
        raise MalformedError("a message without an op")
    return message


def number(message: Message, field: str) -> int:
    """A count among the fields of a message."""
    value = message.get(field)
    if not isinstance(value, int) or value < 0:
        raise MalformedError(f"{message['op']} with {field} {value!r}")
    return value


class Books:
    """What one end has said that the other may not have heard, and how far it has heard the other."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, bytes]] = deque()
        self._said = 0
        self.heard = 0

    def numbered(self, op: str, fields: Message) -> bytes:
        """The next message, to be written now, and again until it is acknowledged."""
        self._said += 1
        data = encode(op, {**fields, "n": self._said, "heard": self.heard})
        self._kept.append((self._said, data))
        return data

    def passing(self, op: str, fields: Message) -> bytes:
        """A message that is not kept."""
        return encode(op, {**fields, "heard": self.heard})

    def kept(self) -> bytes:
        """Everything that is not acknowledged."""
        return b"".join(data for _, data in self._kept)

    def acknowledged(self, heard: int) -> None:
        """The other end has heard so far."""
        if heard > self._said:
            raise MalformedError(f"{heard} messages heard of {self._said}")
        while self._kept and self._kept[0][0] <= heard:
            self._kept.popleft()

    def take(self, message: Message) -> bool:
        """Whether it is to be handled, as it was not heard before."""
        self.acknowledged(number(message, "heard"))
        del message["heard"]
        if "n" not in message:
            return True
        n = number(message, "n")
        del message["n"]
        if n > self.heard + 1:
            raise MalformedError(f"message {n} after {self.heard}")
        new = n > self.heard
        self.heard = max(self.heard, n)
        return new


def tcp_socket(congestion_control: str) -> socket.socket:
    """To connect or to listen; OSError: the kernel lacks the congestion control, or has no more sockets.

    What a listener accepts has the same. asyncio turns Nagle off where it is told that it is TCP.
    """
    end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
    except BaseException:
        end.close()
        raise
    return end
