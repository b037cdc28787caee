"""One run directory in brief, from its small files; whatever is missing or broken is left out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from testbed import carriers
from testbed.rundir import RunDir, contents
from testbed.units import NS_PER_S
from testbed.verdict import Result, Verdict

State = Literal["RUNNING", "PASS", "FAIL", "UNKNOWN"]
T = TypeVar("T")
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""What an index of SQLite can hold."""

NO_VERDICT: Final = "ended without a verdict; python -m testbed.report makes one from its journal"
UNDER_WAY: Final = "under way"
REPLACING: Final = {"--seed": "seed=", "--scale": "scale=", "--set": ""}
"""Options of `testbed.run`, and what is put before their values."""
DRAFTS: Final = "drafts"
"""The directory, among the runs, of texts that were run in place of a scenario's file."""


class Planned(msgspec.Struct, frozen=True):
    """What the head of plan.json says."""

    name: str
    question: str
    seed: Natural
    scale: float
    duration_ns: Natural


class Manifest(msgspec.Struct, frozen=True):
    """What is shown of manifest.json."""

    virtual_s: float | None = None
    wall_s: float | None = None
    record_digest: str = ""
    scenario_sha256: str = ""
    clock: str = ""
    kernel: str = ""
    command: str = ""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a row of the history."""

    directory: str
    name: str
    question: str
    seed: int
    scale: float
    state: State
    note: str
    started_s: float
    """When its plan was written, seconds since 1970."""
    duration_s: float
    virtual_s: float | None
    wall_s: float | None
    digest: str
    scenario_sha256: str
    clock: str
    kernel: str
    changed: str
    """What its command line replaced in the scenario, and the draft of its text; empty: nothing."""
    results: tuple[Result, ...]


def summarize(directory: Path) -> Summary | None:
    """The run in this directory; None when it holds no plan that can be read."""
    run = RunDir(directory)
    planned = read(run.plan, Planned)
    if planned is None:
        return None
    manifest = read(run.manifest, Manifest) or Manifest()
    verdict = read(run.verdict, Verdict)
    state: State = "UNKNOWN" if verdict is None else verdict.status
    note = NO_VERDICT if verdict is None else verdict.note
    carrier = carriers.of_run(run)
    # A run that was killed never comes to its manifest.
    words = _words(manifest.command) if manifest.command or carrier is None else carrier.words
    if verdict is None and carrier is not None and carrier.alive:
        state, note = "RUNNING", UNDER_WAY
    return Summary(
        directory=directory.name,
        name=planned.name,
        question=planned.question,
        seed=planned.seed,
        scale=planned.scale,
        state=state,
        note=note,
        started_s=run.plan.stat().st_mtime,
        duration_s=planned.duration_ns / NS_PER_S,
        virtual_s=manifest.virtual_s,
        wall_s=manifest.wall_s,
        digest=manifest.record_digest,
        scenario_sha256=manifest.scenario_sha256,
        clock=manifest.clock,
        kernel=manifest.kernel,
        changed=_replaced(words),
        results=() if verdict is None else verdict.results,
    )


def _words(command: str) -> list[str]:
    """Of a command line; none of one that no shell would take."""
    with suppress(ValueError):
        return shlex.split(command)
    return []


def _replaced(words: Sequence[str]) -> str:
    """What a command line replaces in a scenario: `text=drafts/s-1 seed=7 link.a_to_b.rate=1gbit`."""
    found = []
    if words[-2:-1] == ["--"] and Path(words[-1]).parts[-3:-2] == (DRAFTS,):
        found.append(f"text={DRAFTS}/{Path(words[-1]).parts[-2]}")
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option in REPLACING:
            found.append(REPLACING[option] + (value if equals else following))
    return " ".join(found)


def read(path: Path, kind: type[T]) -> T | None:
    """What a small file of a run holds; None of a link, and of what is not there or is damaged."""
    with suppress(OSError, msgspec.DecodeError, RecursionError):
        if not path.is_symlink():
            return msgspec.json.decode(contents(path), type=kind)
    return None
