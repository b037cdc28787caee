"""Reading what somebody else may have put there: a pipe never ends, a device gives without end."""

from __future__ import annotations

import errno
from pathlib import Path


def read(path: Path) -> bytes:
    """All of a regular file, through links, too. OSError: it is none, or cannot be read."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return path.read_bytes()
