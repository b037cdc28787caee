"""Checks of texts, each in a process of its own: a few at a time, and only while somebody waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from testbed.errors import Problem
from testbed.serve import processes
from testbed.serve.looking import Found, Question

MOST_AT_ONCE: Final = 2
LIMIT_S: Final = 70.0
"""A policy has a minute (`testbed.resolve.in_child`); the rest of a check takes a second."""
GRACE_S: Final = 2.0
MOST_BYTES: Final = 1 << 26
"""Of an answer, which has a line for each problem and expectation."""
COMMAND: Final = [sys.executable, "-m", "testbed.serve.looking"]


class Dropped(Exception):  # noqa: N818 - no error of ours
    """A check that came to no end: `status` and `problem` say why."""

    def __init__(self, status: int, found: str, allowed: str = "", next_step: str = "") -> None:
        super().__init__(found)
        self.status, self.problem = status, Problem("check", found, allowed, next_step)


class Checks:
    """The checks that are under way; of one event loop."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Found], bool] = {}
        """And whether each gives way to newer ones."""

    def end(self) -> None:
        """End all of them, as the server ends; may be called from a signal handler."""
        for task in list(self._running):
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def check(self, asked: Question, gone: Awaitable[object], *, gives_way: bool = True) -> Found:
        """What a text would run, or its problems.

        The oldest that may gives way when there are too many: who types on does not want it any more. Whoever
        starts a run does.
        Raises Dropped when this one gave way, took too long, or failed, or when `gone` came true first.
        """
        left = asyncio.ensure_future(gone)
        while len(self._running) >= MOST_AT_ONCE:
            oldest = next((one for one, may in self._running.items() if may), None)
            if oldest is None:
                left.cancel()
                raise Dropped(503, f"waits for {MOST_AT_ONCE} runs that are being started", "", "try again")
            del self._running[oldest]
            oldest.cancel()
        work = asyncio.create_task(_look(asked))
        self._running[work] = gives_way
        try:
            await asyncio.wait({work, left}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not work.cancelled():
                return work.result()
            if work.done():
                found = f"gave way to newer ones, as {MOST_AT_ONCE} are made at once, or the server ends"
                raise Dropped(503, found, next_step="try again")
            if left.done():
                raise Dropped(503, "nobody waits for it any more")
            raise Dropped(422, f"did not come to an end within {LIMIT_S:g} s")
        finally:
            left.cancel()
            work.cancel()
            self._running.pop(work, None)
            with suppress(asyncio.CancelledError, Dropped):
                await work


async def _look(asked: Question) -> Found:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=PIPE,
        stdout=PIPE,
        limit=MOST_BYTES,
        env=processes.environment(),
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(asked))
        process.stdin.close()
        # One line: what a policy has left behind may keep the pipe open.
        answer = await process.stdout.readline()
    finally:
        await _end(process)
    try:
        return msgspec.json.decode(answer, type=Found)
    except msgspec.DecodeError:
        raise Dropped(500, "its process failed; the server's output says how") from None


async def _end(process: Process) -> None:
    """End it, gently first, so that it ends its own; then whatever is left in its session."""
    try:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
    finally:
        for pid in _session(process.pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    await process.wait()


def _session(leader: int) -> Iterator[int]:
    """All processes of a session (field 6 of /proc/PID/stat, proc_pid_stat(5))."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == leader:
                yield int(path.parent.name)
