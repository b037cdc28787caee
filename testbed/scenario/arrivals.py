"""How the arrivals of a drawn workload are spread in time; its `rate` is the mean of all of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Field

from testbed.scenario.quantities import PositiveDuration, PositiveNumber, Section, refusal
from testbed.units import shown


class PoissonArrivals(Section):
    """Each arrival knows nothing of the others: exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class UniformArrivals(Section):
    """All gaps are alike; only the place of the first arrival is drawn."""

    kind: Literal["uniform"]


class GammaArrivals(Section):
    """Gamma distributed gaps with the coefficient of variation `cv`: 1 is Poisson, more is burstier."""

    kind: Literal["gamma"]
    cv: Annotated[PositiveNumber, Ge(0.01), Le(10)]


class OnOffArrivals(Section):
    """Poisson for a time `on`, at a higher rate, then nothing for a time `off`; begins with `on`."""

    kind: Literal["on_off"]
    on: PositiveDuration
    off: PositiveDuration


class DiurnalArrivals(Section):
    """Poisson at rate * (1 + amplitude * sin(2 pi t / period)), t from the begin of the phase on."""

    kind: Literal["diurnal"]
    period: PositiveDuration
    amplitude: Annotated[PositiveNumber, Le(1)]


def _named(value: Any) -> Any:
    """A name alone is a process without parameters."""
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, dict | PoissonArrivals):
        raise refusal(
            f"{shown(value)} is no arrival process",
            "poisson, uniform, or a mapping such as {kind: gamma, cv: 2}",
        )
    return value


ArrivalProcess: TypeAlias = (
    PoissonArrivals | UniformArrivals | GammaArrivals | OnOffArrivals | DiurnalArrivals
)
Arrivals = Annotated[
    Annotated[ArrivalProcess, Field(discriminator="kind")],
    BeforeValidator(_named),
]
