"""Whether the host's kernel can carry a scenario in real time; otherwise its limits would be the result."""

from __future__ import annotations

import json
import math
from typing import Final

from testbed.errors import MachineError, Problem
from testbed.kernel.carry import carries_bps
from testbed.plan import Plan
from testbed.rundir import RunDir
from testbed.units import format_rate_bps

SHARE: Final = 0.5
"""Of what is carried raw, as shaping, checking and the agents take as much again (a choice)."""
LEAST_SCALE: Final = 0.0001


def require(plan: Plan) -> int:
    """What this machine carries raw, in bits per second.

    Raises MachineError when that is too little for the link at its fastest, with a scale that is not.
    """
    carried_bps = carries_bps()
    refuse(plan, carried_bps)
    return carried_bps


def refuse(plan: Plan, carried_bps: int) -> None:
    """MachineError when a link of the plan is beyond SHARE of what is carried."""
    states = [*plan.link.values(), *(change.state for change in plan.changes)]
    fastest_bps, most_bps = max(state.rate_bps for state in states), carried_bps * SHARE
    if fastest_bps <= most_bps:
        return
    carried, asked = format_rate_bps(round(_two_digits(carried_bps))), format_rate_bps(fastest_bps)
    scale = _two_digits(plan.scale * most_bps / fastest_bps)
    smaller = f"--scale {scale:g}, or " if scale >= LEAST_SCALE else ""
    raise MachineError(
        Problem(
            "--kernel host",
            f"the link has {asked}, and this machine carries {carried} through seven namespaces, unshaped",
            f"links of up to {SHARE:.0%} of that",
            f"{smaller}--kernel uml, whose virtual clock carries any rate",
        )
    )


def note(run: RunDir, carried_bps: int) -> None:
    """Keep the figure for the manifest."""
    run.guest.write_text(json.dumps({"carried_bps": carried_bps}), encoding="utf-8")


def _two_digits(value: float) -> float:
    """Rounded down; not below 1e-9."""
    step = 10.0 ** (math.floor(math.log10(max(value, 1e-9))) - 1)
    return math.floor(value / step + 1e-9) * step
