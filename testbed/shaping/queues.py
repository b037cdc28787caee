"""What manages the link's buffer: the leaf under the rate stage's class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from testbed.plan import LinkState, Queue
from testbed.shaping import limits, netlink
from testbed.shaping.attributes import U32_MAX
from testbed.shaping.netlink import Device, Question, decoded

CLASS, BUFFER, RED_BUFFER = 0x10001, 0x20000, 0x30000
TARGET_NS, INTERVAL_NS = 5_000_000, 100_000_000
"""CoDel's, where the state has 0 (RFC 8289, 4.2 and 4.3)."""
FLOWS = 1024
"""Queues of fq_codel (RFC 8290, 5.2)."""
_MEMORY_MAX_BYTES = 1 << 31
_KINDS = {"tail_drop": "bfifo", "codel": "codel", "fq_codel": "fq_codel", "red": "red"}
_ECN = 1  # TC_RED_ECN
_CELLS, _LARGEST_SHIFT, _LARGEST_CELL = 256, 31, 24

Values = dict[str, Any]


class Leaf:
    """The buffer in front of the link.

    `codel`, `fq_codel`: limited to so many packets of the MTU as fit the buffer. `red`: a RED without a
    limit of its own above a bfifo of the buffer's size, because RED throws away all that waits when its
    limit is written. What waits is lost, and counted as dropped, when the kind changes.
    """

    def __init__(self, device: Device, mtu_bytes: int) -> None:
        self._device, self._mtu_bytes = device, mtu_bytes
        self._kind = ""

    def wanted(self, state: LinkState) -> Values:
        """What the kernel must report."""
        queue, kind = state.queue, _KINDS[state.queue.kind]
        if kind == "bfifo":
            return {"queue": kind, "buffer": state.buffer_bytes}
        if kind == "red":
            return {"queue": kind, "buffer": state.buffer_bytes} | self._red(queue)
        packets = max(1, state.buffer_bytes // self._mtu_bytes)
        codel = {
            "queue": kind,
            "buffer_packets": packets,
            "target_us": _codel_us(queue.target_ns or TARGET_NS),
            "interval_us": _codel_us(queue.interval_ns or INTERVAL_NS),
            "ecn": int(queue.ecn),
        }
        if kind == "codel":
            return codel
        # counts the kernel's own bookkeeping, too: so high that the number of packets is what limits
        memory = min(4 * state.buffer_bytes + (1 << 20), _MEMORY_MAX_BYTES)
        quantum = self._mtu_bytes + limits.ETHERNET_BYTES
        return codel | {"flows": FLOWS, "quantum_bytes": quantum, "memory_bytes": memory}

    def write(self, state: LinkState, wanted: Values, *, anew: bool) -> None:
        """Change the leaf, or replace it; `anew`: the class has none of ours yet."""
        kind, device = wanted["queue"], self._device
        there = kind == self._kind and not anew
        if self._kind and not there and not anew:
            device.tc(netlink.DEL_QDISC, self._kind, handle=BUFFER, parent=CLASS)
        flags = 0 if there else netlink.CREATE | netlink.EXCLUSIVE
        options = self._options(state, wanted, there=there)
        device.tc(netlink.NEW_QDISC, kind, options, flags, handle=BUFFER, parent=CLASS)
        if kind == "red":
            limit = {"limit": wanted["buffer"]}
            device.tc(netlink.NEW_QDISC, "bfifo", limit, flags, handle=RED_BUFFER, parent=BUFFER | 1)
        self._kind = kind

    @property
    def questions(self) -> Sequence[Question]:
        """About the leaf, and about the one under it."""
        handles = (BUFFER, RED_BUFFER) if self._kind == "red" else (BUFFER,)
        return [self._device.question(netlink.GET_QDISC, handle) for handle in handles]

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        """What the kernel has, under the names of `wanted`."""
        answer = decoded(answers[0])
        if answer is None:
            return {}
        kind, options = answer.get_attr("TCA_KIND"), answer.get_attr("TCA_OPTIONS")
        if kind == "bfifo":
            return {"queue": kind, "buffer": options["limit"]}
        if kind == "red":
            buffer = decoded(answers[1]) if len(answers) > 1 else None
            parms = options.get_attr("TCA_RED_PARMS")
            return {
                "queue": kind,
                "buffer": buffer and buffer.get_attr("TCA_OPTIONS")["limit"],
                "min_bytes": parms["qth_min"],
                "max_bytes": parms["qth_max"],
                "probability": options.get_attr("TCA_RED_MAX_P"),
                "average": parms["Wlog"],
                "ecn": parms["flags"] & _ECN,
            }
        if kind not in ("codel", "fq_codel"):
            return {"queue": kind}
        prefix = f"TCA_{kind.upper()}_"
        found = {
            "queue": kind,
            "buffer_packets": options.get_attr(f"{prefix}LIMIT"),
            "target_us": options.get_attr(f"{prefix}TARGET"),
            "interval_us": options.get_attr(f"{prefix}INTERVAL"),
            "ecn": options.get_attr(f"{prefix}ECN"),
        }
        if kind == "fq_codel":
            found["flows"] = options.get_attr(f"{prefix}FLOWS")
            found["quantum_bytes"] = options.get_attr(f"{prefix}QUANTUM")
            found["memory_bytes"] = options.get_attr(f"{prefix}MEMORY_LIMIT")
        return found

    def _options(self, state: LinkState, wanted: Values, *, there: bool) -> Values:
        kind = wanted["queue"]
        if kind == "bfifo":
            return {"limit": wanted["buffer"]}
        if kind == "red":
            return self._red_options(state, wanted)
        queue = state.queue
        values = {
            "LIMIT": wanted["buffer_packets"],
            "TARGET": (queue.target_ns or TARGET_NS) // 1000,
            "INTERVAL": (queue.interval_ns or INTERVAL_NS) // 1000,
            "ECN": wanted["ecn"],
        }
        if kind == "fq_codel":
            values |= {"QUANTUM": wanted["quantum_bytes"], "MEMORY_LIMIT": wanted["memory_bytes"]}
            if not there:  # the kernel refuses to hear of it again
                values["FLOWS"] = wanted["flows"]
        return {"attrs": [(f"TCA_{kind.upper()}_{name}", value) for name, value in values.items()]}

    def _red(self, queue: Queue) -> Values:
        return {
            "min_bytes": queue.min_bytes,
            "max_bytes": queue.max_bytes,
            "probability": max(1, min(round(queue.probability * 2**32), U32_MAX)),
            "average": _average_shift(queue.min_bytes, queue.max_bytes, self._mtu_bytes),
            "ecn": _ECN if queue.ecn else 0,
        }

    def _red_options(self, state: LinkState, wanted: Values) -> Values:
        cell, table = _idle_table(wanted["average"], self._mtu_bytes * 8e6 / state.rate_bps)
        parms = {
            "limit": 0,  # see the class
            "qth_min": wanted["min_bytes"],
            "qth_max": wanted["max_bytes"],
            "Wlog": wanted["average"],
            "Plog": 0,  # TCA_RED_MAX_P takes its place
            "Scell_log": cell,
            "flags": wanted["ecn"],
        }
        attrs = [
            ("TCA_RED_PARMS", parms),
            ("TCA_RED_STAB", table),
            ("TCA_RED_MAX_P", wanted["probability"]),
        ]
        return {"attrs": attrs}


def _codel_us(ns: int) -> int:
    """What the kernel reports of a time: it keeps them in units of 1024 ns (include/net/codel.h)."""
    return (ns // 1000 * 1000 >> 10) * 1024 // 1000


def _average_shift(min_bytes: int, max_bytes: int, packet_bytes: int) -> int:
    """log2 of RED's averaging over packets, such that a burst of (2 min + max) / 3 passes unmarked.

    The rule of iproute2 (tc/tc_red.c, `tc_red_eval_ewma`), from Floyd and Jacobson, "Random Early Detection
    Gateways for Congestion Avoidance" (1993), section 7; and no more than the kernel's 32 bits allow:
    beyond 64 MiB the average follows the queue faster than that rule says.
    """
    burst = max(1.0, (2 * min_bytes + max_bytes) / (3 * packet_bytes))
    allowed = _LARGEST_SHIFT - max_bytes.bit_length()
    for shift in range(1, allowed):
        weight = 2.0**-shift
        if burst + 1 - min_bytes / packet_bytes <= (1 - (1 - weight) ** burst) / weight:
            return shift
    return max(0, allowed)


def _idle_table(average: int, packet_us: float) -> tuple[int, bytes]:
    """How far the average falls while the queue is empty: log2 of a cell (us), and a shift for each cell.

    As iproute2 (tc/tc_red.c, `tc_red_eval_idle_damping`). `packet_us`: the time of a packet at the rate at
    which the leaf was written; a later rate leaves the table as it is, because writing it would reset the
    average. A cell of more than 2^24 us would not fit the kernel's 32 bits (include/net/red.h, Scell_max).
    """
    per_us = -math.log2(1 - 2.0 ** -max(average, 1)) / packet_us
    longest_us = _LARGEST_SHIFT / per_us
    cell = min(max(0, math.ceil(math.log2(longest_us / (_CELLS - 1)))), _LARGEST_CELL)
    shifts = [min(_LARGEST_SHIFT, int((i << cell) * per_us)) for i in range(_CELLS - 1)]
    return cell, bytes([*shifts, _LARGEST_SHIFT])
