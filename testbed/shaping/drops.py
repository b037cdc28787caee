"""Drops that no dice decide, ahead of the delay stage: packets that are too large, and every n-th.

A filter on the device's way out (clsact, matchall on IPv4) with up to two actions. police drops what is
larger than its mtu, without a word to the sender; its mtu counts the Ethernet header, the black hole the IP
packet. gact with `determ` drops every n-th of what is left, counted anew when the filter changes (kernel
net/sched/act_police.c, act_gact.c). Both decide on a super-packet as a whole: it must be cut before.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from testbed.plan import LinkState
from testbed.shaping import limits, netlink
from testbed.shaping.netlink import Device, Question, decoded

CLSACT = 0xFFFF0000
_EGRESS = 0xFFFFFFF3
_ETH_P_IP = 0x0800
_PLACE = {"parent": _EGRESS, "info": 1 << 16 | socket.htons(_ETH_P_IP), "handle": 1}
_OK, _SHOT, _PIPE = 0, 2, 3
_DETERMINISTIC = 2  # PGACT_DETERM
_NO_TABLE = bytes(12)

Values = dict[str, Any]


def needed(state: LinkState) -> bool:
    """Whether a state has drops of this kind."""
    return state.black_hole_bytes is not None or (state.loss is not None and state.loss.model == "periodic")


class Drops:
    """The filter on a device.

    `later`: some state will need it. Its qdisc is made with the first state then: a device that gets one is
    shut down for a moment, and what is on its way in the delay stage is lost (kernel net/sched/sch_api.c,
    `qdisc_graft`).
    """

    def __init__(self, device: Device, *, later: bool = False) -> None:
        self._device, self._later = device, later
        self._clsact = False
        self.written: Values = {"black_hole": None, "every": None}
        """The largest IP packet that passes, and n."""

    def apply(self, state: LinkState) -> bool:
        """Make the filter anew if it differs; says whether it does."""
        if self._later:
            self._prepare()
        loss = state.loss
        every = loss.every_packets if loss is not None and loss.model == "periodic" else None
        wanted = {"black_hole": state.black_hole_bytes, "every": None if state.partitioned else every}
        if wanted == self.written:
            return False
        if any(value is not None for value in self.written.values()):
            self._device.tc(netlink.DEL_FILTER, "matchall", **_PLACE)
        self._make(wanted)
        self.written = wanted
        return True

    def _prepare(self) -> None:
        """Have the qdisc that filters hang on."""
        if not self._clsact:
            flags, parent = netlink.CREATE | netlink.EXCLUSIVE, netlink.CLSACT_PARENT
            self._device.tc(netlink.NEW_QDISC, "clsact", None, flags, handle=CLSACT, parent=parent)
            self._clsact = True

    def _make(self, wanted: Values) -> None:
        device, actions = self._device, []
        if wanted["black_hole"] is not None:
            actions.append(_police(wanted["black_hole"] + limits.ETHERNET_BYTES))
        if wanted["every"] is not None:
            actions.append(_every(wanted["every"]))
        if not actions:
            return
        flags = netlink.CREATE | netlink.EXCLUSIVE
        self._prepare()
        acts = {"attrs": [(f"TCA_ACT_PRIO_{number}", one) for number, one in enumerate(actions, start=1)]}
        options = {"attrs": [("TCA_MATCHALL_ACT", acts)]}
        device.tc(netlink.NEW_FILTER, "matchall", options, flags, **_PLACE)

    @property
    def questions(self) -> Sequence[Question]:
        return (self._device.question(netlink.GET_FILTER, **_PLACE),)

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        found: Values = {"black_hole": None, "every": None}
        answer = decoded(answers[0])
        if answer is None:
            return found
        for _, action in answer.get_attr("TCA_OPTIONS").get_attr("TCA_MATCHALL_ACT")["attrs"]:
            options = action.get_attr("TCA_ACT_OPTIONS")
            if action.get_attr("TCA_ACT_KIND") == "police":
                found["black_hole"] = options.get_attr("TCA_POLICE_TBF")["mtu"] - limits.ETHERNET_BYTES
            else:
                found["every"] = options.get_attr("TCA_GACT_PROB")["pval"]
        return found


def _action(kind: str, options: list[tuple[str, Any]]) -> Values:
    return {"attrs": [("TCA_ACT_KIND", kind), ("TCA_ACT_OPTIONS", {"attrs": options})]}


def _police(mtu_bytes: int) -> Values:
    """Drop what is larger, pass the rest on to the next action."""
    police: Values = {"index": 0, "action": _SHOT, "limit": 0, "burst": 0, "mtu": mtu_bytes, "capab": 0}
    police |= {"rate": _NO_TABLE, "peakrate": _NO_TABLE, "refcnt": 0, "bindcnt": 0}
    return _action("police", [("TCA_POLICE_TBF", police), ("TCA_POLICE_RESULT", _PIPE)])


def _every(packets: int) -> Values:
    """Drop the n-th, 2n-th, ... packet since the filter was made."""
    parms = {"index": 0, "capab": 0, "action": _OK, "refcnt": 0, "bindcnt": 0}
    prob = {"ptype": _DETERMINISTIC, "pval": packets, "paction": _SHOT}
    return _action("gact", [("TCA_GACT_PARMS", parms), ("TCA_GACT_PROB", prob)])
