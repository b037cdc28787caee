"""Another tenant's microbursts: UDP at a given rate for a moment, again and again.

A burst's packets are handed to the kernel a little ahead, each with the moment at which it is to leave
(SO_TXTIME), and an `fq` on the sender's own interface holds it until then (kernel: net/sched/sch_fq.c).
Without it, a burst would leave at the speed of memory. This is no emulation of the link: no netem, no
rate limit; but TCP of the same host is paced by that `fq`, too, as on any server that has it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from testbed.errors import Problem, ShapingError
from testbed.journal import Journal
from testbed.plan import Microbursts
from testbed.shaping import limits, netlink
from testbed.traffic.datagrams import MOST_AT_ONCE, Ints, Sender, Sink

LEAD_NS = 3_000_000
"""How far ahead packets are handed over: timers of asyncio are a millisecond or two late."""
LOOK_S = 0.01
OPENING = 2**32 - 1
"""Number of the "burst" that is one packet and resolves addresses."""
_HANDLE, _MOST_PACKETS = 0x10000, 1 << 20


def pace(source: str, device: str) -> None:
    """Put an `fq` on the interface `device` of the host `source`, and read it back (ShapingError).

    It must be exact (its timers may by default be 10 us late) and must not drop (100 packets of a flow).
    """
    wanted = {
        "TCA_FQ_PLIMIT": _MOST_PACKETS,
        "TCA_FQ_FLOW_PLIMIT": _MOST_PACKETS,
        "TCA_FQ_TIMER_SLACK": 0,
    }
    interface = netlink.Device(source, device)
    interface.tc(
        netlink.NEW_QDISC,
        "fq",
        {"attrs": list(wanted.items())},
        netlink.CREATE | netlink.REPLACE,
        handle=_HANDLE,
        parent=netlink.ROOT,
    )
    (answers,) = interface.answers([interface.question(netlink.GET_QDISC, _HANDLE)])
    answer = netlink.decoded(answers)
    found = {}
    if answer is not None and answer.get_attr("TCA_KIND") == "fq":
        found = {name: answer.get_attr("TCA_OPTIONS").get_attr(name) for name in wanted}
    if found != wanted:
        raise ShapingError(Problem("microbursts: fq", f"kernel says {found}", f"{wanted}, as it was set"))


@dataclass(slots=True)
class _Burst:
    """One burst: what is to arrive, and what has."""

    start_ns: int
    arrived: npt.NDArray[np.bool_]
    times_ns: list[int] = field(default_factory=list)
    """First and last arrival of each look, CLOCK_REALTIME."""


class _Bursts:
    """All bursts of one plan entry, from their sending to their line in the journal."""

    def __init__(
        self, plan: Microbursts, t0_ns: int, address: str, patience_ns: int, journal: Journal
    ) -> None:
        self.plan, self.journal = plan, journal
        frame_bits = (plan.packet_bytes + limits.ETHERNET_BYTES) * 8
        self.packets = max(1, plan.rate_bps * plan.length_ns // (frame_bits * 10**9))
        gap_ns = frame_bits * 1e9 / plan.rate_bps
        self.moments_ns: Ints = np.rint(np.arange(self.packets) * gap_ns).astype(np.int64)
        self.starts_ns = range(t0_ns + plan.t_ns, t0_ns + plan.until_ns, plan.every_ns)
        self.over_ns = int(self.moments_ns[-1]) + patience_ns + 2 * LEAD_NS
        self.sink = Sink(plan.sink, address)
        self.sender = Sender(
            plan.source, self.sink.address, plan.packet_bytes, most_waiting=round(2 * LEAD_NS / gap_ns)
        )
        self.pending: dict[int, _Burst] = {}
        self._real_ns = time.time_ns() - time.monotonic_ns()

    async def send(self) -> None:
        """Send all bursts, each packet handed over shortly before its moment."""
        self.sender.send(OPENING, 0, np.array([time.monotonic_ns()]))
        for number, start_ns in enumerate(self.starts_ns):
            self.pending[number] = _Burst(start_ns, np.zeros(self.packets, np.bool_))
            for first in range(0, self.packets, MOST_AT_ONCE):
                moments_ns = start_ns + self.moments_ns[first : first + MOST_AT_ONCE]
                await asyncio.sleep(max(0, int(moments_ns[0]) - LEAD_NS - time.monotonic_ns()) / 1e9)
                self.sender.send(number, first, moments_ns)

    def look(self) -> None:
        """Take in what has arrived."""
        for part in self.sink.arrivals():
            for number in np.unique(part.burst):
                burst = self.pending.get(int(number))
                if burst is None:
                    continue
                mine = part.burst == number
                burst.arrived[part.number[mine]] = True
                burst.times_ns += [int(part.t_ns[mine].min()), int(part.t_ns[mine].max())]

    def note(self, *, all_of_them: bool = False) -> None:
        """A line for each burst of which nothing more can come, or for all."""
        now_ns = time.monotonic_ns()
        for number, burst in list(self.pending.items()):
            waited = now_ns >= burst.start_ns + self.over_ns
            if not waited and not all_of_them:
                return
            del self.pending[number]
            self.journal.note(
                "microburst",
                burst.start_ns,
                source=self.plan.source,
                sink=self.plan.sink,
                packet_bytes=self.plan.packet_bytes,
                sent_packets=self.packets,
                received_packets=int(burst.arrived.sum()),
                t_first_ns=min(burst.times_ns) - self._real_ns if burst.times_ns else None,
                t_end_ns=max(burst.times_ns) - self._real_ns if burst.times_ns else None,
                waited=waited,
            )


async def run(
    plan: Microbursts,
    t0_ns: int,
    *,
    address: str,
    patience_ns: int,
    journal: Journal,
    distrust: Callable[[str], None],
) -> None:
    """Send the bursts; a line in the journal for each, once nothing of it can be on its way any more.

    `address`: of the sink. `patience_ns`: the longest that a packet may take. Not to be trusted: packets
    that the sender's kernel does not take, and those that the sink's own socket drops, which no link did.
    """
    bursts = _Bursts(plan, t0_ns, address, patience_ns, journal)
    sending = asyncio.create_task(bursts.send())
    try:
        while bursts.pending or not sending.done():
            await asyncio.sleep(LOOK_S)
            bursts.look()
            bursts.note()
        await sending
    except OSError as error:
        distrust(f"microbursts from {plan.source}: {error}")
    finally:
        sending.cancel()
        bursts.look()
        bursts.note(all_of_them=True)
        overflowed = bursts.sink.overflowed_packets()
        if overflowed:
            distrust(
                f"microbursts to {plan.sink}: its own socket, not the link, dropped {overflowed} packets"
            )
        bursts.sender.close()
        bursts.sink.close()
