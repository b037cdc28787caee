"""The receiving half: makes room for transfers, checks what comes, and says when one is complete."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from agents import config
from agents.timeouts import LATE, patience_s
from agents.transport import frames
from agents.transport.arrivals import Arrival, memory
from agents.transport.frames import Ack, Header
from agents.transport.incoming import Incoming
from agents.transport.pool import Pool, TooLargeError

__all__ = ["Arrival", "Receiver", "ReceiverSettings"]

DAMAGED_COPIES = 3
"""A chunk that came so often and was damaged each time is not asked for again."""
REMEMBERED = 1 << 16
"""Transfers that are over; of those before nothing is on its way any more."""
_WEIGHT = 0.25
"""Of the last look in the measured goodput, where that is less than before."""


class ReceiverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How KV is received."""

    pool_bytes: int = 1 << 42
    decode_wait_ns: int = config.Timeouts().decode_wait_ns
    router_ns: int = config.Timeouts().router_ns
    tick_ns: int = 250_000_000
    """How often `stalled` is called. One that comes much later than that finds fault with nobody else."""
    flaws: tuple[config.Flaw, ...] = ()

    @classmethod
    def of(cls, settings: config.Config) -> ReceiverSettings:
        """What an agent was told."""
        return cls(
            pool_bytes=settings.transport.receive_pool_bytes,
            decode_wait_ns=settings.timeouts.decode_wait_ns,
            router_ns=settings.timeouts.router_ns,
            tick_ns=settings.scheduling.interval_ns,
            flaws=settings.flaws,
        )


