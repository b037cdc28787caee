"""The scenarios about single reactions, and which of them are controls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from testbed.paper.runs import Done, Wanted
from testbed.verdict import Status

CONTROLS: Final = {
    "compression": "compression_without",
    "decode_bound": "decode_bound_short_loop",
    "fair_share": "fair_share_without",
    "falls_to_5gbps": "falls_to_5gbps_static",
    "hot_prefixes": "hot_prefixes_uncached",
    "oscillation_60s": "oscillation_60s_hasty",
    "prefill_bound": "prefill_bound_short_loop",
    "step_down": "step_down_static",
}
"""What must pass, and the same trouble without what is to deal with it, which must fail."""
ALONE: Final = ("bursts", "oscillation_5s", "oscillation_20s", "ramp", "step_up", "wan")
"""Must pass; `step_down_static` and `oscillation_60s_hasty` are controls of their kind."""


def expected() -> dict[str, Status]:
    """The verdict that each scenario must have."""
    verdicts: dict[str, Status] = dict.fromkeys((*CONTROLS, *ALONE), "PASS")
    verdicts.update(dict.fromkeys(CONTROLS.values(), "FAIL"))
    return verdicts


def wanted(directory: Path) -> list[Wanted]:
    """A run of each, by name."""
    return [Wanted(name, directory / f"{name}.yaml") for name in sorted(expected())]


def holds(done: Done) -> bool:
    """Whether a run has the verdict that it must have."""
    return done.verdict.status == expected()[done.name]
