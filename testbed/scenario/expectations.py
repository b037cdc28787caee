"""The lines of `expect`: what must hold for the verdict PASS.

Bounds and levels are given in the metric's own unit (`testbed.metrics`): times, rates and sizes as
texts with a unit, ratios and counts of tokens, requests, packets as plain numbers.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
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
    PositiveDuration,
    Section,
    did_you_mean,
    only_tag,
    refusal,
)

METRICS_PAGE: Final = "docs/writing-a-scenario.md"


def _metric_for(kind: Kind) -> BeforeValidator:
    """Accepts the name of a metric that may stand in this kind of expectation."""

    def validate(value: Any) -> str:
        fitting = [name for name, metric in METRICS.items() if kind in metric.kinds]
        if isinstance(value, str) and value in fitting:
            return value
        if isinstance(value, str) and value in METRICS:
            related = [name for name in fitting if name.startswith(value) or value.startswith(name)]
            raise refusal(f"{value} cannot stand in a {kind}", ", ".join(related or fitting))
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


class Expect(Section):
    """What all kinds have. `name` is for verdict and report; the default says what is expected."""

    name: str | None = None
    metric: str

    @field_validator("low", "high", "level", "ignore_moves_below", mode="before", check_fields=False)
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

    metric: Annotated[str, _metric_for("bound")] = Field(alias="bound")
    tenant: str | None = None
    """Only requests of this tenant."""
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")


class Reaction(Expect):
    """After an event, the signal crosses `level` in the given direction within a time."""

    metric: Annotated[str, _metric_for("reaction")] = Field(alias="reaction")
    after: str
    crosses: Literal["above", "below"]
    level: float
    within: PositiveDuration


class Recovery(Ranged):
    """After an event, the signal comes to lie between `min` and `max` within a time, and stays until `to`."""

    metric: Annotated[str, _metric_for("recovery")] = Field(alias="recovery")
    after: str
    within: PositiveDuration
    end: Duration | None = Field(None, alias="to")


class Stability(Expect):
    """In a window the signal turns around at most so often; smaller moves than a given one do not count."""

    metric: Annotated[str, _metric_for("stability")] = Field(alias="stability")
    start: Duration = Field(0, alias="from")
    end: Duration | None = Field(None, alias="to")
    max_direction_changes: CountOrZero
    ignore_moves_below: float = 0.0


def _form(value: Any) -> str | None:
    return only_tag(value, ("bound", "reaction", "recovery", "stability"))


Expectation: TypeAlias = Annotated[
    Annotated[Bound, Tag("<bound>")]
    | Annotated[Reaction, Tag("<reaction>")]
    | Annotated[Recovery, Tag("<recovery>")]
    | Annotated[Stability, Tag("<stability>")],
    Discriminator(
        _form,
        custom_error_type="refused",
        custom_error_message="an entry of expect of no known kind",
        custom_error_context={"allowed": "exactly one of the keys bound, reaction, recovery, stability"},
    ),
]
