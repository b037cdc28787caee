"""The netlink attributes of queueing disciplines that pyroute2 0.9.7 lacks, gets wrong or cannot read back.

pyroute2 knows netem's options of 2012: no 64-bit rate, no ns delays, no loss models, no seed. It has no
bfifo, RED or fq at all, writes HTB classes with tables that no kernel has needed since 2013, leaves out the
probability of gact and cannot decode a police action. These classes take their place among its plug-ins;
CoDel's and fq_codel's are pyroute2's own. Layouts: kernel include/uapi/linux/pkt_sched.h, pkt_cls.h,
tc_act/tc_gact.h; meaning: net/sched/sch_*.c, act_*.c.
"""

from __future__ import annotations

from testbed.foreign import common_act, nla, plugins

U32_MAX = 2**32 - 1

# pyroute2 names a nested class after the attribute's type, hence the lower-case names below


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
        ("TCA_NETEM_CORR", "correlations"),
        ("TCA_NETEM_DELAY_DIST", "cdata"),
        ("TCA_NETEM_REORDER", "chance"),
        ("TCA_NETEM_CORRUPT", "chance"),
        ("TCA_NETEM_LOSS", "loss_model"),
        ("TCA_NETEM_RATE", "rate"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "hex"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "slot"),
        ("TCA_NETEM_SLOT_DIST", "cdata"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class correlations(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_netem_corr."""

        fields = (("delay_corr", "I"), ("loss_corr", "I"), ("dup_corr", "I"))

    class chance(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_netem_reorder, tc_netem_corrupt."""

        fields = (("probability", "I"), ("correlation", "I"))

    class rate(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_netem_rate, rate in bytes per second."""

        fields = (
            ("rate", "I"),
            ("packet_overhead", "i"),
            ("cell_size", "I"),
            ("cell_overhead", "i"),
        )

    class slot(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_netem_slot, times in ns; 0 packets or bytes: no limit."""

        fields = (
            ("min_delay", "q"),
            ("max_delay", "q"),
            ("max_packets", "i"),
            ("max_bytes", "i"),
            ("dist_delay", "q"),
            ("dist_jitter", "q"),
        )

    class loss_model(nla):  # type: ignore[misc]  # noqa: N801
        """Nested: Gilbert-Intuitive (four states) or Gilbert-Elliott."""

        nla_map = (
            ("NETEM_LOSS_UNSPEC", "none"),
            ("NETEM_LOSS_GI", "four_state"),
            ("NETEM_LOSS_GE", "gilbert_elliott"),
        )

        class four_state(nla):  # type: ignore[misc]  # noqa: N801
            """struct tc_netem_gimodel."""

            fields = (("p13", "I"), ("p31", "I"), ("p32", "I"), ("p14", "I"), ("p23", "I"))

        class gilbert_elliott(nla):  # type: ignore[misc]  # noqa: N801
            """struct tc_netem_gemodel; h: chance to survive the bad state, k1: to be lost in the good."""

            fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


class BfifoOptions(nla):  # type: ignore[misc]
    """struct tc_fifo_qopt, limit in bytes."""

    fields = (("limit", "I"),)


class RedOptions(nla):  # type: ignore[misc]
    """RED: struct tc_red_qopt, table for idle times, largest probability in 32 bits."""

    nla_map = (
        ("TCA_RED_UNSPEC", "none"),
        ("TCA_RED_PARMS", "parms"),
        ("TCA_RED_STAB", "cdata"),
        ("TCA_RED_MAX_P", "uint32"),
        ("TCA_RED_FLAGS", "hex"),
        ("TCA_RED_EARLY_DROP_BLOCK", "uint32"),
        ("TCA_RED_MARK_BLOCK", "uint32"),
    )

    class parms(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_red_qopt."""

        fields = (
            ("limit", "I"),
            ("qth_min", "I"),
            ("qth_max", "I"),
            ("Wlog", "B"),
            ("Plog", "B"),
            ("Scell_log", "B"),
            ("flags", "B"),
        )


class FqOptions(nla):  # type: ignore[misc]
    """sch_fq: rates in bytes per second, delays in us."""

    nla_map = (
        ("TCA_FQ_UNSPEC", "none"),
        ("TCA_FQ_PLIMIT", "uint32"),
        ("TCA_FQ_FLOW_PLIMIT", "uint32"),
        ("TCA_FQ_QUANTUM", "uint32"),
        ("TCA_FQ_INITIAL_QUANTUM", "uint32"),
        ("TCA_FQ_RATE_ENABLE", "uint32"),
        ("TCA_FQ_FLOW_DEFAULT_RATE", "uint32"),
        ("TCA_FQ_FLOW_MAX_RATE", "uint32"),
        ("TCA_FQ_BUCKETS_LOG", "uint32"),
        ("TCA_FQ_FLOW_REFILL_DELAY", "uint32"),
        ("TCA_FQ_ORPHAN_MASK", "uint32"),
        ("TCA_FQ_LOW_RATE_THRESHOLD", "uint32"),
        ("TCA_FQ_CE_THRESHOLD", "uint32"),
        ("TCA_FQ_TIMER_SLACK", "uint32"),
        ("TCA_FQ_HORIZON", "uint32"),
        ("TCA_FQ_HORIZON_DROP", "uint8"),
        ("TCA_FQ_PRIOMAP", "hex"),
        ("TCA_FQ_WEIGHTS", "hex"),
    )


class HtbOptions(nla):  # type: ignore[misc]
    """HTB's own options and those of its classes; `buffer` and `cbuffer` in ticks of 64 ns."""

    nla_map = (
        ("TCA_HTB_UNSPEC", "none"),
        ("TCA_HTB_PARMS", "parms"),
        ("TCA_HTB_INIT", "init"),
        ("TCA_HTB_CTAB", "hex"),
        ("TCA_HTB_RTAB", "hex"),
        ("TCA_HTB_DIRECT_QLEN", "uint32"),
        ("TCA_HTB_RATE64", "uint64"),
        ("TCA_HTB_CEIL64", "uint64"),
        ("TCA_HTB_PAD", "hex"),
        ("TCA_HTB_OFFLOAD", "hex"),
    )

    class init(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_htb_glob."""

        fields = (
            ("version", "I"),
            ("rate2quantum", "I"),
            ("defcls", "I"),
            ("debug", "I"),
            ("direct_pkts", "I"),
        )

    class parms(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_htb_opt; a link layer other than 0 says that no tables follow."""

        fields = (
            *((f"rate_{name}", kind) for name, kind in (("cell_log", "B"), ("linklayer", "B"))),
            *(
                (f"rate_{name}", kind)
                for name, kind in (("overhead", "H"), ("cell_align", "h"), ("mpu", "H"))
            ),
            ("rate", "I"),
            *((f"ceil_{name}", kind) for name, kind in (("cell_log", "B"), ("linklayer", "B"))),
            *(
                (f"ceil_{name}", kind)
                for name, kind in (("overhead", "H"), ("cell_align", "h"), ("mpu", "H"))
            ),
            ("ceil", "I"),
            ("buffer", "I"),
            ("cbuffer", "I"),
            ("quantum", "I"),
            ("level", "I"),
            ("prio", "I"),
        )


class GactOptions(nla):  # type: ignore[misc]
    """A generic action, and the other one that is taken every so often."""

    nla_map = (
        ("TCA_GACT_UNSPEC", "none"),
        ("TCA_GACT_TM", "hex"),
        ("TCA_GACT_PARMS", "parms"),
        ("TCA_GACT_PROB", "prob"),
        ("TCA_GACT_PAD", "hex"),
    )

    class parms(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_gact."""

        fields = (("index", "I"), ("capab", "I"), ("action", "i"), ("refcnt", "i"), ("bindcnt", "i"))

    class prob(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_gact_p."""

        fields = (("ptype", "H"), ("pval", "H"), ("paction", "i"))


class PoliceOptions(nla):  # type: ignore[misc]
    """A policer; `TCA_POLICE_RESULT` is what happens to a packet that conforms."""

    nla_map = (
        ("TCA_POLICE_UNSPEC", "none"),
        ("TCA_POLICE_TBF", "police"),
        ("TCA_POLICE_RATE", "hex"),
        ("TCA_POLICE_PEAKRATE", "hex"),
        ("TCA_POLICE_AVRATE", "uint32"),
        ("TCA_POLICE_RESULT", "uint32"),
        ("TCA_POLICE_TM", "hex"),
        ("TCA_POLICE_PAD", "hex"),
    )

    class police(nla):  # type: ignore[misc]  # noqa: N801
        """struct tc_police without its rates, which only a policer of rates has."""

        fields = (
            ("index", "I"),
            ("action", "i"),
            ("limit", "I"),
            ("burst", "I"),
            ("mtu", "I"),
            ("rate", "12s"),
            ("peakrate", "12s"),
            ("refcnt", "i"),
            ("bindcnt", "i"),
            ("capab", "I"),
        )


class Netem:
    """Plug-in for `netem`."""

    options = NetemOptions


class Bfifo:
    """Plug-in for `bfifo`."""

    options = BfifoOptions


class Red:
    """Plug-in for `red`."""

    options = RedOptions


class Fq:
    """Plug-in for `fq`."""

    options = FqOptions


class Htb:
    """Plug-in for `htb`."""

    options = HtbOptions


class Gact:
    """Plug-in for the action `gact`."""

    options = GactOptions


class Police:
    """Plug-in for the action `police`."""

    options = PoliceOptions


def install() -> None:
    """Put the plug-ins in place; idempotent."""
    plugins.update(netem=Netem, bfifo=Bfifo, red=Red, fq=Fq, htb=Htb)
    common_act.plugins.update(gact=Gact, police=Police)


def probability(ratio: float) -> int:
    """A ratio in [0, 1] as netem's 32-bit fraction; the smallest step is 2.3e-10."""
    return round(ratio * U32_MAX)
