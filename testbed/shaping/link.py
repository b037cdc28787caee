"""One direction of the WAN: a rate stage and a delay stage, written in full and read back.

Rate stage, on the edge router's WAN interface: HTB with one class and a byte-limited FIFO under it,
which is the link's buffer. Delay stage, on the WAN node's far interface: netem with delay, jitter and
loss. Never on an end host, where TCP would see its own qdisc push back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any

from pyroute2 import IPRoute

from testbed.errors import Problem, ShapingError
from testbed.plan import Direction, LinkState, Loss
from testbed.shaping import attributes, segmentation
from testbed.shaping.attributes import OPTIONS, U32_MAX, probability

HTB, CLASS, BUFFER, NETEM = 0x10000, 0x10001, 0x20000, 0x10000
ORDERING_BPS = 10**13
"""netem keeps packets in order only when it has a rate: one so high that it adds 7 ns to a jumbo frame."""
SMALLEST_FRAME_BYTES = 64
SUPER_PACKETS_PER_BUFFER = 16
SUPER_PACKET_BYTES = 184_000
"""Largest super-packet: 45 fragments of a page, which our kernel allows (CONFIG_MAX_SKB_FRAGS)."""


class WanDirection:
    """A direction of the WAN, from its edge router through the WAN node."""

    def __init__(
        self,
        direction: Direction,
        rate_stage: tuple[IPRoute, str, str],
        delay_stage: tuple[IPRoute, str],
        netlink_thread: Executor,
        *,
        largest_packet_bytes: int,
    ) -> None:
        """`rate_stage`: netlink socket, interface, namespace; `delay_stage`: netlink socket, interface.

        `largest_packet_bytes`: of the super-packets that come along; sizes the rate stage's bucket.
        `netlink_thread`: the thread that opened the netlink sockets; pyroute2 ties both its event loop and
        its sockets to a thread.
        """
        attributes.install()
        self.direction = direction
        self._rate, self._rate_device, self._rate_namespace = rate_stage
        self._delay, delay_device = delay_stage
        self._thread = netlink_thread
        self._largest_bytes = largest_packet_bytes
        self._rate_index = self._rate.link_lookup(ifname=self._rate_device)[0]
        self._delay_index = self._delay.link_lookup(ifname=delay_device)[0]
        self.state: LinkState | None = None
        self.read_back: dict[str, int] = {}

    async def set(self, state: LinkState, seed: int) -> None:
        """Write the full state into the kernel, then read it back.

        Raises ShapingError, listing every field that is not as it was written. Packets already in the
        delay stage keep the schedule they were given; a new rate holds from the next packet on.
        """
        loop = asyncio.get_running_loop()
        self.read_back = await loop.run_in_executor(self._thread, self._write, state, seed)
        self.state = state

    def _write(self, state: LinkState, seed: int) -> dict[str, int]:
        first = self.state is None
        cut = state.loss is not None and segmentation.loses_super_packets_whole()
        segmentation.segment_on_transmit(self._rate_namespace, self._rate_device, wanted=cut)
        if first:
            self._rate.tc("add", "htb", index=self._rate_index, handle=HTB, default=1)
        self._rate.tc(
            "add-class" if first else "change-class",
            "htb",
            index=self._rate_index,
            handle=CLASS,
            parent=HTB,
            rate=state.rate_bps // 8,
            burst=bucket_bytes(state.rate_bps, self._largest_bytes),
            cburst=bucket_bytes(state.rate_bps, self._largest_bytes),
            quantum=4 * self._largest_bytes,
            mtu=self._largest_bytes,
        )
        verb = "add" if first else "change"
        self._rate.tc(
            verb,
            "bfifo",
            index=self._rate_index,
            handle=BUFFER,
            parent=CLASS,
            **{OPTIONS: {"limit": state.buffer_bytes}},
        )
        wanted = netem_options(state, seed)
        self._delay.tc(verb, "netem", index=self._delay_index, handle=NETEM, **{OPTIONS: wanted})
        return self._verify(state, wanted)

    def _verify(self, state: LinkState, netem: dict[str, Any]) -> dict[str, int]:
        """What the kernel says it has, in bits per second, bytes, ns and packets."""
        classes = self._rate.get_classes(index=self._rate_index)
        parameters = classes[0].get_nested("TCA_OPTIONS", "TCA_HTB_PARMS")
        rate64 = classes[0].get_nested("TCA_OPTIONS", "TCA_HTB_RATE64")
        buffer = self._qdisc(self._rate, self._rate_index, BUFFER).get_attr("TCA_OPTIONS")
        found = {"rate": rate64 or parameters["rate"], "buffer": buffer["limit"]}
        wanted = {"rate": state.rate_bps // 8, "buffer": state.buffer_bytes}
        options = self._qdisc(self._delay, self._delay_index, NETEM).get_attr("TCA_OPTIONS")
        found |= _flat(options)
        wanted |= _expected_netem(netem)
        wrong = [
            Problem(
                f"link {self.direction}: {name}",
                f"kernel says {found.get(name)!r}",
                f"{value!r}, as it was set",
            )
            for name, value in sorted(wanted.items())
            if found.get(name) != value
        ]
        if wrong:
            raise ShapingError(*wrong)
        return {
            "rate_bps": found["rate"] * 8,
            "buffer_bytes": found["buffer"],
            "delay_ns": found["TCA_NETEM_LATENCY64"],
            "jitter_ns": found["TCA_NETEM_JITTER64"],
            "limit_packets": found["limit"],
        }

    @staticmethod
    def _qdisc(netlink: IPRoute, index: int, handle: int) -> Any:
        return next(q for q in netlink.get_qdiscs(index=index) if q["handle"] == handle)


def super_packet_bytes(states: Iterable[LinkState], mtu_bytes: int) -> int:
    """Largest super-packet that a link in these states should carry: a sixteenth of its smallest buffer.

    A buffer drops super-packets whole, so they must be small beside it; never below two packets.
    """
    smallest = min(state.buffer_bytes for state in states)
    return min(max(smallest // SUPER_PACKETS_PER_BUFFER, 2 * mtu_bytes), SUPER_PACKET_BYTES)


def flight_limit(state: LinkState) -> int:
    """The limit of netem, in packets: twice what is in flight at full rate in smallest frames, and more."""
    flight_bytes = state.rate_bps * (state.delay_ns + state.jitter_ns) // 8 // 10**9
    return min(2 * flight_bytes // SMALLEST_FRAME_BYTES + 10_000, U32_MAX)


def loss_ratio(state: LinkState) -> float:
    """Share of packets that the state's loss process takes in the long run (1.0 when partitioned)."""
    if state.partitioned:
        return 1.0
    loss = state.loss
    if loss is None:
        return 0.0
    if loss.model == "random":
        return loss.ratio
    bad = loss.p / (loss.p + loss.r)
    return bad * loss.loss_bad + (1 - bad) * loss.loss_good


