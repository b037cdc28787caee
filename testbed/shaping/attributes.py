"""The netlink attributes of netem, bfifo and interfaces that pyroute2 0.9.7 lacks.

pyroute2 knows netem's options of 2012: no 64-bit rate, no ns delays, no loss models, no seed; bfifo it
does not know at all. These classes take their place among its plug-ins. Layouts: kernel
include/uapi/linux/pkt_sched.h; meaning: net/sched/sch_netem.c, sch_fifo.c.
"""

from __future__ import annotations

from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl import TC_H_ROOT
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import plugins

U32_MAX = 2**32 - 1
OPTIONS = "option_values"
"""Keyword under which `tc()` takes the options of these plug-ins, ready made."""


class NetemOptions(nla):  # type: ignore[misc]
    """struct tc_netem_qopt and its attributes."""

    fields = (
        ("latency", "I"),
        ("limit", "I"),
        ("loss", "I"),
        ("gap", "I"),
        ("duplicate", "I"),
        ("jitter", "I"),
    )
    nla_map = (
        ("TCA_NETEM_UNSPEC", "none"),
        ("TCA_NETEM_CORR", "hex"),
        ("TCA_NETEM_DELAY_DIST", "hex"),
        ("TCA_NETEM_REORDER", "hex"),
        ("TCA_NETEM_CORRUPT", "hex"),
        ("TCA_NETEM_LOSS", "loss_model"),
        ("TCA_NETEM_RATE", "rate"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "hex"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "hex"),
        ("TCA_NETEM_SLOT_DIST", "hex"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class rate(nla):  # type: ignore[misc]  # noqa: N801 - pyroute2 names the class after the attribute's type
        """struct tc_netem_rate, rate in bytes per second."""

        fields = (
            ("rate", "I"),
            ("packet_overhead", "i"),
            ("cell_size", "I"),
            ("cell_overhead", "i"),
        )

    class loss_model(nla):  # type: ignore[misc]  # noqa: N801 - as above
        """Nested: Gilbert-Intuitive (four states) or Gilbert-Elliott."""

        nla_map = (
            ("NETEM_LOSS_UNSPEC", "none"),
            ("NETEM_LOSS_GI", "hex"),
            ("NETEM_LOSS_GE", "gilbert_elliott"),
        )

        class gilbert_elliott(nla):  # type: ignore[misc]  # noqa: N801 - as above
            """struct tc_netem_gemodel; h: chance to survive the bad state, k1: to be lost in the good."""

            fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


class BfifoOptions(nla):  # type: ignore[misc]
    """struct tc_fifo_qopt, limit in bytes."""

    fields = (("limit", "I"),)


class Netem:
    """Plug-in for `netem`."""

    parent = TC_H_ROOT
    options = NetemOptions

    @staticmethod
    def get_parameters(arguments: dict[str, Any]) -> Any:
        """The options as the caller made them."""
        return arguments[OPTIONS]


class Bfifo:
    """Plug-in for `bfifo`."""

    parent = TC_H_ROOT
    options = BfifoOptions
    get_parameters = Netem.get_parameters


def install() -> None:
    """Put the plug-ins in place; idempotent."""
    plugins["netem"] = Netem
    plugins["bfifo"] = Bfifo
    if ifinfmsg.nla_map[-1][0] == "IFLA_ALLMULTI":  # the last one that pyroute2 knows
        ifinfmsg.nla_map += (
            ("IFLA_DEVLINK_PORT", "hex"),
            ("IFLA_GSO_IPV4_MAX_SIZE", "uint32"),
            ("IFLA_GRO_IPV4_MAX_SIZE", "uint32"),
        )


def probability(ratio: float) -> int:
    """A ratio in [0, 1] as netem's 32-bit fraction; the smallest step is 2.3e-10."""
    return round(ratio * U32_MAX)
