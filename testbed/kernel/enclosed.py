"""A run on the host's kernel that ends as a whole: `python -m testbed.kernel.enclosed COMMAND`.

COMMAND is the first process of a pid namespace of its own. When it ends, or this process does, in whatever
way, the kernel kills everything that it had started, containers too, and with the last of them go the mounts
and the network namespaces, which have no name outside. What is left is put back by this process: control
groups, and settings of the whole kernel. A file with the run's label, locked by this process, notes them, so
that after a crash of this process itself the next run, or `testbed.clean`, can do the same.

Asked to end (SIGTERM, SIGINT, SIGHUP) it asks COMMAND by SIGINT, and ends it when that takes too long.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from testbed import namespaces, sysctl
from testbed.errors import ShapingError
from testbed.kernel import groups

NOTES: Final = Path("/run/testbed")
WORK: Final = NOTES / "work"
"""Where COMMAND mounts a file system of its own, which goes with it; one empty directory for all runs."""
PATIENCE_S: Final = 8.0
"""How long COMMAND may take to end; less than whoever asked this process gives it."""
STEP_S: Final = 0.2
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1  # include/uapi/linux/prctl.h


def main() -> None:
    """End as COMMAND did."""
    label = f"testbed-{os.getpid()}"
    signal.pthread_sigmask(signal.SIG_BLOCK, [*ENDING, signal.SIGCHLD])
    with noted(label):
        status = _follow(_start(label, sys.argv[1:]))
    if os.WIFSIGNALED(status):
        how = os.WTERMSIG(status)
        if how != signal.SIGKILL:
            signal.signal(how, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.kill(os.getpid(), how)
    sys.exit(os.waitstatus_to_exitcode(status))


@contextmanager
def noted(label: str) -> Iterator[None]:
    """Around a run: its note is there, locked; afterwards its groups are gone and settings as before.

    As before the first of several runs at a time, that is, and after the last of them. Ends the program when
    there are groups of that name already, which are somebody else's then.
    """
    NOTES.mkdir(mode=0o755, exist_ok=True)
    note = NOTES / f"{label}.json"
    with ExitStack() as stack:
        with _alone():
            for other in left():
                _put_back(other)
            if groups.of_label(label):
                sys.exit(f"control groups {label} are there already, and no run has noted them; start again")
            others = [before for one in notes() if (before := _settings(one)) is not None]
            file = stack.enter_context(note.open("w", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump(others[0] if others else sysctl.of_kernel(), file)
            file.flush()
        try:
            yield
        finally:
            with _alone():
                _put_back(note)


def restore(note: Path) -> bool:
    """Put back what a run that has ended left of its label; whether all is gone."""
    with _alone():
        return not is_held(note) and _put_back(note)


def _put_back(note: Path) -> bool:
    gone = groups.remove(note.stem)
    if gone:
        if notes() == [note]:
            with suppress(OSError, ValueError, ShapingError):
                if (before := _settings(note)) is not None:
                    sysctl.put_back(before)
        note.unlink(missing_ok=True)
        if not notes():
            with suppress(OSError):
                WORK.rmdir()
    return gone


def _settings(note: Path) -> dict[str, str] | None:
    """What a note has of the whole kernel; None when it was not written to its end, or is damaged."""
    try:
        noted = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    whole = isinstance(noted, dict) and all(isinstance(noted.get(name), str) for name in sysctl.OF_KERNEL)
    return noted if whole else None


@contextmanager
def _alone() -> Iterator[None]:
    """No other process reads or changes notes meanwhile."""
    directory = os.open(NOTES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def left() -> list[Path]:
    """The notes of runs whose process around them is gone."""
    return [note for note in notes() if not is_held(note)]


def notes() -> list[Path]:
    """Of all runs on this kernel, those that have ended badly too."""
    return [note for note in sorted(NOTES.glob("testbed-*.json")) if groups.LABEL.fullmatch(note.stem)]


def is_held(note: Path) -> bool:
    """Whether the run's process still has its note."""
    try:
        with note.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _start(label: str, command: list[str]) -> int:
    """Its process id; it dies with this process."""
    ends, alive = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    namespaces.private_processes()
    child = os.fork()
    if child:
        os.close(ends)
        return child  # `alive` stays open as long as this process is there
    os.close(alive)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(BlockingIOError):
        os.read(ends, 1)
        os._exit(1)  # whoever is around it died before
    told = {namespaces.LABEL_VARIABLE: label, namespaces.PID_VARIABLE: str(Path("/proc/self").readlink())}
    try:
        # crun refuses hybrids whose version 2 has controllers; without it, it sees version 1
        namespaces.own_proc(*([groups.ROOT / groups.BESIDE] if groups.layout() == "hybrid" else []))
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # by which it is asked; a shell's background ignores it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*ENDING, signal.SIGCHLD])
        os.execvpe(command[0], command, {**os.environ, **told})  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def _follow(child: int) -> int:
    """Wait for its end, which comes sooner when this process is asked to end; its wait status."""
    deadline_s = float("inf")
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        heard = signal.sigtimedwait([*ENDING, signal.SIGCHLD], STEP_S)
        if heard is not None and heard.si_signo in ENDING:
            os.kill(child, signal.SIGINT)
            deadline_s = min(deadline_s, time.monotonic() + PATIENCE_S)
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
