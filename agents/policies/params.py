"""The parameters of a policy: their defaults, their ranges, and one check for all policies."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple


class Param(NamedTuple):
    """A setting: its default, above what it must be, and the most it may be."""

    default: float
    above: float = 0.0
    most: float = inf


def check(policy: str, known: Mapping[str, Param], given: Mapping[str, float]) -> None:
    """Check what a scenario sets.

    Raises:
        ValueError: a parameter is unknown or out of range; the message names policy and parameter.
    """
    for name, value in sorted(given.items()):
        if not known:
            raise ValueError(f"{policy} takes no parameters, found {', '.join(sorted(given))}")
        if name not in known:
            raise ValueError(f"{policy} has no parameter {name}; it has {', '.join(sorted(known))}")
        param = known[name]
        if not param.above < value <= param.most:
            most = "" if param.most == inf else f" and at most {param.most:g}"
            raise ValueError(f"{policy}: {name} is {value}, it must be above {param.above:g}{most}")


def values(known: Mapping[str, Param], given: Mapping[str, float]) -> dict[str, float]:
    """Every parameter's value: what is given, or the default."""
    return {name: given.get(name, param.default) for name, param in known.items()}
