"""The memories of this process that KV is sent from, for tests only."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def memfds(before: frozenset[str] = frozenset()) -> frozenset[str]:
    """The memories to send KV from that are open, but for those that were `before`."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if one.readlink().name.startswith("memfd:kv"):
                found.add(one.name)
    return frozenset(found - before)
