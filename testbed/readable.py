"""Numbers as people read them: rounded to what matters, with the unit that fits.

For messages and reports only. What must be exact and parse back is in `units`.
"""

from __future__ import annotations

_DECIMAL_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHORT_TIMES = ((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SMALLEST_WITHOUT_EXPONENT = 1e-4
SHORTEST_IN_SECONDS = 0.1
_PREFIXED = {"bps": "bps", "bytes": "B"}


def number(value: float, digits: int = 3) -> str:
    """`digits` significant digits, no exponent from 1e-4 to 1e15, thousands separated."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude < SMALLEST_WITHOUT_EXPONENT:
        return f"{value:.{digits}g}"
    if magnitude >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" in text else text


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """A value of one of the units of `metrics.Unit`: 8e9 bps -> `8 Gbps`, 0.0312 s -> `31.2 ms`."""
    if unit in _PREFIXED:
        for factor, prefix in _DECIMAL_STEPS:
            if abs(value) >= factor:
                return f"{number(value / factor, digits)} {prefix}{_PREFIXED[unit]}"
        return f"{number(value, digits)} {_PREFIXED[unit]}"
    if unit == "s" and 0 < abs(value) < SHORTEST_IN_SECONDS:
        factor, name = next(step for step in _SHORT_TIMES if abs(value) >= step[0] or step[1] == "ns")
        return f"{number(value / factor, digits)} {name}"
    if unit == "s":
        return f"{number(value, digits)} s"
    if unit == "ratio":
        return number(value, digits)
    return f"{number(value, digits)} {unit.removesuffix('s') if value == 1 else unit}"
