"""Quantities as people write them, and the exact integers the rest of the project computes with.

    rate          100gbit  1.5gbit  8mbit        -> bits per second
    duration      10ms  5.75ms  30s  2min        -> nanoseconds
    size          2MiB  64MB  8GiB               -> bytes (MB = 10^6, MiB = 2^20)
    request rate  2.56/s                         -> requests per second (float)
    ratio         0.001  1e-9  0.1%              -> number from 0 to 1 (float)

Parsing is exact: what does not come out as a whole number of the smallest unit is refused, never
rounded. Every parser raises `UnitError`, whose `found` and `allowed` are ready for a message.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

NS_PER_S: Final = 1_000_000_000

RATE_UNITS: Final[dict[str, int]] = {
    "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12,
}  # fmt: skip
DURATION_UNITS: Final[dict[str, int]] = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": NS_PER_S, "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S,
}  # fmt: skip
SIZE_UNITS: Final[dict[str, int]] = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip

RATE_ALLOWED: Final = "a rate with its unit, such as 100gbit or 8mbit (bit, kbit, mbit, gbit, tbit)"
DURATION_ALLOWED: Final = "a duration with its unit, such as 10ms or 30s (ns, us, ms, s, min, h)"
SIZE_ALLOWED: Final = "a size with its unit, such as 64MB or 2MiB (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
REQUEST_RATE_ALLOWED: Final = "a request rate, such as 2.56/s"
RATIO_ALLOWED: Final = "a number from 0 to 1, such as 0.001 or 1e-9, or a percentage, such as 0.1%"

MAX_INTEGER: Final = 2**62
"""Larger values are typing errors, and would not fit the kernel's 64-bit fields once multiplied."""

MAX_SHOWN: Final = 60

_QUANTITY: Final = re.compile(r"([+-]?)([0-9]{1,30}(?:\.[0-9]{1,30})?) ?([A-Za-z]+)", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?", re.ASCII)
_RATIO: Final = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?)( ?%)?", re.ASCII)
_REQUEST_RATE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?/ ?s", re.ASCII)


class UnitError(ValueError):
    """A text that is not the quantity it should be."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(f"{found}; allowed: {allowed}")
        self.found = found
        self.allowed = allowed


def parse_rate_bps(value: object) -> int:
    """`100gbit` -> 100_000_000_000. Units in any case; `gbps` is refused, as it means bytes to tc."""
    return _parse_quantity(value, RATE_UNITS, RATE_ALLOWED, what="rate", any_case=True)


def parse_duration_ns(value: object) -> int:
    """`5.75ms` -> 5_750_000."""
    return _parse_quantity(value, DURATION_UNITS, DURATION_ALLOWED, what="duration")


def parse_size_bytes(value: object) -> int:
    """`2MiB` -> 2_097_152. Units are case-sensitive: `Mb` could mean bits."""
    return _parse_quantity(value, SIZE_UNITS, SIZE_ALLOWED, what="size")


def parse_request_rate_per_s(value: object) -> float:
    """`2.56/s` -> 2.56; zero is refused, as no request would ever arrive."""
    if _is_number(value):
        raise UnitError(f"{value} has no unit", REQUEST_RATE_ALLOWED)
    match = _REQUEST_RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnitError(f"{shown(value)} is no request rate", REQUEST_RATE_ALLOWED)
    rate = float(Fraction(match[1]))
    if rate == 0:
        raise UnitError("a request rate of 0", REQUEST_RATE_ALLOWED)
    return rate


def parse_ratio(value: object) -> float:
    """`0.1%`, `"1e-9"`, `0.001` or `0` -> a float from 0 to 1, correctly rounded."""
    text = repr(value) if _is_number(value) else value
    match = _RATIO.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"{shown(value)} is no ratio", RATIO_ALLOWED)
    ratio = Fraction(match[1]) / (100 if match[2] else 1)
    if ratio > 1:
        raise UnitError(f"{value} is above 1", RATIO_ALLOWED)
    return float(ratio)


def format_rate_bps(rate_bps: int) -> str:
    """Exact and readable: 1_500_000_000 -> `1.5gbit`."""
    return _format_quantity(rate_bps, RATE_UNITS)


def format_duration_ns(duration_ns: int) -> str:
    """Exact and readable: 5_750_000 -> `5.75ms`; minutes and hours are written in seconds."""
    units = {unit: factor for unit, factor in DURATION_UNITS.items() if factor <= NS_PER_S}
    return _format_quantity(duration_ns, units)


def format_size_bytes(size_bytes: int) -> str:
    """Exact and readable, in binary or decimal units, whichever is shorter: `2MiB`, `64MB`."""
    binary = [(factor, unit) for unit, factor in SIZE_UNITS.items() if unit.endswith("iB")]
    whole = [f"{size_bytes // factor}{unit}" for factor, unit in binary if size_bytes % factor == 0]
    decimal = {unit: factor for unit, factor in SIZE_UNITS.items() if not unit.endswith("iB")}
    texts = [_format_quantity(size_bytes, decimal), *(whole if size_bytes else [])]
    return min(texts, key=len)


def _parse_quantity(
    value: object, units: dict[str, int], allowed: str, *, what: str, any_case: bool = False
) -> int:
    if _is_number(value) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        raise UnitError(f"{value} has no unit", allowed)
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnitError(f"{shown(value)} is no {what}", allowed)
    sign, digits, unit = match.groups()
    factor = units.get(unit.lower() if any_case else unit)
    if factor is None:
        raise UnitError(f"{shown(value)} has the unknown unit {unit}", allowed)
    whole, _, decimals = digits.partition(".")
    amount, rest = divmod(int(whole + decimals) * factor, int(10 ** len(decimals)))
    if sign == "-" and (amount or rest):
        raise UnitError(f"{value} is negative", allowed)
    if rest:
        raise UnitError(f"{value} is finer than 1 {next(iter(units))}", allowed)
    if amount > MAX_INTEGER:
        raise UnitError(f"{value} is too large", allowed)
    return amount


def _format_quantity(amount: int, units: dict[str, int]) -> str:
    """In the largest unit that leaves at least 1, all decimals kept."""
    fitting = [(factor, unit) for unit, factor in units.items() if factor <= amount]
    factor, unit = max(fitting, default=(1, next(iter(units))))
    whole, rest = divmod(amount, factor)
    if not rest:
        return f"{whole}{unit}"
    decimals = len(str(factor)) - 1
    return f"{whole}.{rest:0{decimals}d}".rstrip("0") + unit


def _is_number(value: object) -> bool:
    """True for numbers; YAML's true and false are not numbers to a reader."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: object) -> str:
    """The value as a reader knows it from YAML, cut to a bearable length."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(value))
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN - 3]}..."
    return text if isinstance(value, int | float) else f'"{text}"'
