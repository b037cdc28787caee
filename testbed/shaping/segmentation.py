"""Which states need single packets, and where.

A veth hands super-packets of many packets from namespace to namespace, which makes 100 Gbps cheap. Our own
kernel's netem throws the dice of loss for each packet of them (recipe/loss-per-packet.patch). A stock
kernel's loses all or nothing, and whatever else netem does, every kernel's does to all or nothing.
"""

from __future__ import annotations

import os

from testbed.plan import LinkState

OUR_KERNEL = "-testbed"
"""CONFIG_LOCALVERSION of our recipe."""


def loses_super_packets_whole() -> bool:
    """Whether this kernel's netem takes a super-packet for one packet."""
    return OUR_KERNEL not in os.uname().release


def netem_takes_seeds() -> bool:
    """Since Linux 6.6; before that its dice fall as they like, and it reports no seed."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor.split("-")[0])) >= (6, 6)


def cut_before_rate_stage(state: LinkState, offload: str) -> bool:
    """Whether the rate stage must see single packets: when its queue decides about packets one by one."""
    return offload == "off" or (offload == "auto" and state.queue.kind != "tail_drop")


def cut_before_delay_stage(state: LinkState, offload: str) -> bool:
    """Whether the delay stage must see single packets: when something happens there to one at a time."""
    if offload != "auto":
        return offload == "off"
    loss = state.loss
    periodic = loss is not None and loss.model == "periodic"
    return (
        bool(state.reorder or state.duplicate or state.corrupt or state.slot)
        or periodic
        or state.black_hole_bytes is not None
        or (loss is not None and loses_super_packets_whole())
    )
