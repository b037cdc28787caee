"""What the probes say of delay, loss, order, duplication and corruption."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from testbed.audit import chance
from testbed.audit.finding import Finding, missing
from testbed.audit.idle import clock as clock_of
from testbed.audit.idle import detail
from testbed.plan import Direction, LinkState, Plan
from testbed.readable import number, quantity
from testbed.shaping.distributions import deviations

DELAY_TOLERANCE_S = {"virtual": 10e-6, "real": 0.5e-3}
SINGLE_TOLERANCE_S = {"virtual": 1e-6, "real": 0.5e-3}
"""How far a single delay may be off its place in the distribution."""
EXTREMES = {"virtual": (0.0, 1.0), "real": (0.05, 0.95)}
"""Shares of the probes that are quicker. In real time some are late because a processor was busy."""
MEAN_SIGMAS = 4.9
"""A normal variable is farther off with a chance of 1e-6."""
NS_PER_S = 1_000_000_000


def judge(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Everything that the train through this direction shows."""
    state = plan.link[direction]
    noted = detail(tables, "train", direction)
    probes = tables["probes"].filter(pl.col("direction") == direction)
    if noted is None or probes.is_empty():
        yield missing("probes", direction)
        return
    clock = clock_of(tables)
    tolerance_s = DELAY_TOLERANCE_S[clock]
    small = probes.filter(pl.col("size_bytes") == probes["size_bytes"].min())
    yield from _left(direction, small, int(noted["missed"]))
    sent = small.filter((pl.col("copy") == 0) & pl.col("left_s").is_not_null())
    arrivals = small.filter(pl.col("delay_s").is_not_null())
    if state.partitioned:
        yield _counted("partition", direction, arrivals.height, sent.height, (0, 0), "nothing to arrive")
        return
    yield _loss(state, direction, sent)
    yield from _order(plan, direction, arrivals, tolerance_s)
    yield from _delay(plan, direction, arrivals, clock)
    arriving = (1 - chance.lost_in_the_long_run(state.loss)) ** 2
    copies = arrivals.filter(pl.col("copy") > 0).height
    twice = chance.interval(sent.height, chance.coin(state.duplicate * arriving))
    yield _counted("duplicates", direction, copies, sent.height, twice, number(state.duplicate))
    wrong = int((~arrivals["intact"]).sum())
    turned = chance.interval(arrivals.height, chance.coin(state.corrupt))
    yield _counted("corruption", direction, wrong, arrivals.height, turned, number(state.corrupt))
    yield from _large(state, direction, probes)


def _left(direction: Direction, small: pl.DataFrame, missed: int) -> Iterator[Finding]:
    """Nothing to say unless the train itself was disturbed."""
    kept = small.filter((pl.col("copy") == 0) & pl.col("left_s").is_null()).height
    if kept or missed:
        yield Finding(
            "probes", direction, "every probe to enter the link", f"{kept} did not", "0", ok=False,
            more=f"{missed} frames were not seen" if missed else "the rate stage dropped them",
        )  # fmt: skip


def _counted(  # noqa: PLR0917 - a row, in the order of its columns
    what: str, direction: Direction, count: int, of: int, within: tuple[int, int], asked: str
) -> Finding:
    low, high = within
    allowed = str(low) if low == high else f"{low} to {high}"
    return Finding(what, direction, asked, f"{count} of {of}", allowed, ok=low <= count <= high)


