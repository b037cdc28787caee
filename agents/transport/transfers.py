"""A transfer as its sender sees it, and the chunks it is cut into."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agents import config
from agents.transport import frames, payload
from agents.transport.frames import Header
from agents.transport.payload import Kept, Pages


class TransferError(Exception):
    """A transfer that did not arrive, and why."""


def _future() -> asyncio.Future[None]:
    """A future whose failure need not be looked at: the transfer may have been forgotten by then."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
    return future


class Chunk(msgspec.Struct, eq=False):
    """A piece of a transfer, produced and not yet acknowledged by the receiver."""

    transfer: Transfer
    layer: int
    number: int
    size_bytes: int
    order: int
    """Which of all chunks this sender produced first."""
    offset: int
    """Where it begins within the transfer, in bytes."""
    checksum: int
    """Of what the producer handed over; 0 with any other payload."""
    lane: Any = None
    """The lane that carries it; None: it waits in the queue."""
    copies: int = 0
    """How often it was given to a lane."""


class Transfer(msgspec.Struct, eq=False):
    """One request's KV, or a cached prefix, on its way to one receiver. All times are CLOCK_MONOTONIC."""

    number: int
    peer: str
    size_bytes: int
    chunks: int
    payload: config.Payload = "synthetic"
    kept: Kept | None = None
    """What was produced of it, until it is over; with `tensors` only."""
    priority: float = 0.0
    """Lower goes first, with `least_slack`."""
    started_ns: int = 0
    """When the first of it was handed over; until then, when it was offered."""
    moved_ns: int = 0
    """When it last moved: bytes or chunks of it acknowledged, room granted."""
    produced_bytes: int = 0
    acked_bytes: int = 0
    """In chunks that the receiver has, whole and intact."""
    resent_bytes: int = 0
    """In copies of chunks beyond the first one."""
    granted: bool = False
    over: asyncio.Future[None] = msgspec.field(default_factory=_future)
    """Done when the receiver has acknowledged everything; fails with a TransferError."""
    pending: dict[int, Chunk] = msgspec.field(default_factory=dict)
    """Chunks that were produced and not yet acknowledged."""
    made: int = 0
    """Chunks produced so far."""
    to_send: int = 0
    """Chunks that no lane has, those not yet produced included; once there are none, the seal goes out."""
    sums: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Size in bytes and checksum of each chunk that was given to a lane."""
    asked_ns: int = 0
    """When the offer, or the seal, was last given to a lane; `asked_on` that one."""
    asked_on: Any = None
    asked_at: int = 0
    """What had been given to that lane before, in bytes."""

    @property
    def stuck(self) -> bool:
        """Whether something of it could move, and it is not its producer who is waited for."""
        return bool(self.pending) or (self.to_send == 0 and self.granted)

    @property
    def waits(self) -> bool:
        """Whether it is the turn of others: of its producer, or of those ahead of it in the queue."""
        return self.granted and self.to_send > 0 and all(one.lane is None for one in self.pending.values())

    @property
    def asking(self) -> bool:
        """Whether the receiver owes an answer to the offer, or to the seal."""
        return not self.granted or self.to_send == 0

    def question(self) -> bytes:
        """The frame that the receiver owes an answer to: the seal if all else is sent, else the offer."""
        return self.frame(frames.SEAL if self.granted and self.to_send == 0 else frames.OFFER)

    def frame(self, kind: int) -> bytes:
        """An offer, a seal or a drop of this transfer."""
        checksum = 0
        if kind == frames.SEAL:
            checksum = frames.digest((one, *self.sums[one]) for one in range(self.chunks))
        return Header(kind, self.payload, self.number, self.size_bytes, 0, 0, self.chunks, 0, checksum).pack()

    def chunk_frame(self, chunk: Chunk, *, damage: bool) -> tuple[bytes, list[tuple[Pages, int, int]]]:
        """Header and first bytes of a chunk, and the pages that follow: which, from where, how many bytes.
        `damage`: with one bit turned over that its checksum does not know of; what is kept stays as it is.
        """
        pages: Pages
        stamp, start, checksum = b"", 0, 0
        if self.kept is not None:
            pages, start, checksum = self.kept, chunk.offset, chunk.checksum
            if damage:
                stamp, start = self.kept.damaged(start), start + 1
        elif self.payload == "verified":
            pages = payload.noise()
            stamp, start, checksum = payload.verified(self.number, chunk.number, chunk.size_bytes)
            if damage:
                stamp = bytes([stamp[0] ^ 1]) + stamp[1:]
        else:
            pages = payload.zeros()
        self.sums[chunk.number] = (chunk.size_bytes, checksum)
        head = Header(
            frames.CHUNK,
            self.payload,
            self.number,
            self.size_bytes,
            chunk.layer,
            chunk.number,
            self.chunks,
            chunk.size_bytes,
            checksum,
            chunk.offset,
        ).pack()
        ranges = pages.ranges(start, chunk.size_bytes - len(stamp))
        return head + stamp, [(pages, place, size) for place, size in ranges]
