"""Whether a run can be trusted: from its tables, its outcome, and what the audit of the link found."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import polars as pl

from testbed import audit, regular
from testbed.measure import Tables
from testbed.rundir import RunDir


def trust(run: RunDir, tables: Tables, findings: Sequence[audit.Finding]) -> list[str]:
    """Every reason not to trust the run; empty when there is none.

    From its tables, its outcome, and what the audit of the link found; what the audit lacks of a run that
    was broken off is not listed.
    """
    events = tables["events"]
    noted = events.filter(pl.col("kind") == "trust")["detail"].to_list()
    problems = [str(detail) for detail in noted]
    kinds = set(events["kind"])
    if "start" not in kinds:
        problems.append("the run never started: the journal has no start")
    if "end" not in kinds:
        problems.append("the run did not end by itself: the journal has no end")
    problems += _outcome_problems(run)
    problems += _trouble(run)
    problems += [
        finding.sentence
        for finding in findings
        if not finding.ok and ("end" in kinds or finding.measured != audit.ABSENT)
    ]
    return list(dict.fromkeys(problems))


def _trouble(run: RunDir) -> list[str]:
    if not run.trouble.exists():
        return []
    try:
        return msgspec.json.decode(regular.read(run.trouble), type=list[str])
    except (OSError, msgspec.DecodeError) as error:
        return [f"trouble.json is not readable: {error}"]


def _outcome_problems(run: RunDir) -> list[str]:
    if not run.outcome.exists():
        return ["the run left no outcome.json: it was killed, or died"]
    try:
        outcome = json.loads(regular.read(run.outcome))
        finished, problems = bool(outcome["finished"]), [str(problem) for problem in outcome["problems"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return [f"outcome.json is not readable: {error!r}"]
    return problems if finished or problems else ["the run did not finish"]
