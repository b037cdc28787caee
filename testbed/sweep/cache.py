"""What a sweep has run already: OUT/points/<digest>/ with row.json and, in run/, what the run left.

A result gets its name in one step, when all of it is there: whatever ends a sweep, half a result is never
taken for one. One sweep at a time has OUT to itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from testbed.errors import Problem, RunError, ScenarioError
from testbed.rundir import RunDir
from testbed.runs import Ended
from testbed.sweep.outcome import Row, row
from testbed.verdict import Verdict

ROW: Final = "row.json"
RUN: Final = "run"
DRAFT: Final = "draft-"
LEFT_OUT: Final = ("journal", "pcap", "probes.json", "console.log")
"""Of runs that were judged: large, and of no use once the record is made."""


class Points:
    """The results below one OUT."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._kept = out / "points"
        self.scratch = Path()
        """For run directories, while a sweep goes on."""

    def row(self, digest: str) -> Row | None:
        """What became of the run with this digest; None if there was none."""
        place = self._kept / digest
        try:
            found = msgspec.json.decode((place / ROW).read_bytes(), type=Row)
        except (OSError, msgspec.DecodeError):
            return None
        run = place / RUN
        return msgspec.structs.replace(found, directory=str(run) if run.is_dir() else None)

    def run(self, digest: str) -> RunDir:
        """Its directory: scenario, plan, manifest, verdict and record."""
        return RunDir(self._kept / digest / RUN)

    def verdict(self, digest: str) -> Verdict:
        """Of a run that has one."""
        return Verdict.read(self.run(digest).verdict)

    def keep(self, digest: str, ended: Ended) -> Row:
        """Take in what a run left, in place of what is there; returns its row."""
        found = row(ended)
        draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=self._kept))
        if ended.directory is not None:
            for name in () if found.status == "UNKNOWN" else LEFT_OUT:
                _remove(ended.directory / name)
            ended.directory.rename(draft / RUN)
        written = msgspec.structs.replace(found, directory=None)
        (draft / ROW).write_bytes(msgspec.json.encode(written))
        _sync(draft)
        place = self._kept / digest
        if place.exists():
            old = Path(tempfile.mkdtemp(prefix=DRAFT, dir=self._kept))
            place.rename(old / "old")
            _remove(old)
        draft.rename(place)
        kept = self.row(digest)
        assert kept is not None, "it was written just now"
        return kept

    def _begin(self) -> None:
        """Remove what a sweep that was killed left behind, and make room for this one."""
        for left in (*self._kept.glob(f"{DRAFT}*"), *self.out.glob("work-*")):
            _remove(left)
        self.scratch = Path(tempfile.mkdtemp(prefix="work-", dir=self.out))


@contextmanager
def opened(out: Path) -> Iterator[Points]:
    """The results in `out`, which nobody else can open meanwhile.

    Raises:
        ScenarioError: `out` cannot be written.
        RunError: another sweep has it.
    """
    try:
        (out / "points").mkdir(parents=True, exist_ok=True)
        lock = (out / "lock").open("w", encoding="utf-8")
    except OSError as error:
        problem = Problem(f"--out {out}", f"cannot be made: {error}", "a writable directory")
        raise ScenarioError(problem) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = "another sweep is writing here"
            raise RunError(
                Problem(f"--out {out}", found, next_step="wait for it, or take another --out")
            ) from None
        points = Points(out)
        points._begin()  # noqa: SLF001 - only whoever holds the lock may
        try:
            yield points
        finally:
            _remove(points.scratch)


def _remove(path: Path) -> None:
    """A file or a directory; runs that a killed sweep left behind may still write there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(draft: Path) -> None:
    """Onto the disk before it gets its name, or a crash of the machine could leave it empty."""
    for place, _, names in os.walk(draft):
        for name in names:
            with suppress(OSError), Path(place, name).open("rb") as file:
                os.fsync(file.fileno())
