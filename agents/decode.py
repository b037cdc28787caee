"""Decode on an instance: up to `bs_max` requests in a batch, one token each per step.

A request joins at the first step boundary after its KV is complete and checked, if there is room in the
batch, in the order of arrival. Steps take the same time whatever the batch holds, so the instance wakes
only when somebody must hear of tokens: at the first, every `stream_interval_tokens`, and at the last.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable

import msgspec

from agents import config, wire
from agents.journal import Journal
from agents.profiles import COMPRESSIONS, PROFILES
from agents.transport.receiver import Arrival, Receiver


class Sequence(msgspec.Struct):
    """A request in the batch: its step grid starts at `joined_ns`."""

    id: int
    output_tokens: int
    joined_ns: int = 0
    unpack_bytes: int = 0
    """Size of its KV before it was compressed; 0: it is not."""
    told: int = 0
    cancelled: bool = False


class Decode:
    """KV that arrives, the batch, and who waits for a place in it. `tell` speaks to the router.

    An instance whose profile has no decode (`bs_max` 0) is never asked for any.
    """

    def __init__(
        self, settings: config.Config, journal: Journal, receiver: Receiver, tell: Callable[..., None]
    ) -> None:
        self._scale = settings.scale
        self._journal, self._receiver, self._tell = journal, receiver, tell
        profile = PROFILES[settings.me.profile]
        self._bs_max = profile.bs_max
        self._step_ns = round(profile.step_s(1) * 1e9) if self._bs_max else 0
        compression = settings.transport.compression
        self._compression = COMPRESSIONS[compression] if compression else None
        self._interval = settings.stream_interval_tokens
        self._expected: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._active: dict[int, Sequence] = {}
        self._due: list[tuple[int, int]] = []
        self._grid_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is expected, waiting or in the batch."""
        await self._idle.wait()

    def _look_if_idle(self) -> None:
        if self._expected or self._waiting or self._active:
            self._idle.clear()
        else:
            self._idle.set()

    def take(self, message: wire.Message) -> None:
        """Expect the KV of a request, or forget it."""
        request = message["id"]
        if message["op"] == "expect":
            self._expected[request] = Sequence(
                request, message["output_tokens"], unpack_bytes=message["unpack_bytes"]
            )
        else:
            self._expected.pop(request, None)
            self._receiver.drop(request)
            gone = self._active.get(request)
            if gone is not None:
                gone.cancelled = True
            self._waiting = deque(one for one in self._waiting if one.id != request)
        self._look_if_idle()

    def arrived(self, arrival: Arrival) -> None:
        """The KV of a request is complete."""
        self._journal.note(
            "kv",
            arrival.complete_ns,
            id=arrival.id,
            size_bytes=arrival.size_bytes,
            chunks=arrival.received_chunks,
            checksum_errors=0,
        )
        sequence = self._expected.get(arrival.id)
        if sequence is not None and sequence.unpack_bytes:
            asyncio.get_running_loop().call_later(self._unpack_s(sequence), self._ready, arrival.id)
        else:
            self._ready(arrival.id)

    def _unpack_s(self, sequence: Sequence) -> float:
        assert self._compression is not None
        return sequence.unpack_bytes / self._scale / self._compression.decompress_bytes_per_s

    def _ready(self, request: int) -> None:
        """The request may join the batch, unless it was cancelled."""
        sequence = self._expected.pop(request, None)
        if sequence is not None:
            self._waiting.append(sequence)
            self._admit()

    def refused(self, arrival: Arrival) -> None:
        """A chunk of a request's KV is damaged."""
        self._journal.note(
            "kv",
            time.monotonic_ns(),
            id=arrival.id,
            size_bytes=arrival.size_bytes,
            chunks=arrival.received_chunks,
            checksum_errors=arrival.checksum_errors,
        )
        self._expected.pop(arrival.id, None)
        self._look_if_idle()
        self._tell("failed", id=arrival.id, cause="a chunk arrived with a wrong checksum")

    def _admit(self) -> None:
        """Move waiting requests into the batch, at the next step boundary."""
        now_ns = time.monotonic_ns()
        if not self._active:
            self._grid_ns = now_ns
        boundary_ns = self._grid_ns + -(-(now_ns - self._grid_ns) // self._step_ns) * self._step_ns
        while self._waiting and len(self._active) < self._bs_max:
            sequence = self._waiting.popleft()
            sequence.joined_ns = boundary_ns
            self._active[sequence.id] = sequence
            heapq.heappush(self._due, (self._token_ns(sequence, 1), sequence.id))
        self._set_timer()

    def _token_ns(self, sequence: Sequence, number: int) -> int:
        return sequence.joined_ns + number * self._step_ns

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            delay_ms = -(-max(0, self._due[0][0] - time.monotonic_ns()) // 1_000_000)
            # the event loop counts whole milliseconds: rounded up, so that it does not wake too early
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1e3, self._wake)

    def _wake(self) -> None:
        """Tell of every token that is due, all requests in one message; let finished ones go."""
        now_ns = time.monotonic_ns()
        items: list[list[int | bool]] = []
        while self._due and self._due[0][0] <= now_ns:
            _, request = heapq.heappop(self._due)
            sequence = self._active[request]
            if sequence.cancelled:
                del self._active[request]
                continue
            sequence.told = self._next_told(sequence)
            last = sequence.told == sequence.output_tokens
            items.append([request, sequence.told, last])
            if last:
                self._finish(sequence)
            else:
                due_ns = self._token_ns(sequence, self._next_told(sequence))
                heapq.heappush(self._due, (due_ns, request))
        if items:
            self._tell("tokens", items=items)
        self._admit()
        self._look_if_idle()

    def _next_told(self, sequence: Sequence) -> int:
        """How many tokens will have been generated when the next message is due."""
        if not sequence.told:
            return 1
        following = (sequence.told // self._interval + 1) * self._interval
        return min(following, sequence.output_tokens)

    def _finish(self, sequence: Sequence) -> None:
        del self._active[sequence.id]
        self._journal.note(
            "decode",
            sequence.joined_ns,
            id=sequence.id,
            t_first_ns=self._token_ns(sequence, 1),
            t_last_ns=self._token_ns(sequence, sequence.output_tokens),
            tokens=sequence.output_tokens,
        )
