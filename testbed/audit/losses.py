"""Packets that the link took during the run, for each kind of loss that was in force.

What came from one sample to the next is judged by the states of that time. They may be many, as long as they
bound the chances: several ratios do, several Markov chains within one span do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from testbed.audit import chance
from testbed.audit.finding import Finding
from testbed.audit.history import History
from testbed.audit.notes import grain_bytes
from testbed.plan import Direction, LinkState, Plan
from testbed.readable import number

PACKETS_PER_SUPER_PACKET = 512
CHAINS = ("gilbert_elliott", "four_state")

Sample = dict[str, Any]


@dataclass
class _Stretch:
    """Consecutive samples of one kind, with the states of all of them."""

    kind: str
    states: Sequence[LinkState]
    entered: int = 0
    """Packets that came to the delay stage, of nothing larger than a super-packet that is still between."""
    lost: int = 0


@dataclass
class _Tally:
    """What was counted of the samples."""

    stretches: list[_Stretch] = field(default_factory=list)
    filtered: list[_Stretch] = field(default_factory=list)
    judged: int = 0
    busy: int = 0
    """Samples with packets in them."""


def judge(
    plan: Plan,
    direction: Direction,
    tables: Mapping[str, pl.DataFrame],
    history: History,
    rows: Sequence[Sample],
    *,
    told_apart: bool,
) -> Iterator[Finding]:
    """One finding per kind of loss: none, dice, all of them, every n-th.

    `told_apart`: the kernel counts drops by the stage's limit elsewhere, so that they are not among them.
    """
    tally = _tally(history, rows)
    # a super-packet may be between the stages at either end of a stretch
    grain = -(-grain_bytes(tables, direction) // plan.mtu_bytes)
    more = "" if told_apart else "with this kernel drops by the delay stage's limit count as lost"
    refused = _refused(direction, tables)
    for kind in ("none", "dice", "partition"):
        of_kind = [one for one in tally.stretches if one.kind == kind and (one.entered or one.lost)]
        if of_kind:
            yield _delay_stage(kind, direction, of_kind, grain, refused).saying(more)
    for with_filter in (False, True):
        filtered = [
            one for one in tally.filtered
            if (one.kind != "none") == with_filter and (one.lost or (with_filter and one.entered))
        ]  # fmt: skip
        if filtered:
            yield _filters(direction, filtered, grain)
    if tally.judged < tally.busy:
        yield Finding(
            "samples with loss", direction, "to be judged", f"{tally.judged} of {tally.busy}",
            "those of one process", ok=True,
            more="in the others a loss process with a memory began anew, which leaves nothing to say",
        )  # fmt: skip


def _tally(history: History, rows: Sequence[Sample]) -> _Tally:
    tally = _Tally()
    for before, now in pairwise(rows):
        sent, lost, filtered = now["sent_packets"], now["lost_packets"], now["filtered_packets"]
        if sent is None or lost is None:
            continue
        between = history.between(before["t_s"], now["t_s"])
        states = [one for one, last in zip(between, [None, *between], strict=False) if not _same(one, last)]
        kind = _kind(states)
        tally.busy += bool(sent)
        tally.judged += bool(sent) and kind is not None
        _add(tally.stretches, kind or "unknown", states, sent - filtered, lost - filtered)
        _add(tally.filtered, _filter_kind(states), states, sent, filtered)
    return tally


def _add(stretches: list[_Stretch], kind: str, states: Sequence[LinkState], entered: int, lost: int) -> None:
    """To the last stretch, if nothing has changed since."""
    last = stretches[-1] if stretches else None
    alone = last is not None and len(last.states) == len(states) == 1
    if last is None or not alone or not _same(last.states[0], states[0]):
        last = _Stretch(kind, states)
        stretches.append(last)
    last.entered += int(entered)
    last.lost += int(lost)


def _same(one: LinkState, other: LinkState | None) -> bool:
    """Whether neither a loss process with a memory nor a filter begins anew from one to the other."""
    if other is None:
        return False
    names = ["loss", "duplicate", "partitioned", "black_hole_bytes"]
    if one.loss is not None and one.loss.model in CHAINS:  # it does when anything of the delay stage changes
        names += ["delay_ns", "jitter_ns", "distribution", "reorder", "corrupt", "slot", "limit_packets"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _kind(states: Sequence[LinkState]) -> str | None:
    """Of the delay stage; None: nothing can be said of these states together."""
    if all(state.partitioned for state in states):
        return "partition"
    models = [None if one.loss is None or one.partitioned else one.loss.model for one in states]
    if any(model in CHAINS for model in models):
        return "dice" if len(states) == 1 else None
    if any(state.partitioned for state in states) or "random" in models:
        return "dice"
    return "none"


def _filter_kind(states: Sequence[LinkState]) -> str:
    if any(state.black_hole_bytes is not None for state in states):
        return "any"
    every = {_every(state) for state in states}
    if every == {None}:
        return "none"
    return "every" if len(every) == 1 else "any"


def _every(state: LinkState) -> int | None:
    periodic = state.loss is not None and state.loss.model == "periodic" and not state.partitioned
    return state.loss.every_packets if periodic and state.loss else None


def _chains(states: Sequence[LinkState]) -> tuple[chance.Chain, chance.Chain]:
    """Of the states together, the one that loses least and the one that loses most."""
    chains = [
        chance.coin(1.0) if one.partitioned
        else chance.drops(None if _every(one) else one.loss, one.duplicate)
        for one in states
    ]  # fmt: skip
    if len(chains[0].passed) > 1:  # where it stands as the stretch begins is not known; at first it is good
        return chains[0], chance.in_the_long_run(chains[0])
    chains.sort(key=lambda chain: float(chain.counted[0, 0]))
    return chains[0], chains[-1]


def _delay_stage(
    kind: str, direction: Direction, stretches: Sequence[_Stretch], grain: int, refused: int
) -> Finding:
    entered, lost = (sum(getattr(one, name) for one in stretches) for name in ("entered", "lost"))
    least: dict[object, tuple[int, chance.Chain]] = {}
    most: dict[object, tuple[int, chance.Chain]] = {}
    for place, one in enumerate(stretches):
        low, high = _chains(one.states)
        fewer = min(max(0, one.entered - grain), refused)
        refused -= fewer
        _put(least, low, place, max(0, one.entered - grain) - fewer)
        _put(most, high, place, one.entered + grain)
    low_count, high_count = chance.interval_of([*least.values()])[0], chance.interval_of([*most.values()])[1]
    asked = {"none": "0", "partition": "everything"}.get(kind) or _dice(stretches)
    return Finding(
        "partition in the run" if kind == "partition" else "loss in the run",
        direction,
        asked,
        f"{lost} of {entered}",
        str(low_count) if low_count == high_count else f"{low_count} to {high_count}",
        ok=low_count <= lost <= high_count,
    )


def _put(parts: dict[object, tuple[int, chance.Chain]], chain: chance.Chain, place: int, steps: int) -> None:
    """Steps of dice without a memory may be taken together."""
    key: object = float(chain.counted[0, 0]) if len(chain.passed) == 1 else ("stretch", place)
    parts[key] = (parts.get(key, (0, chain))[0] + steps, chain)


def _dice(stretches: Sequence[_Stretch]) -> str:
    processes = {one.loss: None for stretch in stretches for one in stretch.states if one.loss is not None}
    if len(processes) > 1:
        return f"what {len(processes)} loss processes take"
    (loss,) = processes or (None,)
    if loss is None:
        return "up to all, as a partition begins and ends"
    return f"{number(chance.lost_in_the_long_run(loss))} {loss.model.replace('_', ' ')}"


def _filters(direction: Direction, stretches: Sequence[_Stretch], grain: int) -> Finding:
    """Ahead of the delay stage: every n-th, and what is too large, of which nobody knows how many came."""
    low, high = 0, 0
    every: set[int] = set()
    for one in stretches:
        steps = _every(one.states[0]) if one.kind == "every" else None
        if steps is not None:
            every.add(steps)
            low += max(0, one.entered - grain) // steps
            high += -(-(one.entered + grain) // steps)
        elif one.kind == "any":
            high += one.entered + grain
    asked = " or ".join(f"every {steps}th" for steps in sorted(every)) or "what is too large"
    entered, lost = (sum(getattr(one, name) for one in stretches) for name in ("entered", "lost"))
    return Finding(
        "loss ahead of the delay stage",
        direction,
        asked if any(one.kind != "none" for one in stretches) else "0",
        f"{lost} of {entered}",
        str(low) if low == high else f"{low} to {high}",
        ok=low <= lost <= high,
    )


def _refused(direction: Direction, tables: Mapping[str, pl.DataFrame]) -> int:
    """Packets that never came to the delay stage, at most: too large for the path."""
    rows = tables["counters"].filter((pl.col("direction") == direction) & (pl.col("place") == "wan"))
    count = int(rows["drops"][-1] - rows["drops"][0]) if rows.height > 1 else 0
    return count * PACKETS_PER_SUPER_PACKET