class Receiver:
    """Listens for KV. `on_complete` gets each transfer whose every chunk is here, checked and sealed;
    `on_dropped` each that will not be completed here, once, with the cause: also those of which nothing came.
    `on_held` gets what the pool holds, in bytes, and for how many transfers, after each change; `on_offer` is
    called when a new transfer is offered.

    A transfer has its room from when it is granted to `release`, or to when it is dropped.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        on_complete: Callable[[Arrival], None],
        on_dropped: Callable[[Arrival, str], None],
        on_held: Callable[[int, int], None] = lambda _held_bytes, _count: None,
        on_offer: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._on_complete, self._on_dropped, self._on_offer = on_complete, on_dropped, on_offer
        self.pool = Pool(settings.pool_bytes, on_held)
        self._arrivals: dict[int, Arrival] = {}
        self._over: dict[int, Ack] = {}
        """The last word on each transfer that is complete or dropped."""
        self._kept: dict[int, Arrival] = {}
        """Those whose bytes are kept, complete or not."""
        self._offered_by: dict[int, Incoming] = {}
        self._lanes: dict[tuple[int, int], Incoming] = {}
        self._totals: dict[int, int] = {}
        self._new_bytes = 0
        self._looked_ns = 0
        self._goodput_bps = 0.0

    def listen(self, address: tuple[str, int], congestion_control: str) -> socket.socket:
        """Accept connections on `address`; returns the listening socket.

        They have the congestion control of their senders: dctcp needs it at both ends. Answers are small, and
        none may wait for the acknowledgement of the one before.
        """
        listener = socket.create_server(address, backlog=256)
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            Incoming(connection, self)

    async def reserve(self, number: int, size_bytes: int) -> bool:
        """Set room aside for a transfer before it is offered, so that its offer is granted at once; False
        when it was dropped first. TooLargeError when there can never be room.
        """
        return number not in self._over and await self.pool.wait(number, size_bytes)

    def release(self, number: int) -> None:
        """The KV of a complete transfer is not needed any more. Memory goes with the last view of it."""
        self._let_go(number)
        self.pool.give_back(number)

    def drop(self, number: int, cause: str) -> None:
        """Forget a transfer, complete or not: its room is free, its sender told. Nothing happens to one that
        was dropped before.
        """
        self._drop(number, cause, Ack(frames.GONE, number, code=frames.GIVEN_UP), tell=True)

    @property
    def active(self) -> bool:
        """Whether anything is on its way here."""
        return bool(self._arrivals)

    def knows(self, number: int) -> bool:
        """Whether a transfer is on its way here, or has room."""
        return number in self._arrivals or self.pool.held(number) is not None

    def forget(self) -> None:
        """Whoever asked for all this is no more: drop what is left.

        Offers of it may still be on their way, so its numbers are known as gone; not as complete, should
        another router give one again.
        """
        for number in list(self._arrivals):
            self.drop(number, "the router is another one")
        self._over = {number: Ack(frames.GONE, number, code=frames.UNKNOWN) for number in self._over}

    def fill(self, on: bool) -> None:
        """As long as it is on, the pool counts as full."""
        self.pool.shut(on)

    def stalled(self, now_ns: int) -> list[Arrival]:
        """Transfers that have their room and of which nothing new came for longer than what is missing can
        take.
        """
        if now_ns - self._looked_ns > LATE * self._settings.tick_ns:
            for arrival in self._arrivals.values():
                arrival.moved_ns = now_ns
        elif self._new_bytes and now_ns > self._looked_ns:
            rate_bps = self._new_bytes * 8e9 / (now_ns - self._looked_ns)
            weight = _WEIGHT if rate_bps < self._goodput_bps else 1.0
            self._goodput_bps += weight * (rate_bps - self._goodput_bps)
        self._new_bytes, self._looked_ns = 0, now_ns
        if "no_timeouts" in self._settings.flaws:
            return []
        missing = sum(one.size_bytes - one.received_bytes for one in self._arrivals.values() if one.granted)
        decode_wait_ns, outer_ns = self._settings.decode_wait_ns, self._settings.router_ns
        limit_s = patience_s(decode_wait_ns, outer_ns, missing, self._goodput_bps)
        late = [
            one for one in self._arrivals.values() if one.granted and (now_ns - one.moved_ns) / 1e9 > limit_s
        ]
        moving = self._moving() if late else set()
        for arrival in late:
            if arrival.sender in moving:
                arrival.moved_ns = now_ns
        return [arrival for arrival in late if arrival.sender not in moving]

    def _moving(self) -> set[int]:
        """Senders of which anything has come since this was asked last: a part of a chunk, on any lane.

        What a transfer waits for may be in the kernel of a lane, behind another one's.
        """
        totals = self._received_bytes()
        moving = {sender for sender, total in totals.items() if self._totals.get(sender) != total}
        self._totals = totals
        return moving

    def _received_bytes(self) -> dict[int, int]:
        totals: dict[int, int] = {}
        for (sender, _), incoming in self._lanes.items():
            totals[sender] = totals.get(sender, 0) + incoming.received_bytes
        return totals

    def control(self, header: Header, incoming: Incoming) -> Ack | None:
        """A frame without a chunk; an answer, if there is one yet."""
        if header.kind == frames.HELLO:
            self._hello(header, incoming)
            return None
        over = self._over.get(header.transfer)
        if over is not None:
            return over
        match header.kind:
            case frames.OFFER:
                return self._offer(header, incoming)
            case frames.SEAL:
                return self._seal(header)
            case _:
                gone = Ack(frames.GONE, header.transfer, code=frames.GIVEN_UP)
                self._drop(header.transfer, "its sender gave it up", gone)
                return gone

    def keeps(self, header: Header) -> bool:
        """Whether the bytes of a chunk that begins to come are wanted here."""
        arrival = self._arrivals.get(header.transfer)
        if arrival is None or arrival.data is None or header.chunk in arrival.entries:
            return False
        return arrival.announced(header)

    def chunk(self, header: Header, data: memoryview | None = None, *, intact: bool) -> Ack:
        """Count one chunk, unless it was counted before; `data`: its bytes, if they were wanted."""
        number, chunk = header.transfer, header.chunk
        arrival = self._arrivals.get(number)
        if arrival is None or not arrival.granted:
            return self._over.get(number, Ack(frames.GONE, number, code=frames.UNKNOWN))
        if not arrival.announced(header):
            return self._refuse(number, frames.MISMATCH, "a chunk is not what was announced")
        if chunk in arrival.entries:
            return Ack(frames.GOT, number, chunk)
        if arrival.data is not None and data is None:  # it began to come when nobody wanted it
            return Ack(frames.BAD, number, chunk)
        if not intact and "fail_open" not in self._settings.flaws:
            return self._damaged(arrival, chunk)
        arrival.damaged_chunks += not intact
        arrival.take(header, data)
        self._new_bytes += header.size_bytes
        return self._end_if_whole(arrival) or Ack(frames.GOT, number, chunk)

    def closed(self, incoming: Incoming) -> None:
        """A connection is gone."""
        for key in [key for key, one in self._lanes.items() if one is incoming]:
            del self._lanes[key]
        for number in [number for number, one in self._offered_by.items() if one is incoming]:
            del self._offered_by[number]

    def _hello(self, header: Header, incoming: Incoming) -> None:
        """A sender has opened a lane; whatever it had in its place before is over, known or not."""
        lane = (header.transfer, header.layer)
        before = self._lanes.get(lane)
        if before is not None:
            before.close()
        self._lanes[lane] = incoming

    def _offer(self, header: Header, incoming: Incoming) -> Ack | None:
        number = header.transfer
        arrival = self._arrivals.get(number)
        if arrival is not None and arrival.granted:
            arrival.moved_ns = time.monotonic_ns()
            return Ack(frames.GRANTED, number)
        self._offered_by[number] = incoming
        if arrival is not None:
            moves = arrival.returned != self.pool.returned
            arrival.returned = self.pool.returned
            return Ack(frames.WAITING, number) if moves else None
        sender = next((key[0] for key, lane in self._lanes.items() if lane is incoming), 0)
        if sender not in self._totals:
            self._totals = self._received_bytes() | self._totals
        self._arrivals[number] = Arrival(
            number,
            header.transfer_bytes,
            header.chunks,
            sender=sender,
            returned=self.pool.returned,
            payload=header.payload,
        )
        self._on_offer()
        aside_bytes = self.pool.held(number)
        if aside_bytes is not None and aside_bytes < header.transfer_bytes:
            self.pool.give_back(number)
        try:
            self.pool.ask(number, header.transfer_bytes, partial(self._grant, number))
        except TooLargeError as error:
            return self._refuse(number, frames.TOO_LARGE, str(error))
        return None

    def _grant(self, number: int, has_room: bool) -> None:
        arrival = self._arrivals.get(number)
        if arrival is None or not has_room:
            return
        arrival.granted, arrival.moved_ns = True, time.monotonic_ns()
        incoming, ack = self._offered_by.get(number), Ack(frames.GRANTED, number)
        if arrival.payload == "tensors":
            try:
                arrival.data, self._kept[number] = memory(arrival.size_bytes), arrival
            except OSError as error:
                ack = self._refuse(number, frames.TOO_LARGE, f"no memory: {error}")
        if incoming is not None:
            incoming.answer(ack)

    def _seal(self, header: Header) -> Ack | None:
        number = header.transfer
        arrival = self._arrivals.get(number)
        if arrival is None or not arrival.granted:
            return Ack(frames.GONE, number, code=frames.UNKNOWN)
        if (header.transfer_bytes, header.chunks) != (arrival.size_bytes, arrival.chunks):
            return self._refuse(number, frames.MISMATCH, "its seal is not what was announced")
        arrival.sealed = header.checksum
        return self._end_if_whole(arrival)

    def _end_if_whole(self, arrival: Arrival) -> Ack | None:
        if arrival.received_chunks < arrival.chunks or arrival.sealed is None:
            return None
        if not arrival.agrees():
            return self._refuse(arrival.number, frames.MISMATCH, "its seal does not agree with what came")
        self._forget(arrival.number)
        ack = self._remember(arrival.number, Ack(frames.COMPLETE, arrival.number))
        arrival.complete_ns = time.monotonic_ns()
        self._on_complete(arrival)
        return ack

    def _damaged(self, arrival: Arrival, chunk: int) -> Ack:
        arrival.checksum_errors += 1
        arrival.damaged[chunk] = arrival.damaged.get(chunk, 0) + 1
        if arrival.damaged[chunk] >= DAMAGED_COPIES:
            cause = f"a chunk arrived with a wrong checksum {DAMAGED_COPIES} times"
            return self._refuse(arrival.number, frames.DAMAGED, cause)
        return Ack(frames.BAD, arrival.number, chunk)

    def _refuse(self, number: int, code: int, cause: str) -> Ack:
        ack = Ack(frames.REFUSED, number, code=code)
        self._drop(number, cause, ack)
        return ack

    def _let_go(self, number: int) -> None:
        """Nothing is kept of a transfer any more."""
        arrival = self._kept.pop(number, None)
        if arrival is not None:
            arrival.data = None

    def _drop(self, number: int, cause: str, word: Ack, *, tell: bool = False) -> None:
        self._let_go(number)
        over = self._over.get(number)
        if (over is not None and over.kind == frames.COMPLETE) or "no_lease" not in self._settings.flaws:
            self.pool.give_back(number)
        if over is not None:
            return
        self._remember(number, word)
        arrival = self._arrivals.get(number) or Arrival(number)
        incoming = self._forget(number)
        if tell and incoming is not None:
            incoming.answer(word)
        self._on_dropped(arrival, cause)

    def _remember(self, number: int, word: Ack) -> Ack:
        """The last word on a transfer, for whatever still comes of it."""
        self._over[number] = word
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]
        return word

    def _forget(self, number: int) -> Incoming | None:
        """Forget a transfer that is over; the connection that offered it, if that still stands."""
        self._arrivals.pop(number, None)
        return self._offered_by.pop(number, None)
