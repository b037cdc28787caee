"""One child process with a log, a time limit and no survivors."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

POLL_MS = 10
GONE_S = 2


class OutlivedError(Exception):
    """The child was still running when its wall-clock limit was reached; it has been ended."""


def supervise(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    wall_limit_s: float,
    grace_s: float,
    on_line: Callable[[str], None],
) -> int:
    """Run `argv` in a session of its own until it ends; return its status as `Popen.returncode` has it.

    Its output is appended to the file `log` by the child itself, so a slow reader never holds it up,
    and handed line by line to `on_line` from there. However this function is left, by an exception or
    Ctrl-C too, the whole process group has ended before: asked with SIGTERM and given `grace_s`
    seconds first when that is not 0. When this process is killed outright, the kernel kills the
    child (SIGKILL, or SIGTERM where there is grace).

    Raises OutlivedError when the child takes more than `wall_limit_s` seconds.
    """
    death_signal = "TERM" if grace_s else "KILL"
    with log.open("ab") as sink, log.open("rb") as source:
        source.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            ["prlimit", "--core=0", *tied(death_signal), *argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _follow(child, source, time.monotonic() + wall_limit_s, on_line)
        finally:
            _end(child, grace_s)
    return child.returncode


def tied(death_signal: str) -> list[str]:
    """What a command is started through to get that signal when the thread that starts it ends.

    Who has died before the signal was asked for is no parent any more, and the command is not begun.
    """
    check = '[ "$PPID" = "$0" ] || exit 1; unset PWD OLDPWD; exec "$@"'
    return ["setpriv", "--pdeathsig", death_signal, "--", "sh", "-c", check, str(os.getpid())]


def _follow(
    child: subprocess.Popen[bytes], source: BinaryIO, deadline_s: float, on_line: Callable[[str], None]
) -> None:
    """Hand on lines until the child has ended (it stays a zombie, so that its pid stays ours)."""
    lines = _Lines(source, on_line)
    pidfd = os.pidfd_open(child.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(POLL_MS):
            lines.pump()
            if time.monotonic() > deadline_s:
                raise OutlivedError
    finally:
        os.close(pidfd)
    lines.pump()
    lines.flush()


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """End and reap the child and its process group; a second Ctrl-C cuts the grace short."""
    try:
        if grace_s and not _has_ended(child):
            child.send_signal(signal.SIGTERM)
            deadline_s = time.monotonic() + grace_s
            while time.monotonic() < deadline_s and not _has_ended(child):
                time.sleep(POLL_MS / 1000)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        _await_group(child.pid)


def _await_group(group: int) -> None:
    """Wait until the last of a killed process group has gone; not for ever, as nobody may reap it."""
    deadline_s = time.monotonic() + GONE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(group, 0)
            time.sleep(POLL_MS / 1000)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Lines:
    """Whole lines of a growing file."""

    def __init__(self, source: BinaryIO, on_line: Callable[[str], None]) -> None:
        self._source = source
        self._on_line = on_line
        self._rest = b""

    def pump(self) -> None:
        """Hand on every line that is complete by now."""
        *lines, self._rest = (self._rest + self._source.read()).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip("\r"))

    def flush(self) -> None:
        """Hand on what is left without an end of line."""
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))
            self._rest = b""
