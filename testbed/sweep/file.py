"""A sweep file: which parameters of a scenario take which values, what is measured, or where to search.

docs/sweeps.md shows each key in use. A file with the key `sweep` at its top is one; scenarios have none.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag, model_validator

from testbed import units
from testbed.errors import Problem, ScenarioError
from testbed.metrics import METRICS
from testbed.resolve.findings import Findings
from testbed.scenario.expectations import METRICS_PAGE
from testbed.scenario.load import checked
from testbed.scenario.quantities import Duration, Section, did_you_mean, refusal
from testbed.scenario.source import KeyPath, Source, read_source
from testbed.sweep import amounts
from testbed.sweep.asked import SEEDS_ALLOWED, parse_seeds
from testbed.sweep.points import Axis, Point, grid, grid_size, sample
from testbed.sweep.search import Agree, Closeness

MOST_RUNS: Final = 2_000
MOST_STEPS: Final = 1_000
LEAST_PERCENT: Final = 0.01


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, dict | list):
        raise refusal(f"{units.shown(value)} instead of a value", amounts.ALLOWED)
    return value


def _values(value: Any) -> Any:
    if not value:
        raise refusal("an empty list", "one value or more")
    return value


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refusal(f"{units.shown(value)} instead of seeds", SEEDS_ALLOWED)
    try:
        return tuple(parse_seeds(str(value)))
    except ScenarioError as error:
        raise refusal(error.problems[0].found, error.problems[0].allowed) from None


def _shape(value: Any) -> str:
    return "<range>" if isinstance(value, dict) else "<values>" if isinstance(value, list) else "<value>"


def _metric(value: Any) -> str:
    fitting = [name for name, metric in METRICS.items() if "bound" in metric.kinds]
    if isinstance(value, str) and value in fitting:
        return value
    if isinstance(value, str) and value in METRICS:
        related = [name for name in fitting if name.startswith(value)]
        raise refusal(f"{value} is no single number", ", ".join(related))
    hint = did_you_mean(str(value), fitting)
    raise refusal(f"unknown metric {units.shown(value)}", f"a metric for bound, see {METRICS_PAGE}", hint)


def _measured(value: Any) -> Any:
    """A bare name is that metric over the whole run."""
    return {"metric": value} if isinstance(value, str) else value


Scalar = Annotated[Any, BeforeValidator(_scalar)]
Steps = Annotated[int, Strict(), Ge(2), Le(MOST_STEPS)]


class Range(Section):
    """`steps` values from one end to the other; without `steps` a sample draws from all between."""

    start: Scalar = Field(alias="from")
    to: Scalar
    steps: Steps | None = None
    spacing: Literal["linear", "log"] = "linear"


Parameter = Annotated[
    Annotated[Range, Tag("<range>")]
    | Annotated[tuple[Any, ...], BeforeValidator(_values), Tag("<values>")]
    | Annotated[Scalar, Tag("<value>")],
    Discriminator(_shape),
]


class Measured(Section):
    """A metric over a window, by default all of the run."""

    metric: Annotated[str, BeforeValidator(_metric)]
    start: Duration = Field(0, alias="from")
    to: Duration | None = None

    @property
    def name(self) -> str:
        """Of its column."""
        since = f" from {units.format_duration_ns(self.start)}" if self.start else ""
        until = f" to {units.format_duration_ns(self.to)}" if self.to is not None else ""
        return f"{self.metric}{since}{until}"


class Search(Section):
    """Bisection for the value of `parameter` at which the expectation starts to fail."""

    parameter: Annotated[str, MinLen(1)]
    start: Scalar = Field(alias="from")
    to: Scalar
    tolerance: Scalar = "5%"
    """A percentage (the middle is then the geometric one), or a distance in the parameter's own unit."""
    expectation: str | None = None
    """By its name or its metric; None: the verdict."""
    agree: Agree = "all"
    """What the seeds must say for a value to hold."""


class SweepFile(Section):
    """What a sweep file says."""

    sweep: Annotated[str, MinLen(1)]
    """The scenario's path, from the file's own directory."""
    question: Annotated[str, MinLen(1)]
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    sample: Annotated[int, Strict(), Ge(1), Le(MOST_RUNS)] | None = None
    sample_seed: Annotated[int, Strict(), Ge(0)] = 1
    seeds: Annotated[tuple[int, ...], BeforeValidator(_seeds)] = ()
    measure: tuple[Annotated[Measured, BeforeValidator(_measured)], ...] = ()
    search: Search | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> SweepFile:
        if not self.parameters and self.search is None:
            raise refusal("neither parameters nor search", "parameters (a grid or a sample), or search")
        if self.search and self.sample is not None:
            raise refusal("both sample and search", "one of them")
        return self


class Wanted:
    """A sweep file with all its quantities understood."""

    def __init__(self, path: Path, source: Source, file: SweepFile, axes: tuple[Axis, ...]) -> None:
        self.path, self.source, self.file, self.axes = path, source, file, axes
        self.scenario = Path(os.path.normpath(path.parent / file.sweep))

    def points(self) -> list[Point]:
        """Of the grid, or of the sample."""
        if self.file.sample is not None:
            return sample(self.axes, self.file.sample, self.file.sample_seed)
        return grid(self.axes)

    def searched(self) -> tuple[amounts.Kind, float, float, Closeness]:
        """The kind and the ends of what is searched, and when it is close enough."""
        search = self.file.search
        assert search is not None
        kind = amounts.kind_of(search.start, search.to)
        assert kind is not None, "checked when it was read"
        low, high = sorted((kind.parse(search.start), kind.parse(search.to)))
        close = _closeness(search.tolerance, kind)
        assert close is not None, "checked when it was read"
        return kind, low, high, close


