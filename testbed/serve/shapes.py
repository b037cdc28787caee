"""What goes over the API, as pydantic models: the OpenAPI document is made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from testbed.scenario.model import MIN_SCALE
from testbed.scenario.source import MAX_FILE_BYTES

RunName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$", description="A run directory.")
]
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=500)]
Text = Annotated[str, Field(max_length=MAX_FILE_BYTES, description="The text of a scenario, YAML.")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Scale = Annotated[float, Field(ge=MIN_SCALE, le=1)]
State = Literal["RUNNING", "PASS", "FAIL", "UNKNOWN"]
Times = list[float]


class Shape(BaseModel):
    """No field that is not known is taken, or given."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemOut(Shape):
    """One thing that can be mended."""

    where: str
    found: str
    allowed: str = ""
    next_step: str = ""
    line: int | None = Field(default=None, description="Of the scenario's text, from 1.")


class Problems(Shape):
    """The body of every answer that is an error."""

    problems: list[ProblemOut]


class Token(Shape):
    token: str = Field(max_length=1000)


class LastRun(Shape):
    """The newest judged run of a scenario."""

    directory: str
    state: State
    note: str
    started_s: float
    edited: bool = Field(description="The file is not what was run.")
    changed: str = Field(description="What the command line replaced in it, its text by a draft included.")


class ScenarioOut(Shape):
    path: str
    name: str
    question: str
    control: bool = Field(description="It must not PASS.")
    last: LastRun | None


class ScenarioText(Shape):
    path: str
    text: str


class Asked(Shape):
    """A scenario, by the path of its file, or a text in its place, and what is changed in it."""

    scenario: str | None = Field(default=None, max_length=500)
    text: Text | None = None
    seed: Seed | None = None
    scale: Scale | None = None
    overrides: list[Line] = Field(default=[], max_length=50, description="PATH=VALUE, as for --set.")


class PlanOut(Shape):
    """What would be run, in brief."""

    name: str
    question: str
    seed: int
    scale: float
    duration_s: float
    requests: int
    expectations: list[str]


class Checked(Shape):
    problems: list[ProblemOut]
    warnings: list[str]
    plan: PlanOut | None


class Started(Shape):
    start: int


class StartOut(Shape):
    """What has become of a start."""

    start: int
    run: str | None = Field(description="Its directory, once it has one.")
    exit_code: int | None = Field(description="None while it is under way.")
    said: str = Field(description="The end of what it has printed.")


class RunOut(Shape):
    """A run in a list. Times: `started_s` since 1970, others in seconds; virtual_s is null until judged."""

    directory: str
    name: str
    question: str
    seed: int
    scale: float
    state: State
    note: str
    started_s: float
    duration_s: float
    virtual_s: float | None
    wall_s: float | None
    digest: str
    scenario_sha256: str
    clock: str
    kernel: str
    changed: str = Field(
        description="What the command line replaced in the scenario, its text by a draft included."
    )


class Runs(Shape):
    runs: list[RunOut]
    total: int
    limit: int
    offset: int


class MetricOut(Shape):
    name: str
    value: float | None
    unit: str
    expected: bool = Field(description="By an expectation, which it is named after.")


class ResultOut(Shape):
    name: str
    kind: str
    metric: str
    status: Literal["PASS", "FAIL", "UNKNOWN"]
    measured: float | None
    unit: str
    bound: str
    margin: float | None
    sentence: str
    line: int


class FileOut(Shape):
    name: str
    size_bytes: int


class RunDetail(Shape):
    run: RunOut
    trust: list[str] = Field(description="Reasons not to trust the run.")
    results: list[ResultOut]
    metrics: list[MetricOut]
    files: list[FileOut]


class Told(Shape):
    told: bool


class Signals(Shape):
    """Every signal with a value per stretch of virtual time; null: nothing was measured."""

    stretch_s: float
    signals: dict[str, list[float | None]]
    marks: list[dict[str, Any]]
    now: dict[str, Any]


class CurveOut(Shape):
    label: str
    dashed: bool
    values: list[float | None]


class ChartOut(Shape):
    title: str
    unit: str
    curves: list[CurveOut]


class Comparison(Shape):
    """`rows` are those of `testbed.compare --json`; every curve has a value for each of `times_s`."""

    status: str
    note: str
    unknown: list[str]
    plan_differences: list[str]
    rows: list[dict[str, Any]]
    times_s: Times
    events: list[dict[str, Any]]
    charts: list[ChartOut]


class TrendMetric(Shape):
    name: str
    unit: str
    expected: bool
    runs: int


class Point(Shape):
    directory: str
    seed: int
    scale: float
    changed: str = Field(description="What the command line replaced in the scenario.")
    state: State
    started_s: float
    value: float | None


class Trend(Shape):
    """Oldest first."""

    name: str
    metric: str
    points: list[Point]
