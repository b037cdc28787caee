"""What two plans do not share: the world, which has to be the same, and the system, which is on trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from testbed.errors import Problem, ScenarioError
from testbed.plan import Plan
from testbed.readable import quantity
from testbed.units import NS_PER_S, shown

WORLD: Final = (
    "scale", "duration_ns", "drain_ns", "topology", "topology_params", "mtu_bytes", "model", "compute",
    "link", "changes", "delay_tables", "offload", "bursts", "tenants", "microbursts", "faults",
    "requests", "bulk",
)  # fmt: skip
"""Fields of a plan that say what the system was put in, and what was asked of it."""
UNSAID: Final = frozenset({"question", "seed", "line", "version", "traces", "text"})
"""Words and texts, where they stand, where requests were read, and the seed, which pairs the runs."""
SHOWN_OF_EACH: Final = 3
NAME_LENGTH: Final = 40
"""Longer texts are cut and quoted."""
READABLE: Final = {"_ns": ("s", 1 / NS_PER_S), "_bps": ("bps", 1.0), "_bytes": ("bytes", 1.0)}


class PlanDifference(msgspec.Struct, frozen=True):
    """One value that is not the same in both; `more` others of the same field are not shown."""

    path: str
    first: str
    second: str
    more: int = 0

    def __str__(self) -> str:
        rest = f" (and {self.more} more in {self.path.partition('.')[0]})" if self.more else ""
        return f"{self.path} is {self.first} in the baseline, {self.second} in the candidate{rest}"


def differences(first: Plan, second: Plan, fields: Sequence[str] | None = None) -> list[PlanDifference]:
    """At most SHOWN_OF_EACH of each field of the plan, or of these `fields`."""
    one, two = msgspec.to_builtins(first), msgspec.to_builtins(second)
    found = []
    for name in fields or [name for name in one if name not in UNSAID]:
        if one.get(name) == two.get(name):
            continue
        parts = list(_parts(name, one.get(name), two.get(name)))
        shown_parts = parts[:SHOWN_OF_EACH]
        if shown_parts and len(parts) > SHOWN_OF_EACH:
            more = len(parts) - SHOWN_OF_EACH
            shown_parts[-1] = msgspec.structs.replace(shown_parts[-1], more=more)
        found += shown_parts
    return found


def refuse_other_worlds(first: Plan, second: Plan) -> None:
    """ScenarioError with every difference of the worlds of two runs with the same seed."""
    if different := differences(first, second, WORLD):
        problems = [
            Problem(one.path, f"is {one.first} in the baseline, {one.second} in the candidate")
            for one in different
        ]
        problems[-1] = Problem(
            problems[-1].where,
            problems[-1].found,
            "runs of the same link, workload and scale; policy and system may differ",
            "--anyway compares them nonetheless",
        )
        raise ScenarioError(*problems)


def _parts(path: str, one: Any, two: Any) -> Iterator[PlanDifference]:
    """The leaves that differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        for name in dict.fromkeys([*one, *two]):
            if name not in UNSAID and one.get(name) != two.get(name):
                yield from _parts(f"{path}.{name}", one.get(name), two.get(name))
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
        for index, (left, right) in enumerate(zip(one, two, strict=True)):
            if left != right:
                yield from _parts(f"{path}[{index}]", left, right)
    else:
        yield PlanDifference(path, _text(path, one), _text(path, two))


def _text(path: str, value: object) -> str:
    if isinstance(value, list | tuple):
        return f"{len(value)} entries"
    for suffix, (unit, factor) in READABLE.items():
        if path.endswith(suffix) and isinstance(value, int | float):
            return quantity(value * factor, unit)
    return value if isinstance(value, str) and value and len(value) < NAME_LENGTH else shown(value)
