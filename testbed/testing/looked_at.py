"""A run that has ended, to look at in Python: its verdict, tables, whatever a scenario could expect of it.

Everything that is measured goes through the vocabulary of scenarios: what is asked is checked like an entry
of `expect`, in the same units, and judged by the same code. So each kind of expectation can be asked for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import polars as pl

from testbed import tables as record
from testbed.errors import Problem, RunError, ScenarioError
from testbed.expect import judge_one
from testbed.metrics import METRICS
from testbed.plan import Expectation, Plan
from testbed.resolve import resolve
from testbed.resolve.workload import TRACES_VARIABLE
from testbed.rundir import RunDir
from testbed.scenario.load import validate
from testbed.scenario.overrides import apply_overrides
from testbed.scenario.source import parse_source
from testbed.verdict import Result, Status, Verdict

_SMALLEST: Final = {"s": "0s", "bps": "0bit", "bytes": "0B"}
"""How zero of these units is written; zero of the others is 0."""


@dataclass(frozen=True)
class Run:
    """One run, judged. Times in tables are virtual seconds from the moment at which the workload started."""

    directory: Path
    verdict: Verdict
    scenario: Path
    """The file that was run; the files that it names lie beside it."""
    overrides: tuple[str, ...] = ()
    """What `--set` changed in it."""

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def results(self) -> tuple[Result, ...]:
        """What became of each expectation of the scenario, and of the checks of every run."""
        return self.verdict.results

    @property
    def report(self) -> Path:
        """For people: report.html."""
        return RunDir(self.directory).report

    @cached_property
    def plan(self) -> Plan:
        """All that was run, defaults filled in."""
        return Plan.read(RunDir(self.directory).plan)

    @cached_property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables of the record (docs/run-directory.md); RunError when one is missing or damaged."""
        return record.load(RunDir(self.directory))

    @property
    def requests(self) -> pl.DataFrame:
        """A row for each request."""
        return self.table("requests")

    @property
    def decisions(self) -> pl.DataFrame:
        """A row for each decision of the policy, and for each look of it at the cluster."""
        return self.table("decisions")

    @property
    def links(self) -> pl.DataFrame:
        """A row for each sample of each direction of the link."""
        return self.table("links")

    def table(self, name: str) -> pl.DataFrame:
        """One table of the record; ScenarioError when there is none of that name."""
        if name not in self.tables:
            problem = Problem(f"run.table({name!r})", "there is no such table", ", ".join(self.tables))
            raise ScenarioError(problem)
        return self.tables[name]

    def expect(self, expectation: Mapping[str, Any]) -> Result:
        """What became of an expectation, written as in a scenario's `expect`; it can be UNKNOWN.

        Raises:
            ScenarioError: it is none, or not of this scenario; all its problems.
        """
        return judge_one(self._resolved(expectation, "run.expect"), self.tables)

    def metric(
        self, name: str, *, from_: str = "0s", to: str | None = None, tenant: str | None = None
    ) -> float:
        """A metric over [from_, to), in its own unit, as a `bound` sees it; by default over the whole run.

        Infinite for a time of requests of which one never got there: no upper bound holds then.

        Raises:
            RunError: it was not measured.
            ScenarioError: there is no such metric, window or tenant.
        """
        unit = METRICS[name].unit if name in METRICS else ""
        asked = {"bound": name, "min": _SMALLEST.get(unit, 0), "from": from_}
        asked |= {key: value for key, value in (("to", to), ("tenant", tenant)) if value is not None}
        bound = self._resolved(asked, "run.metric")
        open_ended = msgspec.structs.replace(bound, low=None, high=math.inf)
        return self._measured(open_ended, f"run.metric({name!r})")

    def reaction(
        self, signal: str, *, after: str, crosses: Literal["above", "below"], level: str | float
    ) -> float:
        """Seconds from the event until the signal first crosses `level`; infinite when it never did.

        Never means: not in the whole record, which has to be without a gap while requests are sent.

        Raises:
            RunError: that was not measured.
            ScenarioError: there is no such signal or event, or `level` is not in the signal's unit.
        """
        asked = {"reaction": signal, "after": after, "crosses": crosses, "level": level, "within": "1ns"}
        found = self._resolved(asked, "run.reaction")
        within_ns = max(self.plan.duration_ns - found.from_ns, 1)
        return self._measured(
            msgspec.structs.replace(found, within_ns=within_ns), f"run.reaction({signal!r})"
        )

    def recovery(
        self,
        signal: str,
        *,
        after: str,
        min: str | float | None = None,  # noqa: A002 - as in scenarios
        max: str | float | None = None,  # noqa: A002
        to: str | None = None,
    ) -> float:
        """Seconds from the event until the signal lies between `min` and `max` and stays until `to`.

        `to` is the end of the requests by default. Infinite when it did not come back.

        Raises:
            RunError: that was not measured, or there was nothing to recover from.
            ScenarioError: there is no such signal or event, or a limit is not in the signal's unit.
        """
        limits = {"min": min, "max": max, "to": to}
        given = {key: value for key, value in limits.items() if value is not None}
        asked = {"recovery": signal, "after": after, "within": "1ns", **given}
        found = self._resolved(asked, "run.recovery")
        return self._measured(
            msgspec.structs.replace(found, within_ns=found.to_ns - found.from_ns), f"run.recovery({signal!r})"
        )

    def _measured(self, expectation: Expectation, asked: str) -> float:
        result = judge_one(expectation, self.tables)
        if result.status == "UNKNOWN":
            raise RunError(Problem(asked, result.sentence, next_step=f"see {self.directory}"))
        return math.inf if result.measured is None else result.measured

    def _resolved(self, expectation: Mapping[str, Any], asked: str) -> Expectation:
        """The expectation as it would be if it stood in the scenario, alone."""
        text = RunDir(self.directory).scenario.read_bytes()
        source = apply_overrides(parse_source(str(self.scenario), text), self.overrides)
        source = replace(
            source,
            data={**source.data, "expect": [dict(expectation)]},
            lines={path: line for path, line in source.lines.items() if path[:1] != ("expect",)},
            options={path: name for path, name in source.options.items() if path[:1] != ("expect",)}
            | {("expect",): asked},
        )
        traces = os.environ.get(TRACES_VARIABLE)
        plan = resolve(
            validate(source),
            seed=self.plan.seed,
            scale=self.plan.scale,
            base_dir=self.scenario.parent,
            traces=Path(traces) if traces else None,
        )
        return plan.expectations[0]
