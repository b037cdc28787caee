"""Who carries out a run: a note in its directory, by which others find the process and tell it to end.

A process id alone says nothing once the process has ended and the kernel has given the number away again;
together with the boot and the moment of the start, in ticks since then, it names one process for ever
(field 22 of /proc/PID/stat, proc_pid_stat(5)).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from testbed.rundir import RunDir, contents

BOOT = Path("/proc/sys/kernel/random/boot_id")
MOST_PIDS = 2**22
"""PID_MAX_LIMIT of the kernel (include/linux/threads.h)."""


class Carrier(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and since when it carries out the run (seconds since 1970)."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=MOST_PIDS)]
    started_ticks: int
    boot: str
    since_s: float
    words: tuple[str, ...] = ()
    """The command line that it was started with: of a run that was killed, nothing else tells."""

    def same_process(self, other: Carrier) -> bool:
        """Whether both notes are of one process."""
        mine = (self.pid, self.started_ticks, self.boot)
        return mine == (other.pid, other.started_ticks, other.boot)

    @property
    def alive(self) -> bool:
        """Whether this very process is there, and not only waits to be reaped."""
        return self.boot == _boot() and _started_ticks(self.pid) == self.started_ticks

    def send(self, wanted: signal.Signals) -> bool:
        """Send a signal to this process and no other; False when it has ended, or is somebody else's."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            # From here on the number cannot be given away unnoticed: the handle keeps to one process.
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, wanted)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True


def of_process(pid: int) -> Carrier | None:
    """The process with this number now; None when there is none."""
    ticks = _started_ticks(pid)
    if ticks is None:
        return None
    now_s = round(time.time(), 3)
    return Carrier(pid=pid, started_ticks=ticks, boot=_boot(), since_s=now_s, words=_words(pid))


def note(run: RunDir) -> None:
    """Note this process in the run's directory, where others may look at any moment: whole, or not at all."""
    mine = of_process(os.getpid())
    assert mine is not None, "this process is alive"
    new = run.carrier.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(mine) + b"\n")
    new.replace(run.carrier)


def of_run(run: RunDir) -> Carrier | None:
    """The process that was noted; None where there is no note, or none that can be read."""
    with suppress(OSError, msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(contents(run.carrier), type=Carrier)
    return None


def _boot() -> str:
    return BOOT.read_text(encoding="ascii").strip()


def _words(pid: int) -> tuple[str, ...]:
    """As text that can be written down: a word may be anything."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        return tuple(word.decode("utf-8", "replace") for word in words)
    return ()


def _started_ticks(pid: int) -> int | None:
    """None of a process that is not there, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, which may hold anything, is in parentheses; the state follows, then field 4 and on.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
