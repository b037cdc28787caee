"""The runs: each scenario in each place, one after the other, and what is left of them to compare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from testbed import runs
from testbed import tables as record
from testbed.conformance import figures
from testbed.conformance.agreement import Ran
from testbed.conformance.places import Place
from testbed.errors import MachineError, Problem, RunError, ScenarioError
from testbed.plan import Plan
from testbed.readable import quantity
from testbed.resolve import load_and_resolve
from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted
from testbed.verdict import Status

RELEASE: Final = "kernel.out"
"""What `uname` said, in a scenario that asks it."""


class Case(msgspec.Struct, frozen=True):
    """A scenario of the suite."""

    path: Path
    plan: Plan
    must: Status
    """The verdict that it must come to: FAIL for a control."""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def rate_bps(self) -> int:
        """Of its fastest link."""
        states = [*self.plan.link.values(), *(change.state for change in self.plan.changes)]
        return max(state.rate_bps for state in states)


class Measured(msgspec.Struct, frozen=True):
    """One scenario in one place."""

    ran: Ran
    directory: Path | None = None
    """None if nothing was run."""
    distrusted: int = 0
    """How many runs before it could not be trusted."""


def cases(paths: Sequence[Path]) -> list[Case]:
    """Every scenario, checked; ScenarioError with all that is wrong with them."""
    found: list[Case] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            loaded, plan = load_and_resolve(path)
        except ScenarioError as error:
            problems += error.problems
            continue
        found.append(Case(path, plan, "FAIL" if loaded.scenario.control else "PASS"))
    if problems:
        raise ScenarioError(*problems)
    return found


def measure(
    place: Place, suite: Sequence[Case], out: Path, *, most_bps: int | None, tries: int, again: bool
) -> Iterator[Measured]:
    """Run the suite in `place`; yields each scenario when it is through.

    Links above `most_bps` are left out. A run that cannot be trusted is made again, up to `tries` in all.
    With `again` what lies below `out` from before is taken where it is a trusted run of the same plan.

    Raises:
        RunError: a scenario was refused there.
    """
    by_name = {one.name: one for one in suite}
    pending: list[Wanted] = []
    for case in suite:
        directory = out / place.name / case.name
        kept = _kept(case, directory) if again else None
        if most_bps is not None and case.rate_bps > most_bps:
            rate, most = (quantity(bps, "bps") for bps in (case.rate_bps, most_bps))
            yield Measured(Ran(case.name, place.name, left_out=f"{rate} is more than the {most} asked for"))
        elif kept is not None:
            yield _measured(case, place, kept)
        else:
            wanted = Wanted(f"{place.name}/{case.name}", case.path, options=place.options, report=False)
            pending.append(wanted)
    for number in range(tries):
        doubtful = []
        with closing(runs.run_all(pending, out, jobs=1)) as all_runs:
            for ended in all_runs:
                last = number == tries - 1 or not _is_unknown(ended)
                if last:
                    case = by_name[ended.wanted.scenario.stem]
                    yield _of(case, place, ended, distrusted=number)
                else:
                    doubtful.append(ended.wanted)
        pending = doubtful


def _is_unknown(ended: Ended) -> bool:
    return ended.exit_code == RunError.exit_code


def _of(case: Case, place: Place, ended: Ended, *, distrusted: int) -> Measured:
    if ended.exit_code == MachineError.exit_code:
        return Measured(Ran(case.name, place.name, left_out=ended.said))
    if ended.exit_code == ScenarioError.exit_code:
        raise RunError(Problem(str(case.path), ended.left_nothing))
    if ended.verdict is None or ended.directory is None:
        return Measured(Ran(case.name, place.name, unknown=(ended.left_nothing,)), None, distrusted)
    return _measured(case, place, ended.directory, distrusted)


def _measured(case: Case, place: Place, directory: Path, distrusted: int = 0) -> Measured:
    """From what a run with a verdict left."""
    run = RunDir(directory)
    verdict = runs.verdict_in(directory)
    assert verdict is not None, "looked at before"
    if verdict.status == "UNKNOWN":
        unsure = [result.sentence for result in verdict.results if result.status == "UNKNOWN"]
        reasons = verdict.trust or (*unsure, verdict.note)
        return Measured(Ran(case.name, place.name, unknown=tuple(reasons)), directory, distrusted)
    found = figures.of_run(case.plan, verdict, record.load(run), place.clock, case.must)
    return Measured(Ran(case.name, place.name, figures=tuple(found)), directory, distrusted)


def _kept(case: Case, directory: Path) -> Path | None:
    """The newest run below `directory`, if it can be trusted and had the same plan."""
    latest = (directory / "latest").resolve()
    verdict = runs.verdict_in(latest)
    if verdict is None or verdict.status == "UNKNOWN":
        return None
    with suppress(OSError, msgspec.DecodeError, RunError):
        record.load(RunDir(latest))
        if Plan.read(RunDir(latest).plan) == case.plan:
            return latest
    return None


class Made(msgspec.Struct, frozen=True):
    """What runs were made in, for people."""

    release: str
    """Of the kernel, as it says itself, and what the manifest calls it."""
    cpu: str
    """This machine's processor; of a virtual machine, what executed it there."""
    day: str


def made_in(directories: Sequence[Path]) -> Made:
    """Of all runs in one place; of none, where they left nothing, nothing is known."""
    manifests = [_manifest(one) for one in directories]
    said = [RunDir(one).programs / RELEASE for one in directories]
    releases = {path.read_text(encoding="utf-8").strip() for path in said if path.is_file()}
    names = {str(one.get("kernel_name", "")) for one in manifests} - {""} - releases
    days = sorted({one["day"] for one in manifests})
    cpu = ", ".join(sorted({str(one.get("host_cpu", "")) for one in manifests} - {""}))
    by = ", ".join(sorted({str(one.get("accelerator", "")) for one in manifests} - {""}))
    release = ", ".join(sorted(releases))
    named = ", ".join(sorted(names))
    return Made(
        f"{release} ({named})" if release and named else release or named,
        f"{cpu} ({by})" if by else cpu,
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
    )


def _manifest(directory: Path) -> dict[str, Any]:
    path = RunDir(directory).manifest
    found: dict[str, Any] = json.loads(path.read_bytes())
    return {**found, "day": datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()}
