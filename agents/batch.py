"""The batch of a decode instance as a profile has it: up to `bs_max` requests, one token each per step.

Requests join at step boundaries. The batch wakes only when somebody must hear of tokens: at the first, every
`stream_interval_tokens`, and at the last.

Where the profile knows steps by batch and context, a step takes what it says for all that are in the batch
and for their mean context: attention reads the KV of all of them, so that at one size of the batch its time
grows with the sum. That is looked up anew when the batch changes and whenever it wakes, so what the requests
grow by between two wake-ups counts from the second on.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean

import msgspec

from agents import config
from agents.profiles import find


class Sequence(msgspec.Struct):
    """A request in the batch: from `since_ns` on, when it had `had` tokens, it gets one each step."""

    id: int
    output_tokens: int
    context_tokens: int
    """Of its prompt."""
    unpack_bytes: int = 0
    """Size of its KV before it was compressed; 0: it is not."""
    joined_ns: int = 0
    since_ns: int = 0
    had: int = 0
    first_ns: int = 0
    last_ns: int = 0
    told: int = 0
    cancelled: bool = False
    kv: memoryview | None = None
    """Of its prompt's last `kv_tokens`, where real kernels go on from it, until they have read it."""
    kv_tokens: int = 0
    chain: tuple[int, ...] = ()
    """Ids of the prompt's full blocks, where what is before them comes from a cache."""
    token_ids: list[int] | None = None
    """What they generated, at the end, with a digest of the logits of all steps."""
    logits_digest: str | None = None


class Batch:
    """Who gets tokens, and when. `tell` speaks to the router.

    `finished` is called with each sequence that has all its tokens, before the router is told of them, and
    `woke` at the end of each wake-up: there may be room then.
    """

    def __init__(
        self,
        settings: config.Config,
        tell: Callable[..., None],
        finished: Callable[[Sequence], None],
        woke: Callable[[], None],
    ) -> None:
        self._tell, self._finished, self._woke = tell, finished, woke
        self._profile = profile = find(settings.me.profile, settings.profiles)
        self._usual_ns = round(profile.step_s(1, profile.contexts[0]) * 1e9) if profile.bs_max else 0
        """A step's time, before it is slowed down; of a varying one any, as nobody is in the batch."""
        self._step_ns, self._slowness = self._usual_ns, 1.0
        self._interval = settings.stream_interval_tokens
        self._active: dict[int, Sequence] = {}
        self._due: list[tuple[int, int]] = []
        self._grid_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Places that are taken; by cancelled requests, too, until their next tokens are due."""
        return len(self._active)

    def numbers(self) -> list[int]:
        """The jobs in the batch."""
        return list(self._active)

    def cancel(self, number: int) -> bool:
        """Let a job get no more tokens; whether it is here."""
        sequence = self._active.get(number)
        if sequence is None:
            return False
        sequence.cancelled = True
        return True

    def slow(self, factor: float) -> None:
        """From now on a step takes so many times what the profile says."""
        self._settle(time.monotonic_ns())
        self._slowness = factor
        self._set_step()

    def join(self, waiting: deque[Sequence]) -> None:
        """Take from the left of `waiting` as many as there is room for; they join at the next boundary."""
        now_ns = time.monotonic_ns()
        if self._profile.decode and self._active and waiting:
            self._tell_due(now_ns)  # by the steps that they took
        if not self._active:
            self._grid_ns = now_ns
        steps = -(-(now_ns - self._grid_ns) // self._step_ns)
        boundary_ns = self._grid_ns + max(0, steps) * self._step_ns
        joined = False
        while waiting and len(self._active) < self._profile.bs_max:
            sequence = waiting.popleft()
            sequence.joined_ns = sequence.since_ns = boundary_ns
            self._active[sequence.id] = sequence
            heapq.heappush(self._due, (self._token_ns(sequence, 1), sequence.id))
            joined = True
        if joined and self._profile.decode:
            self._renew(boundary_ns)
        else:
            self._set_timer()

    def _settle(self, at_ns: int) -> None:
        """Count the tokens of all steps up to a time: from there on steps may take another time."""
        if self._active:
            self._grid_ns += max(0, at_ns - self._grid_ns) // self._step_ns * self._step_ns
        for sequence in self._active.values():
            steps = max(0, (at_ns - sequence.since_ns) // self._step_ns)
            sequence.since_ns += steps * self._step_ns
            sequence.had += steps

    def _renew(self, at_ns: int) -> None:
        """Look up what a step takes from the last boundary before `at_ns` on, or at it."""
        self._settle(at_ns)
        going_on = [one for one in self._active.values() if one.had < one.output_tokens]
        if going_on:
            context_tokens = fmean(one.context_tokens + one.had for one in going_on)
            self._usual_ns = round(self._profile.step_s(len(going_on), context_tokens) * 1e9)
        self._set_step()

    def _set_step(self) -> None:
        self._step_ns = round(self._usual_ns * self._slowness)
        self._due = [(self._token_ns(one, self._next_told(one)), one.id) for one in self._active.values()]
        heapq.heapify(self._due)
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
        now_ns = time.monotonic_ns()
        self._tell_due(now_ns)
        if self._profile.decode:
            self._renew(now_ns)
        self._woke()

    def _tell_due(self, now_ns: int) -> None:
        """Tell of every token that is due, all requests in one message; let finished ones go."""
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
                sequence.last_ns = self._token_ns(sequence, sequence.output_tokens)
                del self._active[request]
                self._finished(sequence)
            else:
                due_ns = self._token_ns(sequence, self._next_told(sequence))
                heapq.heappush(self._due, (due_ns, request))
        if items:
            self._tell("tokens", items=items)

    def _next_told(self, sequence: Sequence) -> int:
        return next_told(sequence, self._interval)


def next_told(sequence: Sequence, interval_tokens: int) -> int:
    """How many tokens will have been generated when the next message of a sequence is due."""
    if not sequence.told:
        return 1
    following = (sequence.told // interval_tokens + 1) * interval_tokens
    return min(following, sequence.output_tokens)
