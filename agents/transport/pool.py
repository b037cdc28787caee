"""Memory for KV: so many bytes, and who waits for room, in the order of asking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

Told = Callable[[bool], None]


class TooLargeError(Exception):
    """More was asked for than the whole pool has; waiting would not help."""


class _Waiting(msgspec.Struct):
    size_bytes: int
    told: list[Told]


class Pool:
    """Counts bytes, by the number of the transfer they belong to. `on_change` gets what is held, in bytes,
    and by how many transfers, after each change.

    Nobody is served before somebody who asked earlier, so that a large transfer is not put off for ever.
    """

    def __init__(
        self,
        capacity_bytes: int,
        on_change: Callable[[int, int], None] = lambda _held_bytes, _count: None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self.returned = 0
        """How often something was given back."""
        self._on_change = on_change
        self._held: dict[int, int] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._shut = False

    @property
    def count(self) -> int:
        """How many transfers hold something."""
        return len(self._held)

    def held(self, number: int) -> int | None:
        """What a transfer holds, in bytes; None: nothing was given to it."""
        return self._held.get(number)

    def take(self, number: int, size_bytes: int) -> bool:
        """Take room at once if there is some and nobody waits for it; whether the transfer has it."""
        if number in self._held:
            return True
        if self._waiting or not self._room(size_bytes):
            return False
        self._hold(number, size_bytes)
        return True

    def ask(self, number: int, size_bytes: int, told: Told) -> None:
        """Call `told(True)` once the transfer has its room, which may be now, or `told(False)` when it was
        given back before; TooLargeError when it can never have it.
        """
        if size_bytes > self.capacity_bytes:
            raise TooLargeError(f"{size_bytes} bytes do not fit in {self.capacity_bytes}")
        if self.take(number, size_bytes):
            told(True)
        else:
            waiting = self._waiting.setdefault(number, _Waiting(size_bytes, []))
            waiting.size_bytes = max(waiting.size_bytes, size_bytes)
            waiting.told.append(told)

    async def wait(self, number: int, size_bytes: int) -> bool:
        """Wait for room; False when it was given back before there was any. TooLargeError as in `ask`."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ask(number, size_bytes, lambda has: None if future.done() else future.set_result(has))
        try:
            return await future
        except asyncio.CancelledError:
            self.give_back(number)
            raise

    def give_back(self, number: int) -> int:
        """Let go of what a transfer holds, and of its place among those who wait; how many bytes it held."""
        gone = self._waiting.pop(number, None)
        size_bytes = self._held.pop(number, None)
        if size_bytes is not None:
            self.held_bytes -= size_bytes
            self.returned += 1
            self._on_change(self.held_bytes, len(self._held))
        if gone is not None:
            for told in gone.told:
                told(False)
        self._serve()
        return size_bytes or 0

    def shut(self, shut: bool) -> None:
        """As long as it is shut, the pool gives no room, whatever it has."""
        self._shut = shut
        self._serve()

    def _room(self, size_bytes: int) -> bool:
        return not self._shut and self.held_bytes + size_bytes <= self.capacity_bytes

    def _hold(self, number: int, size_bytes: int) -> None:
        self._held[number] = size_bytes
        self.held_bytes += size_bytes
        self._on_change(self.held_bytes, len(self._held))

    def _serve(self) -> None:
        while self._waiting:
            number, first = next(iter(self._waiting.items()))
            if not self._room(first.size_bytes):
                return
            del self._waiting[number]
            self._hold(number, first.size_bytes)
            for told in first.told:
                told(True)
