"""What the probes say of delay, loss, order, duplication and corruption."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from testbed.audit import chance
from testbed.audit.finding import Finding, counted, missing
from testbed.audit.notes import clock as clock_of
from testbed.audit.notes import detail
from testbed.plan import Direction, LinkState, Loss, Plan, Slot
from testbed.readable import number, quantity
from testbed.shaping.distributions import deviations
from testbed.units import NS_PER_S

DELAY_TOLERANCE_S = {"virtual": 10e-6, "real": 0.5e-3}
SINGLE_TOLERANCE_S = {"virtual": 1e-6, "real": 0.5e-3}
"""How far a single delay may be off its place in the distribution."""
EXTREMES = {"virtual": (0.0, 1.0), "real": (0.05, 0.95)}
"""Shares of the probes that are quicker. In real time some are late because a processor was busy."""
MEAN_SIGMAS = 4.9
"""A normal variable is farther off with a chance of 1e-6."""
SLOT_DELAYS, SLOT_PAUSES = 256, 64
"""Of which every combination of a delay and two pauses is looked at."""


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
        yield counted("partition", direction, arrivals.height, sent.height, (0, 0), "nothing to arrive")
        return
    yield _loss(state, direction, sent)
    yield from _order(plan, direction, arrivals, tolerance_s)
    yield from _delay(plan, direction, arrivals, sent.height, clock)
    copies = arrivals.filter(pl.col("copy") > 0).height
    twice = chance.interval(sent.height, chance.doubled(_dice(state), state.duplicate))
    asked = number(state.duplicate)
    yield counted("duplicates", direction, copies, sent.height, twice, asked, share=state.duplicate)
    wrong = int((~arrivals["intact"]).sum())
    turned = chance.interval(arrivals.height, chance.coin(state.corrupt))
    asked = number(state.corrupt)
    yield counted("corruption", direction, wrong, arrivals.height, turned, asked, share=state.corrupt)
    yield from _large(state, direction, probes)


def _left(direction: Direction, small: pl.DataFrame, missed: int) -> Iterator[Finding]:
    """Nothing to say unless the train itself was disturbed."""
    kept = small.filter((pl.col("copy") == 0) & pl.col("left_s").is_null()).height
    if kept or missed:
        yield Finding(
            "probes", direction, "every probe to enter the link", f"{kept} did not", "0", ok=False,
            more=f"{missed} frames were not seen" if missed else "the rate stage dropped them",
        )  # fmt: skip


def _dice(state: LinkState) -> Loss | None:
    """The loss process of the delay stage: every n-th is taken before."""
    return None if state.loss is None or state.loss.model == "periodic" else state.loss


def _loss(state: LinkState, direction: Direction, sent: pl.DataFrame) -> Finding:
    lost = sent.filter(pl.col("arrived_s").is_null())["number"].to_list()
    loss = state.loss
    if loss is None:
        return counted("loss", direction, len(lost), sent.height, (0, 0), "0")
    if loss.model == "periodic":
        every = loss.every_packets
        within = (sent.height // every, -(-sent.height // every))
        found = counted("loss", direction, len(lost), sent.height, within, f"every {every}th")
        regular = all(after - before == every for before, after in itertools.pairwise(lost))
        return Finding(
            found.what, direction, found.asked, found.measured, found.allowed, ok=found.ok and regular,
            more="" if regular else "they are not as far apart as asked",
        )  # fmt: skip
    chain = chance.vanished(loss, state.duplicate)
    ratio = chance.lost_in_the_long_run(loss)
    asked = f"{number(ratio)} {loss.model.replace('_', ' ')}"
    within = chance.interval(sent.height, chain)
    return counted("loss", direction, len(lost), sent.height, within, asked, share=ratio)


def _order(plan: Plan, direction: Direction, arrivals: pl.DataFrame, tolerance_s: float) -> Iterator[Finding]:
    """Who overtakes skips the delay; the others keep their order."""
    state = plan.link[direction]
    overtook = _skipped_the_delay(plan, direction, tolerance_s)
    if overtook is not None:
        count = arrivals.filter(overtook).height
        within = chance.interval(arrivals.height, chance.coin(state.reorder))
        asked = number(state.reorder)
        yield counted("reordering", direction, count, arrivals.height, within, asked, share=state.reorder)
        arrivals = arrivals.filter(~overtook)
    numbers = arrivals.filter(pl.col("copy") == 0).sort("place")["number"]
    late = int((numbers.diff().drop_nulls() < 0).sum())
    if overtook is None and state.reorder:
        _, most = chance.interval(arrivals.height, chance.coin(state.reorder))
        found = counted("order", direction, late, numbers.len(), (0, most), number(state.reorder))
        yield found.saying("who skips the delay gains too little to be told apart: they are among the delays")
        return
    yield counted("order", direction, late, numbers.len(), (0, 0), "none late")


def _skipped_the_delay(plan: Plan, direction: Direction, tolerance_s: float) -> pl.Expr | None:
    """Which arrivals overtook; None where no packet is asked to, or skipping the delay gains too little."""
    state = plan.link[direction]
    least_s = float(_drawn_s(plan, direction).min())
    return pl.col("delay_s") < least_s / 2 if state.reorder and least_s > 2 * tolerance_s else None


def _drawn_s(plan: Plan, direction: Direction) -> chance.Floats:
    """All delays that jitter makes, sorted, each as likely as the other."""
    state = plan.link[direction]
    if not state.jitter_ns:
        return np.array([state.delay_ns / NS_PER_S])
    around = deviations(plan.delay_tables[state.distribution], state.jitter_ns)
    return np.maximum(0, state.delay_ns + around) / NS_PER_S


@dataclass(frozen=True)
class _Expected:
    """Delays, sorted, and the share of packets with at most each of them."""

    delays_s: chance.Floats
    shares: chance.Floats

    @property
    def weights(self) -> chance.Floats:
        return np.diff(self.shares, prepend=0.0)

    @property
    def mean_s(self) -> float:
        return float(self.weights @ self.delays_s)

    @property
    def deviation_s(self) -> float:
        return math.sqrt(max(0.0, float(self.weights @ (self.delays_s - self.mean_s) ** 2)))

    def up_to(self, delays_s: chance.Floats, side: Literal["left", "right"]) -> chance.Floats:
        """Share of packets with less than each of these delays, or just as much (`right`)."""
        return np.append(0.0, self.shares)[np.searchsorted(self.delays_s, delays_s, side=side)]


def _expected(state: LinkState, drawn_s: chance.Floats, *, overtaken: bool) -> _Expected:
    """Of single packets; `overtaken`: with those that skip the delay."""
    if state.slot is not None:
        drawn_s = _slotted_s(state.slot, drawn_s)
    shares = np.arange(1, drawn_s.size + 1) / drawn_s.size
    if not overtaken:
        return _Expected(drawn_s, shares)
    skipping = state.reorder
    return _Expected(np.append(0.0, drawn_s), np.append(skipping, skipping + (1 - skipping) * shares))


def _slotted_s(slot: Slot, drawn_s: chance.Floats) -> chance.Floats:
    """Delays of a packet that meets no other in the slots, for a grid of all draws (`netem_dequeue`).

    When it comes the next slot is drawn. If that begins before the packet's delay is over another one is
    drawn then, and it goes with that; otherwise with the first.
    """
    low_s, high_s = slot.min_ns / NS_PER_S, slot.max_ns / NS_PER_S
    pauses_s = np.linspace(low_s, high_s, SLOT_PAUSES)
    some_s = drawn_s[np.linspace(0, drawn_s.size - 1, min(SLOT_DELAYS, drawn_s.size)).round().astype(int)]
    delay_s, first_s, then_s = some_s[:, None, None], pauses_s[None, :, None], pauses_s[None, None, :]
    return np.sort(np.where(first_s < delay_s, delay_s + then_s, first_s + 0 * then_s), axis=None)


def _delay(
    plan: Plan, direction: Direction, arrivals: pl.DataFrame, sent: int, clock: str
) -> Iterator[Finding]:
    """Range, mean and distribution of those that arrived once and did not skip the delay, of `sent`."""
    state, tolerance_s = plan.link[direction], DELAY_TOLERANCE_S[clock]
    overtook = _skipped_the_delay(plan, direction, tolerance_s)
    kept = arrivals if overtook is None else arrivals.filter(~overtook)
    once = kept.filter(pl.len().over("number") == 1)  # of two copies the quicker one comes first
    delays = once["delay_s"].to_numpy()
    if not delays.size:
        alone = chance.single(_dice(state), state.duplicate)
        skipping = 0.0 if overtook is None else state.reorder
        one_each = chance.Chain(alone.passed + skipping * alone.counted, (1 - skipping) * alone.counted)
        within = chance.interval(sent, one_each)[0], sent
        found = counted("delay", direction, 0, sent, within, "a probe that arrives late and once")
        yield found.saying("loss, copies and reordering leave none to measure") if found.ok else found
        return
    overtaken = overtook is None and bool(state.reorder)
    wanted = _expected(state, _drawn_s(plan, direction), overtaken=overtaken)
    first, last = float(wanted.delays_s[0]), float(wanted.delays_s[-1])
    quickest, slowest = map(float, np.quantile(delays, EXTREMES[clock]))
    yield Finding(
        "delay, range",
        direction,
        f"{quantity(first, 's', 5)} to {quantity(last, 's', 5)}",
        f"{quantity(quickest, 's', 5)} to {quantity(slowest, 's', 5)}",
        f"± {quantity(tolerance_s, 's')}",
        ok=first - tolerance_s <= quickest and slowest <= last + tolerance_s,
    )
    slack_s = tolerance_s + MEAN_SIGMAS * wanted.deviation_s / math.sqrt(delays.size)
    yield Finding(
        "delay, mean",
        direction,
        quantity(wanted.mean_s, "s", 5),
        quantity(float(delays.mean()), "s", 5),
        f"± {quantity(slack_s, 's')}",
        ok=bool(abs(delays.mean() - wanted.mean_s) <= slack_s),
    )
    if state.jitter_ns and state.slot is not None:
        yield Finding(
            "jitter", direction, state.distribution, "not judged", "anything", ok=True,
            more="slots hide the distribution: range and mean of the delay are judged, with the slots",
        )  # fmt: skip
    elif state.jitter_ns:
        yield _distribution(state, direction, delays, wanted, SINGLE_TOLERANCE_S[clock])


def _distribution(
    state: LinkState, direction: Direction, delays: chance.Floats, wanted: _Expected, tolerance_s: float
) -> Finding:
    """Kolmogorov-Smirnov, with the bound of Dvoretzky, Kiefer and Wolfowitz (Massart 1990).

    A delay that is off by no more than the tolerance counts for the distribution.
    """
    ordered = np.sort(delays)

    def distance(off_s: float) -> float:
        steps = np.arange(1, ordered.size + 1) / ordered.size
        above = steps - wanted.up_to(ordered + off_s, "right")
        below = wanted.up_to(ordered - off_s, "left") - (steps - 1 / ordered.size)
        return float(max(above.max(), below.max(), 0.0))

    allowed = math.sqrt(math.log(2 / chance.MISS) / (2 * ordered.size)) + 1 / wanted.delays_s.size
    return Finding(
        "jitter",
        direction,
        f"{state.distribution}, {quantity(state.jitter_ns / NS_PER_S, 's')}",
        f"{distance(0.0):.3f} from it",
        f"{allowed:.3f} (Kolmogorov-Smirnov), with {quantity(tolerance_s, 's')} for each delay",
        ok=distance(tolerance_s) <= allowed,
    )


def _large(state: LinkState, direction: Direction, probes: pl.DataFrame) -> Iterator[Finding]:
    """Packets up to the limit pass, but for those that are lost, larger ones do not."""
    limits = [size for size in (state.path_mtu_bytes, state.black_hole_bytes) if size is not None]
    if not limits:
        return
    for (size,), rows in probes.group_by("size_bytes", maintain_order=True):
        if size == probes["size_bytes"].min():
            continue
        first = rows.filter(pl.col("copy") == 0)
        count, arrived = first.height, first["arrived_s"].count()
        what = f"packets of {size} B"
        if not isinstance(size, int) or size > min(limits):
            yield counted(what, direction, arrived, count, (0, 0), "none through")
            continue
        if state.loss is not None and state.loss.model == "periodic":
            most_lost = -(-count // state.loss.every_packets)
        else:
            chain = chance.in_the_long_run(chance.vanished(state.loss, state.duplicate))
            most_lost = chance.interval(count, chain)[1]
        found = counted(what, direction, arrived, count, (count - most_lost, count), "all through")
        unsure = not arrived and most_lost == count
        yield found.saying("loss may have taken them all, so this says nothing") if unsure else found
