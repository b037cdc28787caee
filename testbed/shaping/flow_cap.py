"""What a single flow may have at most: sch_fq on the LAN switch's port towards the edge router.

fq paces each flow on its own, whatever their number; a packet without a socket counts by the hash of its
addresses and ports. It stands on the sender's side of the edge router, where the kernel still knows the
sender's socket, so a sending TCP feels the cap as it would feel a pacing interface of its host: it keeps
little in the queue and loses nothing.

Once installed it stays, without a cap, because those sockets have left all pacing to it by then
(SK_PACING_FQ in net/sched/sch_fq.c) and BBR would go on unpaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.plan import LinkState
from testbed.shaping import limits, netlink
from testbed.shaping.attributes import U32_MAX
from testbed.shaping.netlink import Device, Question, decoded

FQ = 0x10000
_SETTINGS = {
    "PLIMIT": 1_000_000,
    "FLOW_PLIMIT": 10_000,
    "RATE_ENABLE": 1,
    "ORPHAN_MASK": 2**31 - 1,  # a queue for each hash, so that hardly any two flows share one
    "LOW_RATE_THRESHOLD": 0,
}

Values = dict[str, Any]


class FlowCap:
    """fq on a device, from the first state with a cap on."""

    def __init__(self, device: Device, mtu_bytes: int) -> None:
        self._device, self._frame_bytes = device, mtu_bytes + limits.ETHERNET_BYTES
        self.written: Values = {}

    def apply(self, state: LinkState) -> bool:
        """Write the cap if it differs; says whether it did."""
        cap_bps = state.flow_cap_bps
        if cap_bps is None and not self.written:
            return False
        wanted = {
            "FLOW_MAX_RATE": U32_MAX if cap_bps is None else cap_bps // 8,
            "QUANTUM": self._frame_bytes,  # as small as it gets: what a flow may send ahead of its pace
            "INITIAL_QUANTUM": self._frame_bytes,
            **_SETTINGS,
        }
        if wanted == self.written:
            return False
        options = {"attrs": [(f"TCA_FQ_{name}", value) for name, value in wanted.items()]}
        flags = 0 if self.written else netlink.CREATE | netlink.EXCLUSIVE
        self._device.tc(netlink.NEW_QDISC, "fq", options, flags, handle=FQ, parent=netlink.ROOT)
        self.written = wanted
        return True

    @property
    def questions(self) -> Sequence[Question]:
        return (self._device.question(netlink.GET_QDISC, FQ),)

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        answer = decoded(answers[0])
        if answer is None or answer.get_attr("TCA_KIND") != "fq":
            return {}
        names = ("FLOW_MAX_RATE", "QUANTUM", "INITIAL_QUANTUM", *_SETTINGS)
        options = answer.get_attr("TCA_OPTIONS")
        return {name: options.get_attr(f"TCA_FQ_{name}") for name in names}
