"""The delay stage: netem on the WAN node.

Every message carries every option. netem keeps the table of the distribution, the correlations, reordering,
corruption, rate, ECN and slots of before when their attribute is absent (kernel net/sched/sch_netem.c,
`netem_change`), and forgets loss models, delay, jitter and duplication.

A new delay holds for packets that arrive after the change; those on their way keep the moment they were
given. None overtakes another: after a step down the packets behind arrive right after the last one from
before, after a step up there is a pause. Only `reorder` breaks the order.

That is so because netem has a rate here, ORDERING_BPS, which makes it a first-in first-out line: a packet
leaves at max(its own moment, that of the packet before it). Under load jitter becomes a standing delay that
way: the mean is that of the running maximum of (sent + delay drawn), not of the delay drawn.

A corrupted packet has one bit of its linear part turned over, Ethernet header included; of a packet cut from
a super-packet those are the headers. Either way a checksum or a wrong address ends it, but for the 48 bits of
the sender's Ethernet address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.errors import Problem, ShapingError
from testbed.plan import LinkState, Loss
from testbed.shaping import netlink
from testbed.shaping.attributes import U32_MAX, probability
from testbed.shaping.netlink import Device, Question, decoded
from testbed.shaping.segmentation import netem_takes_seeds

NETEM = 0x10000
ORDERING_BPS = 10**13
"""A rate so high that it adds 7 ns to a jumbo frame."""
SMALLEST_FRAME_BYTES = 64
FARTHEST = 4
"""No table has a deviation of more than this many scales."""
_NO_SLOT = {"min_delay": 0, "max_delay": 0, "max_packets": 0, "max_bytes": 0}
_NO_CORRELATION = {"delay_corr": 0, "loss_corr": 0, "dup_corr": 0}
_IN_KERNEL = {"TCA_NETEM_LATENCY64": "delay", "TCA_NETEM_JITTER64": "jitter", "TCA_NETEM_PRNG_SEED": "seed"}

Values = dict[str, Any]


class DelayStage:
    """netem on a device.

    The kernel does not say which table it has: of a distribution only the scale (`jitter`) is read back.
    """

    def __init__(self, device: Device, delay_tables: Mapping[str, bytes]) -> None:
        self._device, self._tables = device, delay_tables
        self._distribution: str | None = None
        self.written: Values = {}
        self.seed = 0
        """Of the dice, from the next change on."""

    def apply(self, state: LinkState) -> bool:
        """Write the state if it differs from the last one in more than the seed; says whether it was written.

        The limit never shrinks unless the state forces one: packets of a faster state may still be on their
        way. ShapingError when the distribution has no table.
        """
        distribution = state.distribution if state.jitter_ns else None
        if distribution is not None and distribution not in self._tables:
            raise ShapingError(Problem(f"{self._device.name}: distribution", f"no table {distribution!r}"))
        wanted = self._wanted(state)
        before = self.written | {"seed": wanted["seed"]}
        if wanted == before and distribution == self._distribution:
            return False
        self._write(wanted, distribution)
        self.written, self._distribution = wanted, distribution
        return True

    def _wanted(self, state: LinkState) -> Values:
        """What the kernel must report."""
        chain = None if state.partitioned else state.loss
        grown = self.written.get("limit", 0) if state.limit_packets is None else 0
        return {
            "delay": state.delay_ns,
            "jitter": state.jitter_ns,
            "limit": max(flight_limit(state), grown),
            "loss": probability(_random_ratio(state)),
            "loss_model": _chain(chain),
            "reorder": probability(state.reorder),
            "gap": int(state.reorder > 0),  # 0: never reorder; 1: any packet may be the one
            # of a packet that is doubled and lost one goes on, through a partition, too (`netem_enqueue`)
            "duplicate": 0 if state.partitioned else probability(state.duplicate),
            "corrupt": probability(state.corrupt),
            "slot": _slot(state),
            "rate": ORDERING_BPS // 8,
            "ecn": 0,
            "seed": self.seed if netem_takes_seeds() else None,
        }

    def _write(self, wanted: Values, distribution: str | None) -> None:
        attrs: list[tuple[str, Any]] = [
            ("TCA_NETEM_LATENCY64", wanted["delay"]),
            ("TCA_NETEM_JITTER64", wanted["jitter"]),
            ("TCA_NETEM_CORR", _NO_CORRELATION),
            ("TCA_NETEM_REORDER", {"probability": wanted["reorder"], "correlation": 0}),
            ("TCA_NETEM_CORRUPT", {"probability": wanted["corrupt"], "correlation": 0}),
            ("TCA_NETEM_RATE", {"rate": U32_MAX, "packet_overhead": 0, "cell_size": 0, "cell_overhead": 0}),
            ("TCA_NETEM_RATE64", wanted["rate"]),
            ("TCA_NETEM_ECN", wanted["ecn"]),
            ("TCA_NETEM_SLOT", {**wanted["slot"], "dist_delay": 0, "dist_jitter": 0}),
        ]
        if wanted["seed"] is not None:
            attrs.append(("TCA_NETEM_PRNG_SEED", wanted["seed"]))
        if distribution is not None:
            attrs.append(("TCA_NETEM_DELAY_DIST", self._tables[distribution]))
        if wanted["loss_model"] is not None:
            name, values = wanted["loss_model"]
            attrs.append(("TCA_NETEM_LOSS", {"attrs": [(name, values)]}))
        options = {
            "latency": 0,  # LATENCY64 and JITTER64 override these two
            "jitter": 0,
            **{name: wanted[name] for name in ("limit", "loss", "gap", "duplicate")},
            "attrs": attrs,
        }
        flags = 0 if self.written else netlink.CREATE | netlink.EXCLUSIVE
        self._device.tc(netlink.NEW_QDISC, "netem", options, flags, handle=NETEM, parent=netlink.ROOT)

    @property
    def questions(self) -> Sequence[Question]:
        return (self._device.question(netlink.GET_QDISC, NETEM),)

    def found(self, answers: Sequence[Sequence[bytes]]) -> Values:
        answer = decoded(answers[0])
        if answer is None or answer.get_attr("TCA_KIND") != "netem":
            return {}
        options = answer.get_attr("TCA_OPTIONS")
        found: Values = {name: options[name] for name in ("limit", "loss", "gap", "duplicate")}
        found |= {"slot": _NO_SLOT, "loss_model": None, "ecn": 0, "seed": None}
        for name, value in ((cell[0], cell[1]) for cell in options["attrs"]):
            if name in _IN_KERNEL:
                found[_IN_KERNEL[name]] = value
            elif name in ("TCA_NETEM_REORDER", "TCA_NETEM_CORRUPT"):
                found[name.removeprefix("TCA_NETEM_").lower()] = value["probability"]
            elif name == "TCA_NETEM_SLOT":
                found["slot"] = {key: value[key] for key in _NO_SLOT}
            elif name == "TCA_NETEM_RATE64":
                found["rate"] = value
            elif name == "TCA_NETEM_ECN":
                found["ecn"] = value
            elif name == "TCA_NETEM_LOSS":
                model, parts = value["attrs"][0][0], value["attrs"][0][1]
                found["loss_model"] = (model, {key: parts[key] for key, _ in parts.fields})
        return found


def flight_limit(state: LinkState) -> int:
    """The limit of netem, in packets: twice what is in flight at full rate in smallest frames, and more."""
    if state.limit_packets is not None:
        return state.limit_packets
    longest_ns = state.delay_ns + FARTHEST * state.jitter_ns + (state.slot.max_ns if state.slot else 0)
    flight_bytes = state.rate_bps * longest_ns // 8 // 10**9
    return min(2 * flight_bytes // SMALLEST_FRAME_BYTES + 10_000, U32_MAX)


def loss_ratio(state: LinkState) -> float:
    """Share of packets that the state's loss process takes in the long run (1.0 when partitioned)."""
    loss = state.loss
    if state.partitioned:
        return 1.0
    if loss is None:
        return 0.0
    if loss.model == "random":
        return loss.ratio
    if loss.model == "periodic":
        return 1 / loss.every_packets
    if loss.model == "gilbert_elliott":
        bad = loss.p / (loss.p + loss.r) if loss.p else 0.0
        return bad * loss.loss_bad + (1 - bad) * loss.loss_good
    return _four_state_ratio(loss)


