"""Whether bandwidth is scarce, judged from the use of the egress link, with hysteresis.

Leaving the scarce regime makes the system send more, which may be just what the link cannot carry. So the
time that the link has to be calm doubles whenever it turned out too short.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from types import MappingProxyType

from agents.policies.params import Param
from agents.policies.view import Regime

PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        "scarce_above": Param(0.9, most=1.0),
        "abundant_below": Param(0.7, most=1.0),
        "abundant_after_s": Param(10.0),
    }
)
SMOOTH_S = 2.0  # KV comes in lumps of a prefill each
BACKLOG_S = 1.0  # what takes so long to be sent fills the link; what is on its way takes milliseconds
USED_MAX = 2.0  # a lump says no more than "too much"
PATIENCE_MAX = 16.0  # doublings end here


@dataclass(frozen=True, slots=True)
class Scarcity:
    """`used`: smoothed use of the link, as a share of its capacity. `calm_s`: time below `abundant_below`.

    `patience`: how many times `abundant_after_s` has to be calm. `abundant_s`: time since scarcity ended.
    """

    regime: Regime = "scarce"
    used: float = 0.0
    calm_s: float = 0.0
    patience: float = 1.0
    abundant_s: float = 0.0


def used(demand_bps: float, backlog_bytes: int, capacity_bps: float | None) -> float:
    """The share of the link that a demand takes, or a backlog in seconds to send it; 0: it does not bind.

    While a backlog drains nothing may be demanded, and the link is busy all the same.
    """
    if capacity_bps is None:
        return 0.0
    return min(max(demand_bps, 8 * backlog_bytes / BACKLOG_S) / capacity_bps, USED_MAX)


def observe(params: Mapping[str, float], scarcity: Scarcity, used_now: float, elapsed_s: float) -> Scarcity:
    """The regime after one more interval in which this share of the link was used."""
    smoothed = scarcity.used + (used_now - scarcity.used) * (1 - exp(-elapsed_s / SMOOTH_S))
    required_s = params["abundant_after_s"] * scarcity.patience
    if scarcity.regime == "scarce":
        calm_s = scarcity.calm_s + elapsed_s if smoothed < params["abundant_below"] else 0.0
        if calm_s < required_s:
            return replace(scarcity, used=smoothed, calm_s=calm_s)
        return Scarcity("abundant", smoothed, patience=scarcity.patience)
    abundant_s = scarcity.abundant_s + elapsed_s
    lasted = abundant_s > 2 * required_s
    if smoothed <= params["scarce_above"]:
        patience = 1.0 if lasted else scarcity.patience
        return replace(scarcity, used=smoothed, patience=patience, abundant_s=abundant_s)
    return Scarcity("scarce", smoothed, patience=1.0 if lasted else min(2 * scarcity.patience, PATIENCE_MAX))


def check(policy: str, given: Mapping[str, float]) -> None:
    """Check that the marks leave room between them.

    Raises:
        ValueError: `abundant_below` is not below `scarce_above`.
    """
    low, high = given["abundant_below"], given["scarce_above"]
    if low >= high:
        raise ValueError(f"{policy}: abundant_below is {low}, it must be below scarce_above, {high}")
