"""What of a run has to be the same in every kernel. Pure: from plan, verdict and record.

goodput  every bound of the scenario on a rate; compared with the other kernels'
delay    of the probes before the run, each direction; compared with what was asked
loss     of the packets of the run, for a direction whose loss never changes; with what its dice may take
verdict  PASS or FAIL, and which expectations failed; with what the scenario must come to, and the others'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec
import numpy as np
import polars as pl

from testbed.audit import chance
from testbed.audit.finding import ARROWS
from testbed.kernel import Clock
from testbed.plan import DIRECTIONS, Direction, LinkState, Plan
from testbed.readable import number, quantity
from testbed.shaping.distributions import deviations
from testbed.units import NS_PER_S
from testbed.verdict import Status, Verdict

GOODPUT_SPREAD: Final = 0.03
"""The largest goodput of all kernels may be so much above the smallest."""
DELAY_TOLERANCE_S: Final[dict[Clock, float]] = {"virtual": 10e-6, "real": 0.5e-3}
MISS: Final = 1e-3
"""Chance that a sound kernel's losses, or quantiles of its delays, lie outside of what is allowed."""
MIDDLE: Final = 0.5
SHARES: Final = (0.05, MIDDLE, 0.95)
"""Quantiles of the delays where there is jitter: middle and width of the distribution, no odd late one."""
ALLOWED: Final = {
    "goodput": f"{GOODPUT_SPREAD:.0%} apart",
    "delay": ", ".join(f"± {1e3 * off_s:g} ms {clock}" for clock, off_s in DELAY_TOLERANCE_S.items()),
    "loss": "in brackets",
    "verdict": "the same",
}

Kind = Literal["goodput", "delay", "loss", "verdict"]


class Figure(msgspec.Struct, frozen=True):
    """One figure of one run. Figures of the same `kind` and `what` in other kernels belong to it."""

    kind: Kind
    what: str
    asked: str
    shown: str
    sound: bool
    """Whether it is what was asked, as far as this run alone can tell."""
    value: float | None = None
    """Of a goodput, in bps: what is compared."""


def of_run(
    plan: Plan, verdict: Verdict, tables: Mapping[str, pl.DataFrame], clock: Clock, must: Status
) -> list[Figure]:
    """All of them, of a run whose verdict is not UNKNOWN. `must`: the verdict that the scenario must have."""
    return [
        *_goodputs(verdict),
        *(figure for one in DIRECTIONS for figure in _delays(plan, one, tables["probes"], clock)),
        *(figure for one in DIRECTIONS for figure in _losses(plan, one, tables["links"])),
        _verdict(verdict, must),
    ]


def _goodputs(verdict: Verdict) -> Iterator[Figure]:
    for result in verdict.results:
        if result.kind == "bound" and result.unit == "bps" and result.measured is not None:
            shown, sound = quantity(result.measured, "bps", 4), result.status == "PASS"
            yield Figure("goodput", result.name, result.bound, shown, sound, result.measured)


def _delays(plan: Plan, direction: Direction, probes: pl.DataFrame, clock: Clock) -> Iterator[Figure]:
    """Quantiles, each within the tolerance of where the asked distribution may have it.

    The share of so many draws that lie below a quantile is off by no more than the bound of Dvoretzky, Kiefer
    and Wolfowitz (Massart 1990).
    """
    state, arrived = plan.link[direction], probes.filter(pl.col("direction") == direction)
    delays_s = arrived["delay_s"].drop_nulls().to_numpy()
    if not delays_s.size:
        return
    drawn_s = _drawn_s(plan, state)
    off = math.sqrt(math.log(2 / MISS) / (2 * delays_s.size))
    tolerance_s = DELAY_TOLERANCE_S[clock]
    for share in SHARES if state.jitter_ns else (MIDDLE,):
        measured_s = float(np.quantile(delays_s, share))
        low_s, asked_s, high_s = (
            float(np.quantile(drawn_s, min(max(one, 0.0), 1.0))) for one in (share - off, share, share + off)
        )
        name = "delay" if share == MIDDLE else f"delay of the quickest {share:.0%}"
        yield Figure(
            "delay",
            f"{name}, {ARROWS[direction]}",
            quantity(asked_s, "s", 6),
            quantity(measured_s, "s", 6),
            low_s - tolerance_s <= measured_s <= high_s + tolerance_s,
        )


def _drawn_s(plan: Plan, state: LinkState) -> chance.Floats:
    """All delays that netem makes of the state, each as likely as the other."""
    if not state.jitter_ns:
        return np.array([state.delay_ns / NS_PER_S])
    around = deviations(plan.delay_tables[state.distribution], state.jitter_ns)
    return np.maximum(0, state.delay_ns + around) / NS_PER_S


def _losses(plan: Plan, direction: Direction, links: pl.DataFrame) -> Iterator[Figure]:
    state = plan.link[direction]
    changed = any(one.direction == direction and one.state != state for one in plan.changes)
    if state.loss is None or state.loss.model == "periodic" or state.partitioned or changed:
        return
    rows = links.filter(pl.col("direction") == direction)
    filtered = int(rows["filtered_packets"].sum())
    entered, lost = int(rows["sent_packets"].sum()) - filtered, int(rows["lost_packets"].sum()) - filtered
    low, high = chance.interval(entered, chance.drops(state.loss, state.duplicate), MISS)
    ratio = chance.lost_in_the_long_run(state.loss)
    yield Figure(
        "loss",
        f"{state.loss.model.replace('_', ' ')} loss, {ARROWS[direction]}",
        number(ratio),
        f"{number(lost / entered if entered else 0.0)}: {lost:,} of {entered:,} ({low:,} to {high:,})",
        low <= lost <= high and entered > 0,
    )


def _verdict(verdict: Verdict, must: Status) -> Figure:
    failed = [result.name for result in verdict.results if result.status == "FAIL"]
    shown = ": ".join([verdict.status, *([", ".join(failed)] if failed else [])])
    return Figure("verdict", "verdict", must, shown, verdict.status == must)
