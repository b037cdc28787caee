"""A program of the user's that runs beside the system under test, as the plan has it."""

from __future__ import annotations

from pathlib import Path

import msgspec

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
"""Where a program's name is looked for."""
SCHEDULER = "scheduler"
"""The name of the one that is the policy: it runs with the router, and to the end."""


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One container: an argument list, in the network of a topology host."""

    name: str
    host: str
    command: tuple[str, ...]
    files: dict[str, bytes]
    """What lies in its working directory, by relative path."""
    memory_bytes: int
    """Limit of its memory; what its sockets hold counts."""
    at_ns: int = 0
    until_ns: int | None = None
    """When it is asked to end (SIGTERM); None: it ends by itself, with `exit_code`."""
    exit_code: int = 0
    ready: str = ""
    """It is ready once its output has this text; empty: see `listens`."""
    listens: int = 0
    """It is ready once something listens on this TCP port of its host; 0: it is ready at once."""

    @property
    def comes_first(self) -> bool:
        """Whether the run begins once it is ready."""
        return not self.at_ns and bool(self.ready or self.listens)


def obituary(directory: Path) -> Path:
    """The file that says how the scheduler ended, once it has, for those who ask it."""
    return directory / f"{SCHEDULER}.ended"
