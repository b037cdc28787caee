"""What became of a sweep: a row for each run, sweep.json, and what is left of the run directories."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.table import Table
from rich.text import Text

from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted
from testbed.verdict import EXIT_CODES, STYLES, Status

LONGEST: Final = 300
"""Characters of a finding on the terminal; sweep.json has all."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run that ended."""

    scenario: str
    seed: int
    overrides: tuple[str, ...]
    status: Status
    failed: tuple[str, ...]
    """Every expectation that did not hold, and every reason not to trust the run, in words."""
    record_digest: str
    virtual_s: float
    wall_s: float
    directory: str | None
    """None if it is gone, as that of a run that passed is."""
    command: str
    """Runs it again."""

    @property
    def line(self) -> str:
        """For the terminal: what did not hold, and where to look."""
        finding = " ".join("; ".join(self.failed[:1]).split())
        if len(finding) > LONGEST:
            finding = f"{finding[: LONGEST // 2]} ... {finding[-LONGEST // 2 :]}"
        return f"{self.status:8}{self.scenario} seed {self.seed}: {finding}   {self.directory or ''}".rstrip()


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """sweep.json."""

    planned: int
    """Runs that were asked for; fewer have a row if the sweep was broken off."""
    runs: tuple[Row, ...]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def row(ended: Ended) -> Row:
    """What became of a run. UNKNOWN if it left no verdict, or died after it had made one."""
    wanted, verdict = ended.wanted, ended.verdict
    assert wanted.seed is not None
    if verdict is None:
        status: Status = "UNKNOWN"
        failed = [ended.left_nothing]
    elif verdict.exit_code != ended.exit_code:
        status = "UNKNOWN"
        failed = [f"ended with exit code {ended.exit_code} after the verdict {verdict.status}: {ended.said}"]
    else:
        status = verdict.status
        missed = sorted(
            (result for result in verdict.results if result.status != "PASS"),
            key=lambda result: result.status,
        )
        failed = [*verdict.trust, *(result.sentence for result in missed)]
    manifest = _manifest(ended.directory)
    return Row(
        scenario=str(wanted.scenario),
        seed=wanted.seed,
        overrides=wanted.overrides,
        status=status,
        failed=tuple(failed),
        record_digest=manifest.get("record_digest", ""),
        virtual_s=manifest.get("virtual_s", 0.0),
        wall_s=manifest.get("wall_s", 0.0),
        directory=None if ended.directory is None else str(ended.directory),
        command=command(wanted),
    )


def command(wanted: Wanted) -> str:
    """What a user types to see this run again."""
    return shlex.join(["python", "-m", "testbed.run", *wanted.arguments])


def discard(directory: Path) -> None:
    """Remove a run directory, and what led to it if nothing else is there."""
    shutil.rmtree(directory)
    link = directory.with_name("latest")
    if not link.exists():
        link.unlink(missing_ok=True)
    with suppress(OSError):
        directory.parent.rmdir()


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a run failed, else 2 if one is unknown, else 0."""
    found = {one.status for one in rows}
    statuses: tuple[Status, ...] = ("FAIL", "UNKNOWN")
    return next((EXIT_CODES[status] for status in statuses if status in found), EXIT_CODES["PASS"])


def tally(rows: Sequence[Row]) -> str:
    """`9 PASS, 1 FAIL, 0 UNKNOWN`."""
    counts = Counter(one.status for one in rows)
    return ", ".join(f"{counts[status]} {status}" for status in EXIT_CODES)


def table(rows: Sequence[Row], scenarios: Sequence[str]) -> Table:
    """For the terminal: a line for each scenario."""
    view = Table("scenario")
    for heading in (*EXIT_CODES, "virtual s", "wall s"):
        view.add_column(heading, justify="right")
    for scenario in scenarios:
        its = [one for one in rows if one.scenario == scenario]
        counts = Counter(one.status for one in its)
        view.add_row(
            Text(scenario),
            *(Text(str(counts[each]), style=STYLES[each] if counts[each] else "") for each in EXIT_CODES),
            f"{sum(one.virtual_s for one in its):.0f}",
            f"{sum(one.wall_s for one in its):.0f}",
        )
    return view


def _manifest(directory: Path | None) -> dict[str, Any]:
    """What the run was made of; nothing if it did not come to that."""
    noted: dict[str, Any] = {}
    if directory is not None:
        with suppress(OSError, ValueError):
            noted = json.loads(RunDir(directory).manifest.read_bytes())
    return noted