def _loss(state: LinkState, direction: Direction, sent: pl.DataFrame) -> Finding:
    lost = sent.filter(pl.col("arrived_s").is_null())["number"].to_list()
    loss = state.loss
    if loss is None:
        return _counted("loss", direction, len(lost), sent.height, (0, 0), "0")
    if loss.model == "periodic":
        every = loss.every_packets
        within = (sent.height // every, -(-sent.height // every))
        found = _counted("loss", direction, len(lost), sent.height, within, f"every {every}th")
        regular = all(after - before == every for before, after in itertools.pairwise(lost))
        return Finding(
            found.what, direction, found.asked, found.measured, found.allowed, ok=found.ok and regular,
            more="" if regular else "they are not as far apart as asked",
        )  # fmt: skip
    # a packet that is both doubled and lost arrives once (netem_enqueue)
    chain = chance.thinned(chance.losses(loss), 1 - state.duplicate)
    asked = f"{number(chance.lost_in_the_long_run(loss))} {loss.model.replace('_', ' ')}"
    return _counted("loss", direction, len(lost), sent.height, chance.interval(sent.height, chain), asked)


def _order(plan: Plan, direction: Direction, arrivals: pl.DataFrame, tolerance_s: float) -> Iterator[Finding]:
    """Who overtakes skips the delay; the others keep their order."""
    state = plan.link[direction]
    overtook = _skipped_the_delay(plan, direction, tolerance_s)
    if overtook is not None:
        count = arrivals.filter(overtook).height
        within = chance.interval(arrivals.height, chance.coin(state.reorder))
        asked = number(state.reorder)
        yield _counted("reordering", direction, count, arrivals.height, within, asked)
        arrivals = arrivals.filter(~overtook)
    numbers = arrivals.filter(pl.col("copy") == 0).sort("place")["number"]
    late = int((numbers.diff().drop_nulls() < 0).sum())
    yield _counted("order", direction, late, numbers.len(), (0, 0), "none late")


def _skipped_the_delay(plan: Plan, direction: Direction, tolerance_s: float) -> pl.Expr | None:
    """Which arrivals overtook; None where no packet is asked to, or skipping the delay gains nothing."""
    state = plan.link[direction]
    least_s = float(expected_s(plan, direction).min())
    return pl.col("delay_s") < least_s / 2 if state.reorder and least_s > 2 * tolerance_s else None


def expected_s(plan: Plan, direction: Direction) -> chance.Floats:
    """All delays that jitter makes, sorted, each as likely as the other."""
    state = plan.link[direction]
    if not state.jitter_ns:
        return np.array([state.delay_ns / NS_PER_S])
    around = deviations(plan.delay_tables[state.distribution], state.jitter_ns)
    return np.maximum(0, state.delay_ns + around) / NS_PER_S


def _delay(plan: Plan, direction: Direction, arrivals: pl.DataFrame, clock: str) -> Iterator[Finding]:
    state, tolerance_s = plan.link[direction], DELAY_TOLERANCE_S[clock]
    overtook = _skipped_the_delay(plan, direction, tolerance_s)
    kept = arrivals if overtook is None else arrivals.filter(~overtook)
    once = kept.filter(pl.len().over("number") == 1)  # of two copies the quicker one comes first
    delays = once["delay_s"].to_numpy()
    if not delays.size:
        yield missing("delay", direction)
        return
    wanted = expected_s(plan, direction)
    slot_s = 2 * state.slot.max_ns / NS_PER_S if state.slot else 0.0
    quickest, slowest = map(float, np.quantile(delays, EXTREMES[clock]))
    low, high = wanted[0] - tolerance_s, wanted[-1] + slot_s + tolerance_s
    yield Finding(
        "delay, range",
        direction,
        f"{quantity(wanted[0], 's', 5)} to {quantity(wanted[-1] + slot_s, 's', 5)}",
        f"{quantity(quickest, 's', 5)} to {quantity(slowest, 's', 5)}",
        f"± {quantity(tolerance_s, 's')}",
        ok=bool(low <= quickest and slowest <= high),
    )
    if state.slot is not None:
        return
    slack_s = tolerance_s + MEAN_SIGMAS * float(wanted.std()) / math.sqrt(delays.size)
    yield Finding(
        "delay, mean",
        direction,
        quantity(float(wanted.mean()), "s", 5),
        quantity(float(delays.mean()), "s", 5),
        f"± {quantity(slack_s, 's')}",
        ok=bool(abs(delays.mean() - wanted.mean()) <= slack_s),
    )
    if state.jitter_ns:
        yield _distribution(state, direction, delays, wanted, SINGLE_TOLERANCE_S[clock])


def _distribution(
    state: LinkState, direction: Direction, delays: chance.Floats, wanted: chance.Floats, tolerance_s: float
) -> Finding:
    """Kolmogorov-Smirnov, with the bound of Dvoretzky, Kiefer and Wolfowitz (Massart 1990).

    A delay that is off by no more than the tolerance counts for the distribution.
    """
    ordered = np.sort(delays)
    steps = np.arange(1, ordered.size + 1) / ordered.size
    above = steps - np.searchsorted(wanted, ordered + tolerance_s, side="right") / wanted.size
    below = np.searchsorted(wanted, ordered - tolerance_s, side="left") / wanted.size - (
        steps - 1 / ordered.size
    )
    distance = float(max(above.max(), below.max(), 0.0))
    allowed = math.sqrt(math.log(2 / chance.MISS) / (2 * ordered.size)) + 1 / wanted.size
    return Finding(
        "jitter",
        direction,
        f"{state.distribution}, {quantity(state.jitter_ns / NS_PER_S, 's')}",
        f"{distance:.3f} from it",
        f"{allowed:.3f} (Kolmogorov-Smirnov)",
        ok=distance <= allowed,
    )


def _large(state: LinkState, direction: Direction, probes: pl.DataFrame) -> Iterator[Finding]:
    """Packets up to the limit pass, larger ones do not."""
    limits = [size for size in (state.path_mtu_bytes, state.black_hole_bytes) if size is not None]
    if not limits:
        return
    for (size,), rows in probes.group_by("size_bytes", maintain_order=True):
        if size == probes["size_bytes"].min():
            continue
        count, arrived = rows.filter(pl.col("copy") == 0).height, rows["arrived_s"].count()
        passes = isinstance(size, int) and size <= min(limits)
        fewest = (1 if state.loss else count) if passes else 0
        within = (fewest, rows.height if passes else 0)
        what = f"packets of {size} B"
        yield _counted(what, direction, arrived, count, within, "all through" if passes else "none through")