def is_sweep_file(path: Path) -> bool:
    """Whether it says `sweep` at its top; what cannot be read is left to those who say why."""
    if not path.is_file():
        return False
    try:
        data = read_source(path).data
    except ScenarioError:
        return False
    return isinstance(data, dict) and "sweep" in data


def read_sweep(path: Path) -> Wanted:
    """Read and check a sweep file, not yet the scenario; raises ScenarioError with all its problems."""
    source = read_source(path)
    file = checked(source, SweepFile)
    findings = Findings(source)
    axes = [
        axis
        for name, parameter in file.parameters.items()
        if (axis := _axis(file, name, parameter, ("parameters", name), findings))
    ]
    if file.search:
        _check_search(file, file.search, findings)
    findings.raise_if_any()
    _check_size(file, axes, findings)
    findings.raise_if_any()
    return Wanted(path, source, file, tuple(axes))


def _axis(file: SweepFile, name: str, parameter: Any, path: KeyPath, findings: Findings) -> Axis | None:
    """The parameter as an axis; None, and a finding, where it is none."""
    if not isinstance(parameter, Range):
        values = parameter if isinstance(parameter, tuple) else (parameter,)
        if len({repr(value) for value in values}) < len(values):
            findings.add(path, "a value stands here twice", "each value once")
        return Axis(name, values, amounts.kind_of(*values))
    kind = amounts.kind_of(parameter.start, parameter.to)
    if kind is None:
        findings.add(path, "the ends are not of one kind", amounts.ALLOWED)
        return None
    low, high = kind.parse(parameter.start), kind.parse(parameter.to)
    log = parameter.spacing == "log"
    if low >= high:
        findings.add(path, "ends where it begins, or before", "from less than to")
    elif log and low <= 0:
        findings.add(path, "begins at 0 or below, which has no logarithm", "from above 0, or spacing: linear")
    elif parameter.steps is None and file.sample is None:
        findings.add(path, "steps is missing", "steps for a grid; without it a sample draws from the range")
    elif parameter.steps is None:
        return Axis(name, (), kind, low, high, log)
    else:
        try:
            return Axis(name, tuple(amounts.between(kind, low, high, parameter.steps, log=log)), kind)
        except ScenarioError as error:
            findings.add(path, error.problems[0].found, error.problems[0].allowed)
    return None


def _check_search(file: SweepFile, search: Search, findings: Findings) -> None:
    path: KeyPath = ("search",)
    for name, parameter in file.parameters.items():
        if isinstance(parameter, Range | tuple):
            findings.add(("parameters", name), "several values in a search", "one value, or no search")
    if search.parameter in file.parameters:
        findings.add((*path, "parameter"), f"{search.parameter} stands in parameters, too", "in one of them")
    kind = amounts.kind_of(search.start, search.to)
    if kind is None:
        findings.add(path, "the ends are not of one kind", amounts.ALLOWED)
        return
    ends = kind.parse(search.start), kind.parse(search.to)
    if ends[0] == ends[1]:
        findings.add(path, "ends where it begins", "two different ends")
    close = _closeness(search.tolerance, kind)
    if close is None:
        allowed = "a percentage from 0.01% on, such as 5%, or a distance in the parameter's own unit"
        findings.add((*path, "tolerance"), f"{units.shown(search.tolerance)} is no tolerance here", allowed)
    elif close.ratio is not None and min(ends) <= 0:
        allowed = "ends above 0, or a distance in the parameter's own unit as tolerance"
        findings.add(path, "an end at 0 or below, with a tolerance in per cent", allowed)


def _closeness(written: object, kind: amounts.Kind) -> Closeness | None:
    try:
        percent = amounts.parse_percent(written)
    except units.UnitError:
        pass
    else:
        return Closeness(ratio=1 + percent / 100) if percent >= LEAST_PERCENT else None
    try:
        distance = kind.parse(written)
    except units.UnitError:
        return None
    return Closeness(distance=distance) if distance > 0 else None


def _check_size(file: SweepFile, axes: list[Axis], findings: Findings) -> None:
    """That there are not too many runs, and as many points as the sample asks for."""
    ranges = any(not axis.values for axis in axes)
    size = math.inf if ranges else grid_size(axes)
    seeds = max(len(file.seeds), 1)
    if file.sample is not None and file.sample > size:
        findings.add(("sample",), f"{file.sample} of a grid of {size} points", f"at most {size}")
    points = file.sample or size
    if points * seeds > MOST_RUNS:
        place: KeyPath = ("parameters",) if file.parameters else ("seeds",)
        found = f"{points} points with {seeds} seeds are {points * seeds} runs"
        findings.add(place, found, f"at most {MOST_RUNS}", "a sample, fewer steps, or fewer seeds")


def scenario_there(wanted: Wanted) -> None:
    """Raise ScenarioError when the scenario is not there, or is a sweep file itself."""
    where = wanted.source.where(("sweep",))
    if not wanted.scenario.is_file():
        raise ScenarioError(Problem(where, f"there is no {wanted.scenario}", "a scenario file (YAML)"))
    if is_sweep_file(wanted.scenario):
        raise ScenarioError(Problem(where, f"{wanted.scenario} is a sweep, too", "a scenario file"))