def _four_state_ratio(loss: Loss) -> float:
    """Stationary share of states 3 and 4: in each, the packet that led there was lost (`loss_4state`)."""
    if not loss.p13:
        return loss.p14 / (1 + loss.p14)
    if not loss.p31:  # a burst never ends
        return loss.p23 / (loss.p23 + loss.p32) if loss.p32 else 1.0
    if loss.p32 and not loss.p23:  # what goes into a burst's good state never comes back
        return 0.0
    burst = loss.p13 / loss.p31
    rest = burst * loss.p32 / loss.p23 if loss.p32 else 0.0
    return (loss.p14 + burst) / (1 + loss.p14 + burst + rest)


def _random_ratio(state: LinkState) -> float:
    if state.partitioned:
        return 1.0
    return state.loss.ratio if state.loss is not None and state.loss.model == "random" else 0.0


def _chain(loss: Loss | None) -> tuple[str, Values] | None:
    """The loss model as a netlink attribute; None for those that netem has no model for."""
    if loss is not None and loss.model == "gilbert_elliott":
        values = {"p": loss.p, "r": loss.r, "h": 1 - loss.loss_bad, "k1": loss.loss_good}
        return "NETEM_LOSS_GE", {name: probability(value) for name, value in values.items()}
    if loss is not None and loss.model == "four_state":
        names = ("p13", "p31", "p32", "p14", "p23")
        return "NETEM_LOSS_GI", {name: probability(getattr(loss, name)) for name in names}
    return None


def _slot(state: LinkState) -> Values:
    if state.slot is None:
        return dict(_NO_SLOT)
    slot = state.slot
    return {
        "min_delay": slot.min_ns,
        "max_delay": slot.max_ns,
        "max_packets": slot.packets,
        "max_bytes": slot.size_bytes,
    }
