"""Temporary directories that go with their owner, however that ends.

A shell in a session of its own makes them, waits for the end of a pipe that only the owner holds, and removes
them: also when the owner is killed outright. Should the shell be killed as well, `testbed.clean` finds them
by their names, and by the lock that only a living owner holds.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

Kind = Literal["run", "record", "sweep", "worker"]
NAME: Final = re.compile(r"testbed-(?:run|record|sweep|worker)-[0-9a-f]{32}")
PLACES: Final = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - where to look
KEEPER: Final = """
trap '' PIPE HUP INT TERM
umask 077
mkdir -- "$@" && echo made
read -r _
rm -rf --one-file-system -- "$@" 2>/dev/null || { sleep 1; rm -rf --one-file-system -- "$@"; }
"""
"""The second try is for files that a child of the owner made while it was ending itself."""
FRESH_S: Final = 2.0
"""So young, a directory may not have its lock yet."""


@contextmanager
def scratch(kind: Kind, *places: str | Path) -> Iterator[list[Path]]:
    """A fresh directory in each of `places`, or one in the usual place; all bear the same name.

    OSError when one cannot be made.
    """
    name = f"testbed-{kind}-{uuid.uuid4().hex}"
    usual = (tempfile.gettempdir(),)  # "." when TMPDIR says so, and the keeper works elsewhere
    paths = [place / name for place in dict.fromkeys(Path(one).absolute() for one in places or usual)]
    keeper = subprocess.Popen(
        ["sh", "-c", KEEPER, "testbed-keeper", *map(str, paths)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    held: list[int] = []
    with keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            said = keeper.stdout.readline().decode(errors="replace").strip()
            if said != "made":
                raise OSError(f"no temporary directory: {said}")
            for path in paths:
                held.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                fcntl.flock(held[-1], fcntl.LOCK_EX)
            yield paths
        finally:
            for descriptor in held:
                os.close(descriptor)
            keeper.stdin.close()
            keeper.wait()
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)


def abandoned(places: Iterable[str | Path] | None = None) -> Iterator[Path]:
    """This user's (root: everybody's) directories whose owner has ended; by default in all usual places."""
    looked = (*PLACES, tempfile.gettempdir()) if places is None else places
    for place in dict.fromkeys(Path(one).resolve() for one in looked):
        with suppress(OSError):
            yield from sorted(path for path in place.iterdir() if is_abandoned(path))


def is_abandoned(path: Path) -> bool:
    """Whether it is one of ours, by name and mode, that nobody holds any more."""
    if not NAME.fullmatch(path.name):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if stat.S_IMODE(status.st_mode) != stat.S_IRWXU or os.geteuid() not in (0, status.st_uid):
            return False
        if time.time() - status.st_ctime < FRESH_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
