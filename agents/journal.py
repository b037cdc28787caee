"""Append-only JSON lines: what an agent notes while it works. Every line reaches the file at once."""

from __future__ import annotations

from io import FileIO
from os import PathLike
from typing import Any

import msgspec


class Journal:
    """One file, one writer. Each line has `kind` and `t_ns` (CLOCK_MONOTONIC)."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = FileIO(path, "a")
        self._encoder = msgspec.json.Encoder()

    def note(self, kind: str, t_ns: int, **fields: Any) -> None:
        """Append one line."""
        self._file.write(self._encoder.encode({"kind": kind, "t_ns": t_ns, **fields}) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
