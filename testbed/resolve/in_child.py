"""A user's code, tried in a process of its own: what it does there is not done to the command."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn, TypeVar

from agents.policies.failure import PolicyFailure
from testbed.errors import ScenarioError

T = TypeVar("T")

PATIENCE_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 16
_LOOK_S: Final = 0.02


def in_child(work: Callable[[], T]) -> T:
    """What `work` returns; it must be picklable. What it prints goes to stderr.

    It may end its process, hang, leave threads and children behind: all of it is gone afterwards, but for
    children that have made a session of their own.

    Raises:
        ScenarioError: `work` raised it.
        PolicyFailure: its process ended before `work` did, or `work` took more than a minute.
    """
    sys.stdout.flush()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _work(work, send)
    os.close(send)
    try:
        data, status = _wait(child, receive)
    finally:
        os.close(receive)
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    if status is None:
        raise PolicyFailure(f"did not come to an end within {PATIENCE_S:g} s")
    try:
        done, result = pickle.loads(data)  # noqa: S301 - our own child has written it
    except (EOFError, pickle.UnpicklingError):
        code = os.waitstatus_to_exitcode(status)
        raise PolicyFailure(f"ended the process that tried it, with exit code {code}") from None
    if not done:
        raise ScenarioError(*result)
    return result  # type: ignore[no-any-return]


def _work(work: Callable[[], object], send: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        try:
            data = pickle.dumps((True, work()))
        except ScenarioError as error:
            data = pickle.dumps((False, error.problems))
        with os.fdopen(send, "wb") as pipe:
            pipe.write(data)
        sys.stdout.flush()
        os._exit(0)
    finally:
        os._exit(1)


def _wait(child: int, receive: int) -> tuple[bytes, int | None]:
    """What it has written by its end, and its status; None: it did not end in time.

    Children of its own may keep the pipe open, so the end of that tells nothing.
    """
    written, ended, deadline_s = b"", None, time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if select.select([receive], [], [], _LOOK_S if ended is None else 0.0)[0]:
            piece = os.read(receive, _PIECE_BYTES)
            written += piece
            if piece:
                continue
        if ended is not None:
            return written, ended
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended = status
    return written, None
