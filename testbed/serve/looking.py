"""Whether a text would run, found out in a process of its own: a policy that is tried may do anything there.

Reads a Question from standard input and writes what it Found to standard output, both as JSON.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from testbed.errors import Problem, TestbedError
from testbed.resolve import resolve
from testbed.resolve.lint import lint
from testbed.scenario.load import validate
from testbed.scenario.overrides import apply_overrides
from testbed.scenario.source import parse_source

TRACES: Final = "TESTBED_TRACES"
_PR_SET_CHILD_SUBREAPER: Final = 36  # include/uapi/linux/prctl.h
_MOST_GENERATIONS: Final = 100


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A text, and what is changed in it."""

    text: bytes
    shown: str
    """What the text is called in problems."""
    directory: str
    """What it names lies below this."""
    seed: int | None
    scale: float | None
    overrides: list[str]


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in brief."""

    name: str
    question: str
    seed: int
    scale: float
    duration_ns: int
    requests: int
    expectations: list[str]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What would be run; None, and problems, when it would not."""

    plan: Brief | None = None
    warnings: list[str] = []
    problems: list[Problem] = []


def look(asked: Question) -> Found:
    """Check a text; policies of the user's own are made in children of this process."""
    named = os.environ.get(TRACES)
    try:
        loaded = validate(apply_overrides(parse_source(asked.shown, asked.text), asked.overrides))
        plan = resolve(
            loaded,
            seed=asked.seed,
            scale=asked.scale,
            base_dir=Path(asked.directory),
            traces=Path(named) if named else None,
        )
        warnings = [str(warning) for warning in lint(loaded, plan, kernel=None, clock="virtual")]
    except TestbedError as error:
        return Found(problems=list(error.problems))
    brief = Brief(
        name=plan.name,
        question=plan.question,
        seed=plan.seed,
        scale=plan.scale,
        duration_ns=plan.duration_ns,
        requests=len(plan.requests),
        expectations=[one.name for one in plan.expectations],
    )
    return Found(plan=brief, warnings=warnings)


def _end_children() -> None:
    """End what a policy has left behind, in sessions of their own, too: as orphans they are ours now.

    Each that ends may leave some more.
    """
    for _ in range(_MOST_GENERATIONS):
        children = list(_children())
        if not children:
            return
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    """Processes whose parent is this one (field 4 of /proc/PID/stat, proc_pid_stat(5))."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                yield int(path.parent.name)


def main() -> None:
    # As an exception, so that children are ended on the way.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        found = look(msgspec.json.decode(sys.stdin.buffer.read(), type=Question))
    finally:
        _end_children()
    with os.fdopen(answer, "wb") as file:
        file.write(msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
