"""Reads a run's journal while it grows: one follower per run, however many watch it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from testbed import carriers, journal_lines
from testbed.journal_lines import Line
from testbed.rundir import RunDir
from testbed.serve.frames import SIGNALS, Frames
from testbed.serve.summaries import Planned, read

WRITERS: Final = ("bench", "link", "tcp", "client", "router")
"""Whose files hold what is shown."""
CHUNK_BYTES: Final = 1 << 22
"""Read of one file at once."""
SPEED_WINDOW_S: Final = 5.0
LONGEST_S: Final = 36 * 3600.0
"""A moment beyond this is no moment of a run."""
MOST: Final = 2**63
"""Nothing that is counted comes to this."""
SIGNIFICANT: Final = 5
_DECODER = msgspec.json.Decoder(journal_lines.AnyLine)


class _Tail:
    """The lines that a file has gained; what is not a whole line yet waits."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""
        self.behind = False
        """Whether there was more than was read of it."""

    def new_lines(self) -> list[bytes]:
        self.behind = False
        try:
            if not self._path.is_file():
                return []
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read(CHUNK_BYTES)
        except OSError:
            return []
        self._read += len(text)
        self.behind = len(text) == CHUNK_BYTES
        *lines, self._rest = (self._rest + text).split(b"\n")
        return lines


class Follower:
    """What is known of one run. One thread at a time may use it."""

    def __init__(self, directory: Path) -> None:
        self.run = RunDir(directory)
        self._planned = read(self.run.plan, Planned)
        self.frames = Frames(self._planned.duration_ns / 1e9 if self._planned else 1.0)
        self._tails = {name: _Tail(self.run.journal / f"{name}.jsonl") for name in WRITERS}
        self._console = _Tail(self.run.console)
        self._stage = ""
        self._seen: deque[tuple[float, float]] = deque()

    @property
    def over(self) -> bool:
        """Whether nobody carries the run out any more."""
        carrier = carriers.of_run(self.run)
        return carrier is None or not carrier.alive

    @property
    def behind(self) -> bool:
        """Whether the last look did not reach the end of what there was."""
        return any(tail.behind for tail in self._tails.values())

    def look(self) -> tuple[bool, bool]:
        """Whether the run was over before this look, and whether there was anything new."""
        over = self.over
        return over, self.advance()

    def advance(self) -> bool:
        """Read what is new; False when nothing was."""
        catching_up = self.behind
        lines = list(self._new_lines())
        self.frames.add(lines)
        for text in self._console.new_lines():
            if text.startswith(b"@stage "):
                self._stage = text[7:60].decode("ascii", "replace").strip()
        now_s = time.monotonic()
        if catching_up:
            self._seen.clear()  # how fast a journal is read is not how fast the run is
        self._seen.append((now_s, self.frames.newest_s))
        while now_s - self._seen[0][0] > SPEED_WINDOW_S:
            self._seen.popleft()
        return bool(lines)

    def _new_lines(self) -> Iterator[Line]:
        # t0 first, so that nothing has to wait for it.
        for tail in self._tails.values():
            for text in tail.new_lines():
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    line: Line = _DECODER.decode(text)
                    if 0 <= line.t_ns < LONGEST_S * 1e9 and _within(line):
                        yield line

    def now(self) -> dict[str, Any]:
        """Where the run is: stage, virtual time, virtual seconds per second (None: not known)."""
        (first_s, from_s), (last_s, to_s) = self._seen[0], self._seen[-1]
        moving = to_s > 0 and last_s - first_s >= 1  # a guest that boots has no speed
        speed = (to_s - from_s) / (last_s - first_s) if moving else None
        return {
            "stage": self._stage,
            "virtual_s": round(self.frames.newest_s, 3),
            "duration_s": self._planned.duration_ns / 1e9 if self._planned else None,
            "speed": None if speed is None else round(speed, 2),
        }

    def whole(self) -> dict[str, Any]:
        """Everything so far: columns with a value per stretch."""
        rows = [self.frames.values(number) for number in range(len(self.frames))]
        return {
            "stretch_s": self.frames.stretch_s,
            "signals": {name: [_rounded(row[name]) for row in rows] for name in SIGNALS},
            "marks": msgspec.to_builtins(self.frames.marks),
            "now": self.now(),
        }

    def changes(self) -> dict[str, Any]:
        """What has changed since this was last asked: stretches by number."""
        numbers = self.frames.take_changed()
        rows = [self.frames.values(number) for number in numbers]
        return {
            "numbers": numbers,
            "signals": {name: [_rounded(row[name]) for row in rows] for name in SIGNALS},
            "marks": msgspec.to_builtins(self.frames.marks),
            "now": self.now(),
        }


def _within(line: Line) -> bool:
    """Whether every number of the line is one that counts of a run can be."""
    numbers = (getattr(line, name) for name in line.__struct_fields__)
    return all(abs(one) < MOST for one in numbers if isinstance(one, int))


def _rounded(value: float | None) -> float | None:
    """A chart shows no more digits, and they are what is sent."""
    return None if value is None else float(f"{value:.{SIGNIFICANT}g}")
