"""Directories in a cache for what is not finished yet, known for ours by their whole name.

A cache may lie in a directory in which people keep other things, too; nothing is removed that only begins
like one of these, or that lies behind a symbolic link.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Kind = Literal["draft", "kernel-build", "vm-build"]
"""`scripts/vm` makes the last kind itself, as root."""


@contextmanager
def draft(kind: Kind, place: Path) -> Iterator[Path]:
    """A fresh directory in `place` for the time of the block; OSError when it cannot be made."""
    path = place.absolute() / f"{kind}-{uuid.uuid4().hex}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def found(kind: Kind, place: Path) -> list[Path]:
    """Those that lie in `place`, finished with or not; none when it cannot be read or is a symbolic link."""
    name = re.compile(rf"{kind}-[0-9a-f]{{32}}")
    paths: list[Path] = []
    with suppress(OSError):
        if not place.is_symlink():
            with os.scandir(place) as entries:
                paths = sorted(
                    Path(one.path)
                    for one in entries
                    if name.fullmatch(one.name) and one.is_dir(follow_symlinks=False)
                )
    return paths


def is_locked(path: Path) -> bool:
    """Whether somebody who works in the cache holds this lock now; it may be a directory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
