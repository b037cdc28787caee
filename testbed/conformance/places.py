"""Where a scenario can run: a kernel and its clock, under one name."""

from __future__ import annotations

from typing import Final

import msgspec

from testbed.errors import MachineError, Problem, ScenarioError
from testbed.kernel import Clock
from testbed.kernel.choose import KERNELS, choose
from testbed.units import UnitError, parse_rate_bps


class Place(msgspec.Struct, frozen=True):
    """A kernel, and which of its clocks."""

    name: str
    kernel: str
    clock: Clock

    @property
    def options(self) -> tuple[str, ...]:
        """Of `python -m testbed.run`."""
        return ("--kernel", self.kernel, "--clock", self.clock)

    def lacks(self) -> tuple[Problem, ...]:
        """What this machine would need to run something here; empty when it can."""
        try:
            choose(self.kernel, self.clock)
        except MachineError as error:
            return error.problems
        return ()


PLACES: Final[dict[str, Place]] = {
    "uml": Place("uml", "uml", "virtual"),
    "uml-real": Place("uml-real", "uml", "real"),
    **{name: Place(name, name, "real") for name in KERNELS if name != "uml"},
}
"""Only `uml` has two clocks."""


def named(names: str) -> list[Place]:
    """Those of a list with commas; ScenarioError for one that is none."""
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",")))
    problems = [
        Problem("--kernels", f"no kernel {name!r}", allowed=", ".join(PLACES))
        for name in wanted
        if name not in PLACES
    ]
    if problems:
        raise ScenarioError(*problems)
    return [PLACES[name] for name in wanted]


def limits(asked: list[str]) -> dict[str, int]:
    """The fastest link for each place (bps) of `vm=200mbit` and the like; ScenarioError for anything else."""
    found, problems = {}, []
    for one in asked:
        name, _, rate = one.partition("=")
        if name not in PLACES:
            problems.append(Problem(f"--most {one}", f"no kernel {name!r}", allowed=", ".join(PLACES)))
            continue
        try:
            found[name] = parse_rate_bps(rate)
        except UnitError as error:
            problems.append(Problem(f"--most {one}", error.found, error.allowed))
    if problems:
        raise ScenarioError(*problems)
    return found
