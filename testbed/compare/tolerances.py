"""`--tolerance 5%`, `--tolerance ttft_s.p90=300ms`: how much worse is still as good."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.metrics import METRICS
from testbed.units import (
    DURATION_ALLOWED,
    NS_PER_S,
    RATE_ALLOWED,
    SIZE_ALLOWED,
    UnitError,
    parse_duration_ns,
    parse_rate_bps,
    parse_size_bytes,
    shown,
)

_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
SHARE_ALLOWED: Final = "a share of the baseline's value, such as 5%"
NEAREST: Final = 6


@dataclass(frozen=True)
class Tolerance:
    """What a quantity may get worse by: `absolute`, in its unit, or `share` of the baseline's."""

    text: str
    absolute: float = 0.0
    share: float = 0.0


DEFAULT: Final = Tolerance("5%", share=0.05)


@dataclass(frozen=True)
class Tolerances:
    """By name of metric or expectation; `everywhere` for all others that can get worse, None: only shown."""

    everywhere: Tolerance | None = DEFAULT
    named: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, *names: str) -> Tolerance | None:
        """The one that somebody gave for one of these names."""
        return next((self.named[name] for name in names if name in self.named), None)


def parse(texts: Sequence[str], units: Mapping[str, str]) -> Tolerances:
    """All of `--tolerance`; `units`: by name, of expectations, which may be named beside the metrics.

    Without any, DEFAULT holds everywhere; once something is named, only that is judged, unless one for all
    stands beside it.

    Raises:
        ScenarioError: what cannot be read, or names nothing, or the same twice; all such problems.
    """
    known: dict[str, str] = {name: metric.unit for name, metric in METRICS.items() if "bound" in metric.kinds}
    known |= units
    everywhere: Tolerance | None = None
    named: dict[str, Tolerance] = {}
    problems = []
    for text in texts:
        name, _, amount = (part.strip() for part in text.rpartition("="))
        try:
            if "=" in text:
                _refuse(name, name in named, known)
                named[name] = _tolerance(amount, known[name])
            else:
                _refuse("", everywhere is not None, {"": ""})
                everywhere = _tolerance(amount, None)
        except UnitError as error:
            problems.append(Problem(f"--tolerance {text}", error.found, error.allowed))
    if problems:
        raise ScenarioError(*problems)
    return Tolerances(everywhere, named) if texts else Tolerances()


def _refuse(name: str, given: bool, known: Collection[str]) -> None:
    """UnitError where there is no such name (none: all), or it was given before."""
    if name not in known:
        raise UnitError(f"unknown name {shown(name)}", _near(name, known))
    if given:
        what = f"of {name}" if name else "for all"
        raise UnitError(f"a second tolerance {what}", f"one {what}")


def _near(name: str, known: Collection[str]) -> str:
    """Names that are like it; a metric is known by its beginning or its end."""
    parts = {part for part in name.split(".") if part}
    scored = sorted(known, key=lambda each: (-len(parts & set(each.split("."))), each))
    near = [each for each in scored[:NEAREST] if parts & set(each.split("."))]
    return f"{', '.join(near)} or another metric" if near else "a metric, or the name of an expectation"


def _tolerance(text: str, unit: str | None) -> Tolerance:
    """A share, or an amount of this unit; UnitError when it is neither."""
    if text.endswith("%"):
        if _NUMBER.fullmatch(text[:-1].strip()) is None:
            raise UnitError(f"{shown(text)} is no share", SHARE_ALLOWED)
        return Tolerance(text, share=float(text[:-1]) / 100)
    if unit is None:
        raise UnitError(f"{shown(text)} has no %", f"{SHARE_ALLOWED}, or NAME={text}")
    return Tolerance(text, absolute=_amount(text, unit))


def _amount(text: str, unit: str) -> float:
    read: dict[str, tuple[Callable[[object], int], int, str]] = {
        "s": (parse_duration_ns, NS_PER_S, DURATION_ALLOWED),
        "bps": (parse_rate_bps, 1, RATE_ALLOWED),
        "bytes": (parse_size_bytes, 1, SIZE_ALLOWED),
    }
    if unit in read:
        parser, per, allowed = read[unit]
        try:
            return parser(text) / per
        except UnitError as error:
            raise UnitError(error.found, f"{allowed}, or {SHARE_ALLOWED}") from None
    bare = text.removesuffix(unit).strip()
    if _NUMBER.fullmatch(bare) is None or not math.isfinite(float(bare)):
        raise UnitError(f"{shown(text)} is no number of {unit}", f"a number, or {SHARE_ALLOWED}")
    return float(bare)
