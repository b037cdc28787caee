"""Netlink attributes: each encoding says what it should, and reads back as it was written."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.shaping import attributes
from testbed.shaping.attributes import U32_MAX, probability

attributes.install()
HEADER_BYTES = 16 + 20


def encoded(kind: str, options: Any) -> bytes:
    message = tcmsg()
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    message.encode()
    return bytes(message.data)


def decoded(data: bytes) -> Any:
    message = tcmsg(data)
    message.decode()
    return message.get_attr("TCA_OPTIONS")


def plain(value: Any) -> Any:
    """Decoded attributes as the caller writes them."""
    if isinstance(value, dict):
        found = {name: plain(one) for name, one in value.items() if name not in ("attrs", "header")}
        if value.get("attrs"):
            found["attrs"] = [(cell[0], plain(cell[1])) for cell in value["attrs"]]
        return found
    return value


NETEM_FIELDS = {"latency": 1, "limit": 2, "loss": 3, "gap": 4, "duplicate": 5, "jitter": 6}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "netem": (
        "netem",
        {
            **NETEM_FIELDS,
            "attrs": [
                ("TCA_NETEM_CORR", {"delay_corr": 1, "loss_corr": 2, "dup_corr": U32_MAX}),
                ("TCA_NETEM_REORDER", {"probability": 3, "correlation": 4}),
                ("TCA_NETEM_CORRUPT", {"probability": 5, "correlation": 6}),
                (
                    "TCA_NETEM_RATE",
                    {"rate": U32_MAX, "packet_overhead": -1, "cell_size": 8, "cell_overhead": -2},
                ),
                ("TCA_NETEM_RATE64", 2**63),
                ("TCA_NETEM_LATENCY64", 2**62),
                ("TCA_NETEM_JITTER64", 2**31 - 1),
                ("TCA_NETEM_ECN", 1),
                (
                    "TCA_NETEM_SLOT",
                    {
                        "min_delay": 2**40,
                        "max_delay": 2**41,
                        "max_packets": 7,
                        "max_bytes": 8,
                        "dist_delay": 0,
                        "dist_jitter": 0,
                    },
                ),
                ("TCA_NETEM_PRNG_SEED", 2**64 - 1),
                ("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", {"p": 1, "r": 2, "h": 3, "k1": 4})]}),
            ],
        },
    ),
    "netem, four states": (
        "netem",
        {
            **NETEM_FIELDS,
            "attrs": [
                (
                    "TCA_NETEM_LOSS",
                    {"attrs": [("NETEM_LOSS_GI", {"p13": 1, "p31": 2, "p32": 3, "p14": 4, "p23": 5})]},
                )
            ],
        },
    ),
    "bfifo": ("bfifo", {"limit": U32_MAX}),
    "red": (
        "red",
        {
            "attrs": [
                (
                    "TCA_RED_PARMS",
                    {
                        "limit": 0,
                        "qth_min": 1,
                        "qth_max": 2,
                        "Wlog": 3,
                        "Plog": 4,
                        "Scell_log": 5,
                        "flags": 1,
                    },
                ),
                ("TCA_RED_MAX_P", U32_MAX),
            ]
        },
    ),
    "codel": (
        "codel",
        {
            "attrs": [
                ("TCA_CODEL_TARGET", 1),
                ("TCA_CODEL_LIMIT", 2),
                ("TCA_CODEL_INTERVAL", 3),
                ("TCA_CODEL_ECN", 1),
            ]
        },
    ),
    "fq_codel": (
        "fq_codel",
        {
            "attrs": [
                ("TCA_FQ_CODEL_TARGET", 1),
                ("TCA_FQ_CODEL_LIMIT", 2),
                ("TCA_FQ_CODEL_INTERVAL", 3),
                ("TCA_FQ_CODEL_ECN", 1),
                ("TCA_FQ_CODEL_FLOWS", 1024),
                ("TCA_FQ_CODEL_QUANTUM", 1514),
                ("TCA_FQ_CODEL_MEMORY_LIMIT", 2**31),
            ]
        },
    ),
    "fq": (
        "fq",
        {
            "attrs": [
                ("TCA_FQ_PLIMIT", 1),
                ("TCA_FQ_FLOW_PLIMIT", 2),
                ("TCA_FQ_FLOW_MAX_RATE", U32_MAX),
                ("TCA_FQ_ORPHAN_MASK", 2**31 - 1),
                ("TCA_FQ_HORIZON_DROP", 1),
            ]
        },
    ),
    "htb": (
        "htb",
        {
            "attrs": [
                (
                    "TCA_HTB_INIT",
                    {"version": 3, "rate2quantum": 10, "defcls": 1, "debug": 0, "direct_pkts": 0},
                ),
                ("TCA_HTB_RATE64", 2**40),
                ("TCA_HTB_CEIL64", 2**41),
            ]
        },
    ),
}


@pytest.mark.parametrize(("kind", "options"), OPTIONS.values(), ids=OPTIONS)
def test_what_is_written_reads_back(kind: str, options: dict[str, Any]) -> None:
    """Every field and attribute survives the way into a message and out of it."""
    assert plain(decoded(encoded(kind, options))) == options


@given(delays=st.binary(min_size=2, max_size=8192), stab=st.binary(min_size=256, max_size=256))
def test_tables_go_as_they_are(delays: bytes, stab: bytes) -> None:
    """The tables of netem and RED are in the message byte for byte, under their number."""
    netem = encoded("netem", {**NETEM_FIELDS, "attrs": [("TCA_NETEM_DELAY_DIST", delays)]})
    assert struct.pack("=HH", 4 + len(delays), 2) + delays in netem
    red = encoded("red", {"attrs": [("TCA_RED_STAB", stab)]})
    assert struct.pack("=HH", 260, 2) + stab in red


def test_netem_has_the_layout_of_the_kernel() -> None:
    """As struct tc_netem_qopt, then attributes with the numbers of include/uapi/linux/pkt_sched.h."""
    slot = OPTIONS["netem"][1]["attrs"][8][1]
    data = encoded("netem", {**NETEM_FIELDS, "attrs": [("TCA_NETEM_SLOT", slot)]})
    options = data[HEADER_BYTES + 12 + 4 :]  # after TCA_KIND and the head of TCA_OPTIONS
    assert options[:24] == struct.pack("=6I", 1, 2, 3, 4, 5, 6)
    assert options[24:] == struct.pack("=HHqqiiqq", 44, 12, 2**40, 2**41, 7, 8, 0, 0)


def test_an_htb_class_has_the_layout_of_the_kernel() -> None:
    """As struct tc_htb_opt: two rate specifications of 12 bytes, then five numbers of 32 bits."""
    spec = {"cell_log": 1, "linklayer": 2, "overhead": 3, "cell_align": -4, "mpu": 5}
    parms = {f"{which}_{name}": value for which in ("rate", "ceil") for name, value in spec.items()}
    parms |= {"rate": 6, "ceil": 7, "buffer": 8, "cbuffer": 9, "quantum": 10, "level": 11, "prio": 12}
    data = encoded("htb", {"attrs": [("TCA_HTB_PARMS", parms)]})
    expected = struct.pack("=BBHhHI", 1, 2, 3, -4, 5, 6) + struct.pack("=BBHhHI", 1, 2, 3, -4, 5, 7)
    assert data.endswith(expected + struct.pack("=5I", 8, 9, 10, 11, 12))
    assert plain(decoded(data)) == {"attrs": [("TCA_HTB_PARMS", parms)]}


def test_actions_read_back() -> None:
    """A police with its mtu and gact with its n, as one filter's actions."""
    zero = bytes(12)
    police = {"index": 0, "action": 2, "limit": 0, "burst": 0, "mtu": 1514, "rate": zero, "peakrate": zero}
    police |= {"refcnt": 0, "bindcnt": 0, "capab": 0}
    parms = {"index": 0, "capab": 0, "action": 0, "refcnt": 0, "bindcnt": 0}
    prob = {"ptype": 2, "pval": 65535, "paction": 2}
    actions = [
        ("police", [("TCA_POLICE_TBF", police), ("TCA_POLICE_RESULT", 3)]),
        ("gact", [("TCA_GACT_PARMS", parms), ("TCA_GACT_PROB", prob)]),
    ]
    acts = [
        (
            f"TCA_ACT_PRIO_{number}",
            {"attrs": [("TCA_ACT_KIND", kind), ("TCA_ACT_OPTIONS", {"attrs": attrs})]},
        )
        for number, (kind, attrs) in enumerate(actions, start=1)
    ]
    options = {"attrs": [("TCA_MATCHALL_ACT", {"attrs": acts})]}
    data = encoded("matchall", options)
    assert struct.pack("=HHHHi", 12, 3, 2, 65535, 2) in data
    found = decoded(data).get_attr("TCA_MATCHALL_ACT")["attrs"]
    assert [one[1].get_attr("TCA_ACT_KIND") for one in found] == ["police", "gact"]
    police_found, gact_found = (one[1].get_attr("TCA_ACT_OPTIONS") for one in found)
    assert plain(police_found) == {"attrs": actions[0][1]}
    assert plain(gact_found) == {"attrs": actions[1][1]}


@given(ratio=st.floats(0, 1))
def test_a_ratio_is_kept_to_the_smallest_step(ratio: float) -> None:
    """No ratio is off by more than half a step of 2.3e-10; 1 is all."""
    assert abs(probability(ratio) / U32_MAX - ratio) <= 0.51 / U32_MAX
    assert probability(1.0) == U32_MAX
