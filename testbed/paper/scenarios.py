"""The scenarios about single reactions, and which of them are controls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from testbed.paper.runs import Done
from testbed.runs import Wanted
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
    "wan": "wan_short_loop",
}
"""What must pass, and the same trouble without what is to deal with it, which must fail."""
ALONE: Final = ("bursts", "oscillation_5s", "oscillation_20s", "ramp", "step_up")
"""Must pass; `step_down_static` and `oscillation_60s_hasty` are controls of their kind."""
ALTERED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "table6_homogeneous_8_prefill": (
        "table6_homogeneous",
        ("clusters.pd.prefill=8", "clusters.pd.decode=4"),
    ),
    "table6_naive_3_prfaas": ("table6_naive", ("clusters.prfaas.instances=3",)),
    "table6_prfaas_2_prefill": ("table6_prfaas", ("clusters.pd.prefill=2", "clusters.pd.decode=6")),
    "wan_short_loop": ("wan", ("policy.name=bandwidth_aware",)),
}
"""Controls without a file: a scenario that must pass, and what `--set` changes in it, so that it must fail.

Those of table 6, which `table6` runs, have one instance less for prefill where prefill limits.
"""


def expected() -> dict[str, Status]:
    """The verdict that each scenario must have."""
    verdicts: dict[str, Status] = dict.fromkeys((*CONTROLS, *ALONE), "PASS")
    verdicts.update(dict.fromkeys((*CONTROLS.values(), *ALTERED), "FAIL"))
    return verdicts


def wanted(directory: Path) -> list[Wanted]:
    """A run of each, by name."""
    runs = []
    for name in sorted(expected()):
        scenario, overrides = ALTERED.get(name, (name, ()))
        runs.append(Wanted(name, directory / f"{scenario}.yaml", overrides))
    return runs


def holds(done: Done) -> bool:
    """Whether a run has the verdict that it must have."""
    return done.verdict.status == expected()[done.name]
