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
from agents.transport.pool import TooLargeError
from agents.transport.receiver import Arrival, Receiver


class Sequence(msgspec.Struct):
    """A request in the batch: from `since_ns` on, when it had `had` tokens, it gets one each step."""

    id: int
    output_tokens: int
    unpack_bytes: int = 0
    """Size of its KV before it was compressed; 0: it is not."""
    joined_ns: int = 0
    since_ns: int = 0
    had: int = 0
    first_ns: int = 0
    told: int = 0
    cancelled: bool = False


class Decode:
    """KV that arrives, the batch, and who waits for a place in it. `tell` speaks to the router.

    An instance whose profile has no decode (`bs_max` 0) is never asked for any.
    """

    def __init__(
        self, settings: config.Config, journal: Journal, receiver: Receiver, tell: Callable[..., None]
    ) -> None:
        self._settings, self._scale = settings, settings.scale
        self._journal, self._receiver, self._tell = journal, receiver, tell
        profile = PROFILES[settings.me.profile]
        self._bs_max = profile.bs_max
        self._profile_step_ns = self._step_ns = round(profile.step_s(1) * 1e9) if self._bs_max else 0
        compression = settings.transport.compression
        self._compression = COMPRESSIONS[compression] if compression else None
        self._interval = settings.stream_interval_tokens
        self._expected: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._active: dict[int, Sequence] = {}
        self._reserving: set[asyncio.Task[None]] = set()
        self._due: list[tuple[int, int]] = []
        self._grid_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is expected, waiting or in the batch."""
        await self._idle.wait()

    @property
    def decoding(self) -> bool:
        """Whether any request gets tokens."""
        return bool(self._active)

    def _look_if_idle(self) -> None:
        if self._expected or self._waiting or self._active:
            self._idle.clear()
        else:
            self._idle.set()

    def expect(self, message: wire.Message) -> None:
        """The KV of a request will come; with `destination_first` the router hears when there is room."""
        number = message["id"]
        self._expected[number] = Sequence(number, message["output_tokens"], message["unpack_bytes"])
        if self._settings.transport.handover == "destination_first":
            task = asyncio.create_task(self._reserve(number, message["kv_bytes"]))
            self._reserving.add(task)
            task.add_done_callback(self._reserving.discard)
        self._look_if_idle()

    async def _reserve(self, number: int, size_bytes: int) -> None:
        try:
            if await self._receiver.reserve(number, size_bytes):
                self._tell("reserved", id=number)
        except TooLargeError as error:
            self._receiver.drop(number, f"its KV can never be held: {error}")

    def cancel(self, number: int) -> None:
        """Forget a request and its KV, if it is known here."""
        sequence = self._expected.pop(number, None) or self._active.get(number)
        waiting = deque(one for one in self._waiting if one.id != number)
        if sequence is None and len(waiting) == len(self._waiting) and not self._receiver.knows(number):
            return
        self._waiting = waiting
        if sequence is not None:
            sequence.cancelled = True
        self._receiver.drop(number, "cancelled")
        self._look_if_idle()

    def forget(self) -> None:
        """The router that asked for all this is no more."""
        for number in [*self._expected, *(one.id for one in self._waiting), *self._active]:
            self.cancel(number)

    def slow(self, factor: float) -> None:
        """From now on a step takes so many times what the profile says."""
        now_ns = time.monotonic_ns()
        if self._active:
            self._grid_ns += (now_ns - self._grid_ns) // self._step_ns * self._step_ns
        for sequence in self._active.values():
            steps = max(0, (now_ns - sequence.since_ns) // self._step_ns)
            sequence.since_ns += steps * self._step_ns
            sequence.had += steps
        self._step_ns = round(self._profile_step_ns * factor)
        self._due = [(self._token_ns(one, self._next_told(one)), one.id) for one in self._active.values()]
        heapq.heapify(self._due)
        self._set_timer()

    def arrived(self, arrival: Arrival) -> None:
        """The KV of a request is complete."""
        self._journal.note(
            "kv",
            arrival.complete_ns,
            id=config.request_of(arrival.number),
            attempt=config.attempt_of(arrival.number),
            size_bytes=arrival.received_bytes,
            chunks=arrival.received_chunks,
            checksum_errors=arrival.checksum_errors,
            damaged_chunks=arrival.damaged_chunks,
        )
        sequence = self._expected.get(arrival.number)
        if sequence is None:
            self._receiver.release(arrival.number)
        elif sequence.unpack_bytes:
            asyncio.get_running_loop().call_later(self._unpack_s(sequence), self._ready, arrival.number)
        else:
            self._ready(arrival.number)

    def _unpack_s(self, sequence: Sequence) -> float:
        assert self._compression is not None
        return sequence.unpack_bytes / self._scale / self._compression.decompress_bytes_per_s

    def _ready(self, number: int) -> None:
        """The request may join the batch, unless it was cancelled."""
        sequence = self._expected.pop(number, None)
        if sequence is not None:
            self._waiting.append(sequence)
            self._admit()

    def dropped(self, arrival: Arrival, cause: str) -> None:
        """The KV of a request will not be completed: the receiver, its sender or the router gave it up."""
        number = arrival.number
        self._journal.note(
            "kv_dropped",
            time.monotonic_ns(),
            id=config.request_of(number),
            attempt=config.attempt_of(number),
            received_bytes=arrival.received_bytes,
            checksum_errors=arrival.checksum_errors,
            cause=cause,
        )
        if self._expected.pop(number, None) is not None:
            self._tell("failed", id=number, cause=cause)
        self._look_if_idle()

    def look(self, now_ns: int) -> None:
        """Give up KV of which nothing came for too long."""
        for arrival in self._receiver.stalled(now_ns):
            waited_s = (now_ns - arrival.moved_ns) / 1e9
            self._receiver.drop(arrival.number, f"nothing of its KV came for {waited_s:.1f} s")

    def _admit(self) -> None:
        """Move waiting requests into the batch, at the next step boundary."""
        now_ns = time.monotonic_ns()
        if not self._active:
            self._grid_ns = now_ns
        boundary_ns = self._grid_ns + -(-(now_ns - self._grid_ns) // self._step_ns) * self._step_ns
        while self._waiting and len(self._active) < self._bs_max:
            sequence = self._waiting.popleft()
            sequence.joined_ns = sequence.since_ns = boundary_ns
            self._active[sequence.id] = sequence
            heapq.heappush(self._due, (self._token_ns(sequence, 1), sequence.id))
        self._set_timer()

    def _token_ns(self, sequence: Sequence, number: int) -> int:
        return sequence.since_ns + (number - sequence.had) * self._step_ns

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
            if sequence.told == 1:
                sequence.first_ns = self._token_ns(sequence, 1)
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
        self._receiver.release(sequence.id)
        self._journal.note(
            "decode",
            sequence.joined_ns,
            id=config.request_of(sequence.id),
            attempt=config.attempt_of(sequence.id),
            t_first_ns=sequence.first_ns,
            t_last_ns=self._token_ns(sequence, sequence.output_tokens),
            tokens=sequence.output_tokens,
        )