def netem_options(state: LinkState, seed: int) -> dict[str, Any]:
    """The delay stage's full state as netlink values (ns, bytes per second, 32-bit fractions)."""
    ratio = 1.0 if state.partitioned else 0.0
    attrs: list[tuple[str, Any]] = [
        ("TCA_NETEM_LATENCY64", state.delay_ns),
        ("TCA_NETEM_JITTER64", state.jitter_ns),
        ("TCA_NETEM_PRNG_SEED", seed),
    ]
    loss = state.loss
    if not state.partitioned and loss is not None:
        if loss.model == "random":
            ratio = loss.ratio
        else:
            attrs.append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", _gilbert_elliott(loss))]}))
    ordering = ORDERING_BPS // 8 if state.jitter_ns else 0
    rate = {"packet_overhead": 0, "cell_size": 0, "cell_overhead": 0}
    attrs.append(("TCA_NETEM_RATE", {"rate": min(ordering, U32_MAX), **rate}))
    if ordering:
        attrs.append(("TCA_NETEM_RATE64", ordering))
    return {
        "latency": 0,  # LATENCY64 and JITTER64 override these two
        "jitter": 0,
        "limit": flight_limit(state),
        "loss": probability(ratio),
        "gap": 0,
        "duplicate": 0,
        "attrs": attrs,
    }


def _gilbert_elliott(loss: Loss) -> dict[str, int]:
    return {
        "p": probability(loss.p),
        "r": probability(loss.r),
        "h": probability(1 - loss.loss_bad),
        "k1": probability(loss.loss_good),
    }


def bucket_bytes(rate_bps: int, largest_packet_bytes: int) -> int:
    """HTB's bucket: two super-packets, or 20 us of the rate so that timer steps do not cap it."""
    return max(2 * largest_packet_bytes, rate_bps // 8 * 20 // 10**6)


def _expected_netem(options: dict[str, Any]) -> dict[str, Any]:
    """What netem reports of `options`: it leaves RATE64 out when the rate fits 32 bits."""
    flat = _flat_attrs(options["attrs"])
    return {"limit": options["limit"], "loss": options["loss"], "gap": 0, "duplicate": 0} | flat


def _flat(options: Any) -> dict[str, Any]:
    names = ("limit", "loss", "gap", "duplicate")
    return {name: options[name] for name in names} | _flat_attrs(options["attrs"])


def _flat_attrs(attrs: Any) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in ((cell[0], cell[1]) for cell in attrs):
        if name == "TCA_NETEM_LOSS":
            model = value["attrs"][0]
            flat["loss_model"] = {key: model[1][key] for key in ("p", "r", "h", "k1")}
        elif name == "TCA_NETEM_RATE":
            flat["ordering_rate"] = value["rate"]
        else:
            flat[name] = value
    return flat
