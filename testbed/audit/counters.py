"""Whether the counters of all devices and qdiscs of a direction add up, from t0 to the end.

Qdiscs count the packets of a super-packet, with all their headers, devices count a super-packet as one. Where
both count the same, a qdisc's bytes exceed its device's by one header for each packet that is not on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from testbed.audit import chance
from testbed.audit.finding import Finding, counted, missing
from testbed.audit.losses import CHAINS, PACKETS_PER_SUPER_PACKET
from testbed.plan import Direction, LinkState, Plan
from testbed.readable import number

LEAST_HEADER_BYTES, MOST_HEADER_BYTES = 54, 114
"""Ethernet, IP and TCP without and with all options."""

Delta = dict[str, int]


def judge(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """One finding: everything that was sent is accounted for, or where it is not."""
    rows = tables["counters"].filter(pl.col("direction") == direction)
    start, end = (rows.filter(pl.col("moment") == moment) for moment in ("start", "end"))
    if start.is_empty() or end.is_empty():
        yield missing("counters", direction)
        return
    deltas = _deltas(start, end)
    states = [plan.link[direction], *(one.state for one in plan.changes if one.direction == direction)]
    turned = chance.coin(max(state.corrupt for state in states))
    _, spoilt = chance.interval(deltas["delay_device"]["packets"], turned)
    rate, delay, far = deltas["rate"], deltas["delay"], deltas["far_device"]
    wrong = [
        *_same_queue("rate stage", rate, deltas["rate_device"]),
        *_same_wire("from the edge to the WAN node", deltas["rate_device"], deltas["wan_device"]),
        *_through_the_wan(states, deltas, _queued(start), cut=plan.offload != "on"),
        *_same_queue("delay stage", delay, deltas["delay_device"]),
        *_same_wire("from the WAN node to the far edge", deltas["delay_device"], far, spoilt),
    ]
    lost = delay["drops"] - delay["overlimits"] + deltas["filter"]["drops"]
    yield Finding(
        "counters",
        direction,
        "all packets accounted for",
        "; ".join(wrong) if wrong else
        f"{rate['packets']} sent, {rate['drops']} dropped by the queue, {rate['marked']} marked, "
        f"{lost} lost, {delay['packets']} delivered{_before(_queued(start))}",
        "none unaccounted for",
        ok=not wrong,
    )  # fmt: skip
    yield from _copies(direction, states, deltas, _queued(start))


def _deltas(start: pl.DataFrame, end: pl.DataFrame) -> dict[str, Delta]:
    """By place: what was counted in between; absent counters are 0. `marked` is that of the queue."""
    names = ("packets", "bytes", "drops", "overlimits", "marked", "queue_packets")
    before = {row["place"]: row for row in start.iter_rows(named=True)}
    deltas = {
        row["place"]: {name: (row[name] or 0) - (before[row["place"]][name] or 0) for name in names}
        for row in end.iter_rows(named=True)
    }
    deltas["rate"]["marked"] = deltas["queue"]["marked"]
    return deltas


def _same_queue(stage: str, qdisc: Delta, device: Delta) -> list[str]:
    """What a qdisc let go is what its device sent."""
    joined = qdisc["packets"] - device["packets"]
    header_bytes = qdisc["bytes"] - device["bytes"]
    if joined >= 0 and LEAST_HEADER_BYTES * joined <= header_bytes <= MOST_HEADER_BYTES * joined:
        return []
    return [
        (
            f"the {stage} let {qdisc['packets']} packets ({qdisc['bytes']} bytes) go, its device sent "
            f"{device['packets']} ({device['bytes']} bytes)"
        )
    ]


def _same_wire(where: str, sent: Delta, received: Delta, spoilt: int = 0) -> list[str]:
    """What one end of a cable sent is what the other received, and neither dropped anything.

    `spoilt`: frames that may have come corrupted. One whose EtherType no protocol takes counts as received
    and as dropped (kernel: net/core/dev.c, `__netif_receive_skb_core`).
    """
    same = all(sent[name] == received[name] for name in ("packets", "bytes"))
    if same and not sent["drops"] and received["drops"] <= spoilt:
        return []
    return [
        (
            f"{where} {sent['packets']} super-packets ({sent['bytes']} bytes) were sent and "
            f"{received['packets']} ({received['bytes']} bytes) received, with "
            f"{sent['drops'] + received['drops']} dropped by the devices"
        )
    ]


def _before(queued: int) -> str:
    return f" ({queued} of them under way at the start)" if queued else ""


def _queued(rows: pl.DataFrame) -> int:
    """Super-packets in the delay stage."""
    return int(rows.filter(pl.col("place") == "delay")["queue_packets"][0] or 0)


def _through_the_wan(
    states: Sequence[LinkState], deltas: Mapping[str, Delta], queued: int, *, cut: bool
) -> list[str]:
    """What came in by the rate stage went out by the delay stage, was lost there, or came twice.

    `queued`: super-packets that were in it at the start; others may be at the end. `cut`: those are cut where
    single packets count. The WAN node sends nothing of its own, but word of packets that are too large for
    the path back.
    """
    came, delay = deltas["rate"]["packets"], deltas["delay"]
    dropped = delay["drops"] + deltas["filter"]["drops"]
    accounted = delay["packets"] + dropped + delay["queue_packets"]
    # These may have been super-packets, so that nobody knows how many packets they were.
    wholes = delay["overlimits"] + deltas["wan"]["drops"] + queued + (queued + delay["queue_packets"])
    if not cut:  # otherwise they were cut before the filter
        wholes += deltas["filter"]["drops"]
    _, most_copies = chance.interval(came, chance.coin(max(state.duplicate for state in states)))
    told = deltas["wan"]["drops"]
    if -most_copies - told <= came - accounted <= wholes * PACKETS_PER_SUPER_PACKET:
        return []
    return [
        (
            f"{came} packets came to the WAN node, {delay['packets']} left it, {dropped} were dropped and "
            f"{delay['queue_packets']} wait: {came - accounted} unaccounted for"
        )
    ]


def _copies(
    direction: Direction, states: Sequence[LinkState], deltas: Mapping[str, Delta], queued: int
) -> Iterator[Finding]:
    """What left the delay stage, or was lost there, beyond what came to it, if all of that is known.

    A loss process with a memory tells how many only if it was the same throughout.
    """
    delay, filtered = deltas["delay"], deltas["filter"]["drops"]
    asked = {state.duplicate for state in states}
    dice = {None if state.partitioned or _periodic(state) else state.loss for state in states}
    memory = any(loss is not None and loss.model in CHAINS for loss in dice)
    came = deltas["rate"]["packets"] - filtered
    unknown = delay["overlimits"] + deltas["wan"]["drops"] + queued + (queued + delay["queue_packets"])
    if asked == {0.0} or came <= 0 or unknown or (memory and (len(dice) > 1 or len(asked) > 1)):
        return
    chains = [
        chance.copies(loss, 0.0 if all(state.partitioned for state in states) else share)
        for loss in dice
        for share in asked
    ]
    if any(state.partitioned for state in states):
        chains.append(chance.coin(0.0))
    chains.sort(key=chance.long_run)
    within = chance.interval(came, chains[0])[0], chance.interval(came, chains[-1])[1]
    count = delay["packets"] + delay["drops"] + delay["queue_packets"] - came
    said = " or ".join(number(share) for share in sorted(asked))
    yield counted("duplicates in the run", direction, count, came, within, said, share=max(asked))


def _periodic(state: LinkState) -> bool:
    return state.loss is not None and state.loss.model == "periodic"
