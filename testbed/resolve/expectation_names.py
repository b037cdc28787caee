"""What is expected, in a few words: the name of a line that the scenario gives none."""

from __future__ import annotations

from testbed.metrics import METRICS, Unit
from testbed.scenario.expectations import (
    Band,
    Bound,
    Expectation,
    Fairness,
    Oracle,
    Oscillation,
    Overshoot,
    Reaction,
    Recovery,
    Settling,
    Stability,
)
from testbed.units import NS_PER_S, format_duration_ns, format_rate_bps, format_size_bytes


def default_name(expectation: Expectation) -> str:
    """What is expected, when the scenario gives no name."""
    metric = expectation.metric
    match expectation:
        case Bound():
            of = f" of {expectation.tenant}" if expectation.tenant else ""
            return f"{metric}{of} {_range(expectation)}"
        case Fairness():
            among = f"{metric} among {', '.join(expectation.tenants)}"
            if expectation.index is not None:
                return f"{among} has a fairness of at least {expectation.index:g}"
            return f"{among} at most {expectation.max_ratio:g} times the smallest"
        case Oracle():
            return f"{metric} at least {percent(expectation.share)} of the oracle's"
    return f"{metric} {_of_a_signal(expectation)}"


def _of_a_signal(
    expectation: Reaction | Recovery | Stability | Settling | Overshoot | Oscillation,
) -> str:
    unit = METRICS[expectation.metric].unit
    match expectation:
        case Reaction():
            level = _in_unit(expectation.level, unit)
            return f"crosses {expectation.crosses} {level} {_timely(expectation)}"
        case Recovery():
            return f"{_range(expectation)} {_timely(expectation)}"
        case Stability():
            return f"turns at most {expectation.max_direction_changes} times"
        case Settling():
            of = "" if expectation.target is None else f" of {_in_unit(expectation.target, unit)}"
            return f"settles within {_width(expectation.within_band, unit)}{of} {_timely(expectation)}"
        case Overshoot():
            of = "its end" if expectation.target is None else _in_unit(expectation.target, unit)
            return f"goes at most {percent(expectation.most)} beyond {of} after {expectation.after}"
        case Oscillation():
            most = _in_unit(expectation.max_amplitude, unit)
            return f"swings at most {most} for {expectation.cycles} cycles"


def percent(ratio: float) -> str:
    """A ratio for people: 0.05 -> `5%`."""
    return f"{100 * ratio:g}%"


def _timely(expectation: Reaction | Recovery | Settling) -> str:
    return f"within {format_duration_ns(expectation.within)} of {expectation.after}"


def _width(band: Band, unit: Unit) -> str:
    return percent(band.ratio) if band.ratio is not None else _in_unit(band.width or 0.0, unit)


def _in_unit(value: float, unit: Unit) -> str:
    """A limit for people: `20s`, `96gbit`, `22000 tokens`, `1`."""
    match unit:
        case "s":
            return format_duration_ns(round(value * NS_PER_S))
        case "bps":
            return format_rate_bps(round(value))
        case "bytes":
            return format_size_bytes(round(value))
        case "ratio":
            return f"{value:g}"
        case _:
            return f"{value:.15g} {unit}"


def _range(expectation: Bound | Recovery) -> str:
    low, high, unit = expectation.low, expectation.high, METRICS[expectation.metric].unit
    if low is not None and high is not None:
        return f"from {_in_unit(low, unit)} to {_in_unit(high, unit)}"
    if low is not None:
        return f"at least {_in_unit(low, unit)}"
    assert high is not None
    return f"at most {_in_unit(high, unit)}"
