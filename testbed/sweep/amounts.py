"""Quantities between two ends: both are written in one kind of unit, and so is what lies between them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from testbed import units
from testbed.errors import Problem, ScenarioError

Amount: TypeAlias = str | int | float
DIGITS: Final = 6
"""Of what is computed; no more are written, so that it stays readable."""
ALLOWED: Final = "two numbers, or two quantities of one kind, such as 2gbit and 40gbit"
_PERCENT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?%", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """One kind of quantity: from a text to a number in its base unit, and back."""

    unit: str
    """The end of a column's name for it, such as bps; empty for plain numbers and percentages."""
    parse: Callable[[object], float]
    write: Callable[[float], Amount]

    def snap(self, value: float) -> float:
        """The number that is written for `value`."""
        return self.parse(self.write(value))


def kind_of(*written: object) -> Kind | None:
    """The one kind that all of them are; None if they are of none, or of several."""
    if all(_is_whole(one) for one in written):
        return _WHOLE
    for kind in _KINDS:
        try:
            for one in written:
                kind.parse(one)
        except units.UnitError:
            continue
        return kind
    return None


def parse_percent(value: object) -> float:
    """`5%` -> 5.0; raises UnitError."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise units.UnitError(f"{units.shown(value)} is no percentage", "a percentage, such as 5%")
    return float(match[1])


def between(kind: Kind, low: float, high: float, steps: int, *, log: bool) -> list[Amount]:
    """`steps` quantities from `low` to `high`, both included, equally far or equally many times apart.

    Raises ScenarioError without a place when two of them would be the same once written.
    """
    shares = [index / (steps - 1) for index in range(steps)]
    values = [at_share(low, high, share, log=log) for share in shares]
    written = [kind.write(value) for value in values]
    if len(set(written)) < steps:
        found = f"{steps} steps from {kind.write(low)} to {kind.write(high)} are not all different"
        raise ScenarioError(Problem("", found, "fewer steps; ends such as 1.0 give fractions"))
    return written


def at_share(low: float, high: float, share: float, *, log: bool) -> float:
    """So far on the way from `low` (0) to `high` (1)."""
    return low * (high / low) ** share if log else low + (high - low) * share


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise units.UnitError(f"{units.shown(value)} is no number", "a number")
    return float(value)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _plain(value: float) -> str:
    """Without an exponent."""
    text = f"{_rounded(value):.12f}".rstrip("0").rstrip(".")
    return text or "0"


_WHOLE: Final = Kind("", _parse_number, round)
_KINDS: Final = (
    Kind("", _parse_number, _rounded),
    Kind("bps", units.parse_rate_bps, lambda value: units.format_rate_bps(round(_rounded(value)))),
    Kind("ns", units.parse_duration_ns, lambda value: units.format_duration_ns(round(_rounded(value)))),
    Kind("bytes", units.parse_size_bytes, lambda value: units.format_size_bytes(round(_rounded(value)))),
    Kind("per_s", units.parse_request_rate_per_s, lambda value: f"{_plain(value)}/s"),
    Kind("percent", parse_percent, lambda value: f"{_plain(value)}%"),
)
