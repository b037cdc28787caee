"""The lines of `expect`: what must hold for the verdict PASS.

Bounds and levels are given in the metric's own unit (`testbed.metrics`): times, rates and sizes as
texts with a unit, ratios and counts of tokens, requests, packets as plain numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

from annotated_types import Ge, Le
from pydantic import (
    AllowInfNan,
    BeforeValidator,
    Discriminator,
    Field,
    Strict,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from testbed import units
from testbed.metrics import METRICS, Kind, Unit
from testbed.scenario.quantities import (
    CountOrZero,
    Duration,
    LineOfText,
    PositiveDuration,
    Section,
    did_you_mean,
    only_tag,
    parsed,
    refusal,
)

METRICS_PAGE: Final = "docs/writing-a-scenario.md"
MOST_LISTED: Final = 30
"""Of more metrics than these a message names the page that lists them."""
CYCLES: Final = 3
"""Fewer cycles can be anything: a step has one or two that look like it."""

Ratio = Annotated[float, parsed(units.parse_ratio)]


def _metric_for(kind: Kind) -> BeforeValidator:
    """Accepts the name of a metric that may stand in this kind of expectation."""

    def validate(value: Any) -> str:
        fitting = [name for name, metric in METRICS.items() if kind in metric.kinds]
        if isinstance(value, str) and value in fitting:
            return value
        if isinstance(value, str) and value in METRICS:
            related = [name for name in fitting if name.startswith(value) or value.startswith(name)]
            named = related or (
                fitting if len(fitting) <= MOST_LISTED else [f"a metric for {kind}, see {METRICS_PAGE}"]
            )
            article = "an" if kind[0] in "aeiou" else "a"
            raise refusal(f"{value} cannot stand in {article} {kind}", ", ".join(named))
        hint = did_you_mean(str(value), fitting)
        raise refusal(
            f"unknown metric {units.shown(value)}", f"a metric for {kind}, see {METRICS_PAGE}", hint
        )

    return BeforeValidator(validate)


def parse_in_unit(value: object, unit: Unit) -> float:
    """A bound as written, in the metric's base unit; raises UnitError."""
    if unit == "s":
        return units.parse_duration_ns(value) / units.NS_PER_S
    if unit == "bps":
        return float(units.parse_rate_bps(value))
    if unit == "bytes":
        return float(units.parse_size_bytes(value))
    if unit == "ratio":
        return units.parse_ratio(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise units.UnitError(f"{units.shown(value)} is no number", f"a plain number of {unit}")
    return float(value)


@dataclass(frozen=True)
class Band:
    """How far from a value still counts as there: in the metric's unit, or as a share of that value."""

    width: float | None = None
    ratio: float | None = None


class Expect(Section):
    """What all kinds have. `name` is for verdict and report; the default says what is expected."""

    kind: ClassVar[Kind]
    name: LineOfText | None = None
    metric: str

    @field_validator(
        "low",
        "high",
        "level",
        "ignore_moves_below",
        "target",
        "max_amplitude",
        mode="before",
        check_fields=False,
    )
    @classmethod
    def _in_the_metrics_unit(cls, value: object, info: ValidationInfo) -> float:
        metric = METRICS.get(info.data.get("metric", ""))
        if metric is None:  # the metric is a problem of its own; nothing can be said about the value
            return 0.0
        try:
            return parse_in_unit(value, metric.unit)
        except units.UnitError as error:
            raise refusal(error.found, error.allowed) from None


class Ranged(Expect):
    """Kinds with a range: at least one end must be given."""

    low: float | None = Field(None, alias="min")
    high: float | None = Field(None, alias="max")

    @model_validator(mode="after")
    def _has_an_end(self) -> Ranged:
        if self.low is None and self.high is None:
            raise refusal("neither min nor max", "at least one of them")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise refusal("min is above max", "min up to max")
        return self


class Bound(Ranged):
    """A statistic over a window lies between `min` and `max`. Default window: the whole run."""

    kind = "bound"
    metric: Annotated[str, _metric_for("bound")] = Field(alias="bound")
    tenant: str | None = None
    """Only requests of this tenant."""
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")


class Reaction(Expect):
    """After an event, the signal crosses `level` in the given direction within a time."""

    kind = "reaction"
    metric: Annotated[str, _metric_for("reaction")] = Field(alias="reaction")
    after: str
    crosses: Literal["above", "below"]
    level: float
    within: PositiveDuration


class Recovery(Ranged):
    """After an event, the signal comes to lie between `min` and `max` within a time, and stays until `to`."""

    kind = "recovery"
    metric: Annotated[str, _metric_for("recovery")] = Field(alias="recovery")
    after: str
    within: PositiveDuration
    end: Duration | None = Field(None, alias="to")


class Stability(Expect):
    """In a window the signal turns around at most so often; smaller moves than a given one do not count."""

    kind = "stability"
    metric: Annotated[str, _metric_for("stability")] = Field(alias="stability")
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")
    max_direction_changes: CountOrZero
    ignore_moves_below: float = 0.0


class Settling(Expect):
    """After an event, the signal comes to rest in a band within a time, and stays there until `to`."""

    kind = "settling"
    metric: Annotated[str, _metric_for("settling")] = Field(alias="settling")
    after: str
    within_band: Band
    target: float | None = None
    """The middle of the band; by default where the signal comes to rest."""
    within: PositiveDuration
    end: Duration | None = Field(None, alias="to")

    @field_validator("within_band", mode="before")
    @classmethod
    def _either_form(cls, value: object, info: ValidationInfo) -> Band:
        metric = METRICS.get(info.data.get("metric", ""))
        if metric is None:
            return Band(ratio=1.0)
        try:
            if isinstance(value, str) and value.strip().endswith("%"):
                band = Band(ratio=units.parse_ratio(value))
            else:
                band = Band(width=parse_in_unit(value, metric.unit))
        except units.UnitError as error:
            raise refusal(error.found, f"a share such as 10%, or {error.allowed}") from None
        if (band.ratio or band.width or 0) <= 0:
            raise refusal(f"{value} leaves no room", "a band above zero")
        return band


class Overshoot(Expect):
    """After an event, the signal goes beyond where it comes to rest by at most a share of its step."""

    kind = "overshoot"
    metric: Annotated[str, _metric_for("overshoot")] = Field(alias="overshoot")
    after: str
    most: Ratio = Field(alias="max")
    target: float | None = None
    """The end of the step; by default where the signal comes to rest."""
    end: Duration | None = Field(None, alias="to")


class Oscillation(Expect):
    """In a window the signal does not go on swinging, for so many cycles, farther than an amplitude."""

    kind = "oscillation"
    metric: Annotated[str, _metric_for("oscillation")] = Field(alias="oscillation")
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")
    max_amplitude: Annotated[float, Ge(0)]
    cycles: Annotated[int, Strict(), Ge(CYCLES), Le(1000)] = CYCLES


class Fairness(Expect):
    """In a window, tenants get alike: by Jain's index, or by the largest value over the smallest."""

    kind = "fairness"
    metric: Annotated[str, _metric_for("fairness")] = Field(alias="fairness")
    tenants: tuple[str, ...] = ()
    """All that the workload has, if none is named."""
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")
    index: Ratio | None = Field(None, alias="min")
    max_ratio: Annotated[float, Strict(), AllowInfNan(False), Ge(1)] | None = None

    @model_validator(mode="after")
    def _has_one_limit(self) -> Fairness:
        if (self.index is None) == (self.max_ratio is None):
            found = "neither min nor max_ratio" if self.index is None else "both min and max_ratio"
            raise refusal(found, "exactly one of them")
        return self


class Oracle(Expect):
    """In a window, a share of what an oracle would have carried is carried."""

    kind = "oracle"
    metric: Annotated[str, _metric_for("oracle")] = Field(alias="oracle")
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")
    share: Ratio = Field(alias="min")


def _form(value: Any) -> str | None:
    return only_tag(value, get_args(Kind))


Expectation: TypeAlias = Annotated[
    Annotated[Bound, Tag("<bound>")]
    | Annotated[Reaction, Tag("<reaction>")]
    | Annotated[Recovery, Tag("<recovery>")]
    | Annotated[Stability, Tag("<stability>")]
    | Annotated[Settling, Tag("<settling>")]
    | Annotated[Overshoot, Tag("<overshoot>")]
    | Annotated[Oscillation, Tag("<oscillation>")]
    | Annotated[Fairness, Tag("<fairness>")]
    | Annotated[Oracle, Tag("<oracle>")],
    Discriminator(
        _form,
        custom_error_type="refused",
        custom_error_message="an entry of expect of no known kind",
        custom_error_context={"allowed": f"exactly one of the keys {', '.join(get_args(Kind))}"},
    ),
]
