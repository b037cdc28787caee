"""How a run goes on, in one line: what crosses the link and where the threshold stands, lately.

Read from the end of the journal that the run writes anyway, from outside of it: the run does nothing for it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from testbed.readable import number, quantity

STEPS: Final = 24
"""How many of the latest values are shown."""
BLOCKS, LETTERS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
"""From nothing to the most, for terminals that can and cannot show blocks."""
LINK, GOODPUT = "link A to B", "goodput"
TAIL_BYTES: Final = 262_144
"""In the last so many bytes of a file, its latest line is looked for."""


class _Line(msgspec.Struct):
    """Of a line of the journal, what is shown."""

    kind: str = ""
    t_ns: int = 0
    direction: str = ""
    tx_bytes: int | None = None
    goodput_bps: float | None = None
    threshold_tokens: int | None = None


class Lately:
    """The latest values of a run whose journal lies in a directory."""

    def __init__(self, journal: Path, *, blocks: bool) -> None:
        self._journal, self._letters = journal, BLOCKS if blocks else LETTERS
        self._rates_bps: deque[float] = deque(maxlen=STEPS)
        self._thresholds: deque[float] = deque(maxlen=STEPS)
        self._name = LINK
        self._sent: _Line | None = None

    def look(self) -> None:
        """Take what is the latest now; a file that is not there or not readable has nothing to say."""
        control = _latest(self._journal / "router.jsonl", "control")
        if control is not None and control.threshold_tokens is not None:
            self._thresholds.append(control.threshold_tokens)
        if control is not None and control.goodput_bps is not None:
            if self._name == LINK:
                self._rates_bps.clear()
            self._name = GOODPUT
            self._rates_bps.append(control.goodput_bps)
        elif self._name == LINK:
            self._look_at_link()

    def _look_at_link(self) -> None:
        """What left the rate stage since the last look: for as long as no policy says what arrives."""
        sent = _latest(self._journal / "link.jsonl", "link", "a_to_b")
        before, self._sent = self._sent, sent
        if sent is None or before is None or sent.t_ns <= before.t_ns:
            return
        moved_bytes = (sent.tx_bytes or 0) - (before.tx_bytes or 0)
        self._rates_bps.append(max(0.0, moved_bytes * 8e9 / (sent.t_ns - before.t_ns)))

    def __str__(self) -> str:
        """Both, with their latest values; empty before there are any."""
        parts = []
        if self._rates_bps:
            line = sparkline(self._rates_bps, self._letters)
            parts.append(f"{self._name} {line} {quantity(self._rates_bps[-1], 'bps')}")
        if self._thresholds:
            line = sparkline(self._thresholds, self._letters, from_zero=False)
            parts.append(f"threshold {line} {number(self._thresholds[-1])} tokens")
        return "   ".join(parts)


def sparkline(values: Sequence[float] | deque[float], letters: str, *, from_zero: bool = True) -> str:
    """A letter for each value, from 0 or the lowest to the highest; all the same: the middle one, or 0."""
    highest = max(values)
    lowest = min(0.0, *values) if from_zero else min(values)
    most = len(letters) - 1
    if highest == lowest:
        return letters[0 if from_zero else most // 2] * len(values)
    first = 0 if from_zero else 1
    return "".join(
        letters[first + round((value - lowest) / (highest - lowest) * (most - first))] for value in values
    )


def _latest(path: Path, kind: str, direction: str = "") -> _Line | None:
    """The last whole line of a kind near the end of a file, if there is one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).split(b"\n")
    except OSError:
        return None
    for text in reversed(lines[:-1]):
        if b'"%b"' % kind.encode() not in text:
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError:
            continue
        if line.kind == kind and line.direction == direction:
            return line
    return None
