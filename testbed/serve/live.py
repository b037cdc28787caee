"""Live events of runs for watchers: server-sent events, made once per run whoever watches.

A watcher first gets `whole`, then `changes` at most four times a second and at least every second, and `end`
when nobody carries the run out any more. One that reads too slowly is not waited for: it gets `whole` again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from testbed.serve.follower import Follower
from testbed.serve.frames import Frames
from testbed.serve.summaries import read
from testbed.verdict import Verdict

TICK_S: Final = 0.25
LEAST_OFTEN_S: Final = 1.0
MOST_RUNS: Final = 32
MOST_WATCHERS: Final = 500
"""Each keeps a connection open, and 1024 files are what a process usually may have."""
BEHIND: Final = 16
"""Events that wait for a watcher at most."""
KEPT_S: Final = 60.0
"""A follower without watchers is kept so long, since the next one may be on its way."""


class Watcher:
    """Somebody who is sent events, and whether some could not wait for it any more."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND)
        self.missed = False

    def give(self, event: bytes | None) -> None:
        """Add an event; one that does not fit makes all that wait worthless."""
        if self.events.full():
            self.missed = True
            while not self.events.empty():
                self.events.get_nowait()
        self.events.put_nowait(event)


class Watched:
    """A follower and those who watch."""

    def __init__(self, directory: Path) -> None:
        self.follower = Follower(directory)
        self.watchers: set[Watcher] = set()
        self.task: asyncio.Task[None] | None = None
        self.looked_at_s = time.monotonic()
        self.caught_up = asyncio.Event()
        self.finished = False
        """Whether nobody carries the run out any more, and all of it was read."""
        self.ended = False
        """Whether nothing more will be told, for whatever reason."""
        self._whole: bytes | None = None

    def whole(self) -> bytes:
        """The event with all signals, as of the last tick."""
        if self._whole is None:
            self._whole = _event("whole", self.follower.whole())
        return self._whole

    def tell(self, event: bytes | None) -> None:
        """Send to all watchers; None is the last thing that they get."""
        self._whole = None
        for watcher in self.watchers:
            watcher.give(event)

    def end(self) -> bytes:
        """The event that is the last one of a run."""
        judged = read(self.follower.run.verdict, Verdict)
        return _event("end", {"state": judged.status if judged else "UNKNOWN"})


class Live:
    """All runs that are watched now; of one event loop."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._watched: dict[str, Watched] = {}
        self.closing = False
        """Watchers are sent away at the next tick; may be set from a signal handler."""

    @property
    def watchers(self) -> int:
        return sum(len(one.watchers) for one in self._watched.values())

    def full(self, run: str) -> bool:
        """Whether no further run can be followed."""
        return run not in self._watched and len(self._watched) >= MOST_RUNS

    @property
    def crowded(self) -> bool:
        """Whether nobody more can watch."""
        return self.watchers >= MOST_WATCHERS

    def keep(self, runs: Iterable[str]) -> None:
        """Follow these runs for a while, if there is room, whether anybody watches them or not."""
        for run in runs:
            if not self.full(run):
                self._follow(run)

    def followed(self) -> list[tuple[str, Frames]]:
        """Runs under way that are followed now, and what is known of them."""
        return [(run, one.follower.frames) for run, one in list(self._watched.items()) if not one.finished]

    async def snapshot(self, run: str) -> dict[str, Any]:
        """All signals of a run so far; the follower is kept for a while."""
        watched = self._follow(run)
        await watched.caught_up.wait()
        return watched.follower.whole()

    async def events(self, run: str) -> AsyncIterator[bytes]:
        """What a watcher of this run is sent, to the end of the run or of the server."""
        watched = self._follow(run)
        watcher = Watcher()
        await watched.caught_up.wait()
        if watched.ended and not watched.finished:
            return
        watched.watchers.add(watcher)
        try:
            yield watched.whole()
            while not watched.ended and (event := await watcher.events.get()) is not None:
                missed, watcher.missed = watcher.missed, False
                yield watched.whole() if missed else event
            if watched.finished:
                yield watched.whole()
                yield watched.end()
        finally:
            watched.watchers.discard(watcher)
            watched.looked_at_s = time.monotonic()

    def _follow(self, run: str) -> Watched:
        watched = self._watched.get(run)
        if watched is None:
            watched = self._watched[run] = Watched(self._runs / run)
            watched.task = asyncio.create_task(self._work(run, watched))
        watched.looked_at_s = time.monotonic()
        return watched

    async def _work(self, run: str, watched: Watched) -> None:
        """Read on, tell the watchers, stop when there is nothing more to read."""
        told_s = 0.0
        try:
            while not self.closing:
                over, more = await asyncio.to_thread(watched.follower.look)
                # A run under way may have something new at every look: what there was at one is shown.
                rest = more if over else watched.follower.behind
                if rest and not watched.caught_up.is_set():
                    continue
                watched.caught_up.set()
                changes, now_s = watched.follower.changes(), time.monotonic()
                if changes["numbers"] or now_s - told_s > LEAST_OFTEN_S:
                    watched.tell(_event("changes", changes))
                    told_s = now_s
                if over and not more:
                    watched.finished = True
                    return
                await asyncio.sleep(TICK_S)
                if not watched.watchers and time.monotonic() - watched.looked_at_s > KEPT_S:
                    return
        finally:
            self._watched.pop(run, None)
            watched.ended = True
            watched.caught_up.set()
            watched.tell(None)


def _event(name: str, data: dict[str, Any]) -> bytes:
    """As in section 9.2 of the HTML standard; JSON has no line breaks, so that one line of data is enough."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
