"""The rate stage: HTB with one class on the edge router's WAN interface, the link's buffer under it.

A new rate holds from the next packet on. A token bucket is the same class with `rate` = sustained, a bucket
as large as the budget, and `ceil` = the full rate with a small bucket: full rate until the budget is spent,
then the sustained one, at which the budget fills up again (kernel net/sched/sch_htb.c). As the budget fills
while it is spent, budget / (1 - sustained / rate) bytes go at full rate.

HTB keeps its tokens when a class changes, so a new budget takes a new class: what waits in the buffer at that
moment is lost, and counted as dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from testbed.plan import LinkState, TokenBucket
from testbed.shaping import netlink
from testbed.shaping.attributes import U32_MAX
from testbed.shaping.limits import TICK_NS, bucket_bytes
from testbed.shaping.netlink import Device, Question, decoded
from testbed.shaping.queues import CLASS, Leaf

HTB = 0x10000
_VERSION, _LINK_LAYER_ETHERNET = 3, 1

Values = dict[str, Any]


class RateStage:
    """HTB, its class and the leaf on a device.

    `largest_packet_bytes`: what comes along in a state, at most; sizes the bucket.
    """

    def __init__(
        self, device: Device, largest_packet_bytes: Callable[[LinkState], int], mtu_bytes: int
    ) -> None:
        self._device, self._largest_bytes = device, largest_packet_bytes
        self._leaf = Leaf(device, mtu_bytes)
        self.written: Values = {}
        self._token_bucket: TokenBucket | None = None

    def apply(self, state: LinkState) -> bool:
        """Write the class if it differs and the leaf if it differs, each in full; says whether either did."""
        first, device = not self.written, self._device
        shape, leaf = self._class(state), self._leaf.wanted(state)
        if shape | leaf == self.written and state.token_bucket == self._token_bucket:
            return False
        anew = first or state.token_bucket not in (None, self._token_bucket)
        if first:
            init = {"version": _VERSION, "rate2quantum": 10, "defcls": 1, "debug": 0, "direct_pkts": 0}
            options = {"attrs": [("TCA_HTB_INIT", init)]}
            flags = netlink.CREATE | netlink.EXCLUSIVE
            device.tc(netlink.NEW_QDISC, "htb", options, flags, handle=HTB, parent=netlink.ROOT)
        elif anew:
            device.tc(netlink.DEL_CLASS, "htb", handle=CLASS, parent=HTB)
        if anew or any(self.written[name] != value for name, value in shape.items()):
            flags = netlink.CREATE | netlink.EXCLUSIVE if anew else 0
            device.tc(netlink.NEW_CLASS, "htb", _class_options(shape), flags, handle=CLASS, parent=HTB)
        if anew or leaf != {name: value for name, value in self.written.items() if name not in shape}:
            self._leaf.write(state, leaf, anew=anew)
        self.written, self._token_bucket = shape | leaf, state.token_bucket
        return True

    @property
    def questions(self) -> Sequence[Question]:
        return (self._device.question(netlink.GET_CLASS, CLASS), *self._leaf.questions)

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        answer = decoded(answers[0])
        if answer is None:
            return {}
        options = answer.get_attr("TCA_OPTIONS")
        parms = options.get_attr("TCA_HTB_PARMS")
        return {
            "rate": options.get_attr("TCA_HTB_CEIL64") or parms["ceil"],
            "sustained": options.get_attr("TCA_HTB_RATE64") or parms["rate"],
            "budget_ticks": parms["buffer"],
            "burst_ticks": parms["cbuffer"],
            "quantum": parms["quantum"],
        } | self._leaf.found(answers[1:])

    def _class(self, state: LinkState) -> Values:
        largest_bytes = self._largest_bytes(state)
        burst_bytes = bucket_bytes(state.rate_bps, largest_bytes)
        burst_ticks = _ticks(burst_bytes, state.rate_bps)
        bucket = state.token_bucket
        return {
            "rate": state.rate_bps // 8,
            "sustained": (bucket.sustained_bps if bucket else state.rate_bps) // 8,
            "budget_ticks": _ticks(bucket.budget_bytes, bucket.sustained_bps) if bucket else burst_ticks,
            "burst_ticks": burst_ticks,
            "quantum": 4 * largest_bytes,
        }


def _ticks(size_bytes: int, rate_bps: int) -> int:
    """The time of `size_bytes` at the rate."""
    return size_bytes * 10**9 // (rate_bps // 8) // TICK_NS


def _class_options(shape: Values) -> Values:
    spec = {"cell_log": 0, "linklayer": _LINK_LAYER_ETHERNET, "overhead": 0, "cell_align": 0, "mpu": 0}
    parms = {f"{which}_{name}": value for which in ("rate", "ceil") for name, value in spec.items()}
    parms |= {
        "rate": min(shape["sustained"], U32_MAX),
        "ceil": min(shape["rate"], U32_MAX),
        "buffer": shape["budget_ticks"],
        "cbuffer": shape["burst_ticks"],
        "quantum": shape["quantum"],
        "level": 0,
        "prio": 0,
    }
    attrs = [
        ("TCA_HTB_PARMS", parms),
        ("TCA_HTB_RATE64", shape["sustained"]),
        ("TCA_HTB_CEIL64", shape["rate"]),
    ]
    return {"attrs": attrs}
