"""What one process computes once a run with real kernels is over: who, what, and for how long."""

from __future__ import annotations

from pathlib import Path

from testbed import journal_lines
from testbed.containers import READY_TIMEOUT_S
from testbed.plan import Agent, Plan


def answered(journal: Path) -> set[int]:
    """The requests that were completed, by the client's own lines: there is something to compare."""
    ends = (noted.line for noted in journal_lines.read(journal).lines)
    return {end.id for end in ends if isinstance(end, journal_lines.Request) and end.state == "completed"}


def agent(plan: Plan) -> Agent:
    """The one that computes."""
    return next(one for one in plan.agents if one.role == "reference")


def patience_s(plan: Plan) -> float:
    """As long as all instances together had, and time to load."""
    instances = sum(one.role in {"prefill", "decode"} for one in plan.agents)
    return READY_TIMEOUT_S + instances * (plan.duration_ns + plan.drain_ns) / 1e9
