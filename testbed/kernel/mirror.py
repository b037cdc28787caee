"""Copies what is appended to files until it is told to end: `python -m testbed.kernel.mirror SOURCE TARGET`.

For a guest whose programs must not wait for its host: they write to memory, and only this process waits.
What has been copied is never taken back, as the guest can be killed at any moment, its last one included.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

STEP_S: Final = 0.2


def copy(source: Path, target: Path) -> None:
    """Bring `target` up to `source`: what has grown is appended, what has shrunk was written anew."""
    for place, _, names in os.walk(source):
        there = target / Path(place).relative_to(source)
        there.mkdir(exist_ok=True)
        for name in names:
            _append(Path(place, name), there / name)


def _append(source: Path, target: Path) -> None:
    with source.open("rb") as new, target.open("ab") as old:
        had_bytes = old.tell()
        if os.fstat(new.fileno()).st_size < had_bytes:
            old.truncate(0)
            had_bytes = 0
        new.seek(had_bytes)
        shutil.copyfileobj(new, old)


def main() -> None:
    """Copy until SIGTERM, and then once more all that there is."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda heard, _frame: told.append(heard))
    source, target = map(Path, sys.argv[1:])
    while True:
        last = bool(told)
        copy(source, target)
        if last:
            return
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
