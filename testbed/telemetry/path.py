"""Counters of every device and qdisc that a direction of the WAN passes, in the order of its way.

Qdiscs count the packets of a super-packet, with the headers that each will have; devices count a super-packet
as one (kernel: net/core/gen_stats.c bstats_update, drivers/net/veth.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from testbed import namespaces
from testbed.plan import Direction
from testbed.shaping.link import BUFFER, CLSACT, HTB, NETEM
from testbed.telemetry.qdisc import Qdiscs, there

Wan = Mapping[Direction, tuple[tuple[str, str], tuple[str, str]]]
Place = dict[str, int]
"""packets and bytes; of a qdisc also drops, overlimits, marked, queue_packets and backlog_bytes."""


def read(wan: Wan, direction: Direction) -> dict[str, Place]:
    """By place: rate, queue, rate_device, wan_device, filter, wan, delay, delay_device, far_device.

    `filter` is what filters ahead of the delay stage dropped, `wan` what the WAN node's IP layer refused as
    too large (both directions together).
    """
    rate_stage, delay_stage = wan[direction]
    far, wan_end = wan["b_to_a" if direction == "a_to_b" else "a_to_b"]
    return {
        "rate": _qdisc(*rate_stage, HTB),
        "queue": _qdisc(*rate_stage, BUFFER),
        "rate_device": _device(*rate_stage, sent=True),
        "wan_device": _device(*wan_end, sent=False),
        "filter": _filters(delay_stage),
        "wan": _refused(delay_stage[0]),
        "delay": _qdisc(*delay_stage, NETEM),
        "delay_device": _device(*delay_stage, sent=True),
        "far_device": _device(*far, sent=False),
    }


def _qdisc(node: str, device: str, handle: int) -> Place:
    with Qdiscs(node, [(device, handle)]) as qdiscs:
        found = asdict(there(qdiscs.read()[0]))
    return {"packets": found.pop("tx_packets"), "bytes": found.pop("tx_bytes"), **found}


def _filters(end: tuple[str, str]) -> Place:
    """On the way out of a device; those of its way in would be of the other direction."""
    with suppress(OSError):  # without filters there is no such qdisc
        return {"drops": _qdisc(*end, CLSACT)["drops"]}
    return {"drops": 0}


def _device(node: str, device: str, *, sent: bool) -> Place:
    """One line of /proc/net/dev: eight counters of what came in, eight of what went out."""
    with namespaces.entered(node):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    (counters,) = [line.split(":")[1].split() for line in lines if line.strip().startswith(f"{device}:")]
    size_bytes, packets, _, drops = map(int, counters[8:12] if sent else counters[:4])
    return {"packets": packets, "bytes": size_bytes, "drops": drops}


def _refused(node: str) -> Place:
    """FragFails of /proc/net/snmp."""
    with namespaces.entered(node):
        lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = [line.split() for line in lines if line.startswith("Ip:")]
    return {"drops": int(dict(zip(names, values, strict=True))["FragFails"])}
