"""One direction of the WAN, written into the kernel in full and read back.

    sw-a ──feed──> edge-a ──rate stage──> wan ──delay stage──> edge-b

Feed, the LAN switch's port towards the edge router: a cap for each flow, super-packets cut for a queue that
looks at packets one by one. Rate stage, on the edge router's WAN interface: HTB with one class, the link's
buffer under it, super-packets cut for the delay stage. Delay stage, on the WAN node's far interface: packets
that are too large are sent back (its routes) or vanish, every n-th vanishes (a filter), and netem does the
rest. Never on an end host, where TCP would see its own qdisc push back.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, Protocol

from testbed.errors import Problem, ShapingError
from testbed.plan import Direction, LinkState
from testbed.shaping import drops, limits
from testbed.shaping.cut import Cut
from testbed.shaping.delay import NETEM, DelayStage, flight_limit, loss_ratio
from testbed.shaping.drops import CLSACT, Drops
from testbed.shaping.flow_cap import FQ, FlowCap
from testbed.shaping.limits import bucket_bytes
from testbed.shaping.netlink import Device, Question, without_counters
from testbed.shaping.path_mtu import PathMtu
from testbed.shaping.queues import BUFFER, CLASS
from testbed.shaping.rate import HTB, RateStage
from testbed.shaping.segmentation import cut_before_delay_stage, cut_before_rate_stage

__all__ = [
    "BUFFER",
    "CLASS",
    "CLSACT",
    "FQ",
    "HTB",
    "NETEM",
    "SUPER_PACKET_BYTES",
    "WanDirection",
    "bucket_bytes",
    "flight_limit",
    "loss_ratio",
    "super_packet_bytes",
]

SUPER_PACKETS_PER_BUFFER = 16
SUPER_PACKET_BYTES = 184_000
"""Largest super-packet: 45 fragments of a page, which our kernel allows (CONFIG_MAX_SKB_FRAGS)."""

Place = tuple[str, str]
"""A node and one of its interfaces."""


class Part(Protocol):
    """One piece of the kernel's configuration."""

    written: dict[str, Any]
    """What the kernel must report."""

    def apply(self, state: LinkState) -> bool:
        """Write what the state asks for, in full, if that differs from what is there; says whether it did."""

    @property
    def questions(self) -> Sequence[Question]:
        """What to ask the kernel about it; only the last may ask for all of a kind."""

    def found(self, answers: Sequence[Sequence[bytes]]) -> dict[str, Any]:
        """What the kernel reports by its answers to `questions`, under the names of `written`."""


class WanDirection:
    """A direction of the WAN, from the switch in front of its edge router through the WAN node."""

    def __init__(
        self,
        direction: Direction,
        rate_stage: Place,
        delay_stage: Place,
        feed: Place,
        *,
        largest_packet_bytes: int,
        mtu_bytes: int,
        hosts: Sequence[str],
        delay_tables: Mapping[str, bytes],
        offload: Literal["auto", "on", "off"] = "auto",
        later: Sequence[LinkState] = (),
    ) -> None:
        """`largest_packet_bytes`: of the super-packets that come along where none are cut.

        `hosts`: the nodes whose connections may cross it. `delay_tables`: the distributions that states may
        name (shaping/distributions.py). `later`: states to come, for what cannot be made in passing.
        """
        rate, delay, fed = Device(*rate_stage), Device(*delay_stage), Device(*feed)

        def cut(state: LinkState) -> bool:
            return cut_before_rate_stage(state, offload)

        def largest_bytes(state: LinkState) -> int:
            return mtu_bytes + limits.ETHERNET_BYTES if cut(state) else largest_packet_bytes

        self.direction = direction
        self.places = (rate_stage, delay_stage, feed)
        """Its devices, on their way out."""
        self._mtu_bytes = mtu_bytes
        self._rate = RateStage(rate, largest_bytes, mtu_bytes)
        self._delay = DelayStage(delay, delay_tables)
        # what must be there before the packets that need it comes first
        self._parts: dict[str, Part] = {
            "feed": Cut(fed, cut),
            "rate stage": Cut(rate, lambda state: cut_before_delay_stage(state, offload)),
            "flow_cap": FlowCap(fed, mtu_bytes),
            "rate": self._rate,
            "drops": Drops(delay, later=any(map(drops.needed, later))),
            "mtu": PathMtu(delay, hosts),
            "delay": self._delay,
        }
        self._on: dict[Device, tuple[str, ...]] = {  # routes last: all of them are asked for
            fed: ("feed", "flow_cap"),
            rate: ("rate stage", "rate"),
            delay: ("drops", "delay", "mtu"),
        }
        self._right: dict[str, list[list[bytes]]] = {}
        """Answers of the kernel that were as set, without counters, by part."""
        self.state: LinkState | None = None
        self._rates_bps: list[tuple[int, int]] = []
        self._last_written: list[str] = []
        self.read_back: dict[str, int] = {}
        """Of the last state: rate_bps, buffer_bytes, delay_ns, jitter_ns, limit_packets."""

    async def set(self, state: LinkState, seed: int) -> None:
        """Write the state into the kernel and read it back; `seed` feeds the dice of the delay stage.

        Each part is written in full, but only if it differs from what it was: a step of the rate leaves loss
        and jitter, their dice too, alone. The first state writes everything. Raises ShapingError, listing
        every field that is not as it was written, or what the kernel cannot have.

        A new rate holds from the next packet on, a new delay for packets that arrive from now on (see
        shaping/delay.py). A queue of another kind and a new token bucket lose what waits in the buffer.
        """
        problems = limits.problems(state, self._mtu_bytes, f"link {self.direction}")
        if problems:
            raise ShapingError(*problems)
        self._delay.seed = seed
        written = [name for name, part in self._parts.items() if part.apply(state)]
        problems = self._differences(self._answers(self._parts if self.state is None else written))
        if problems:
            raise ShapingError(*problems)
        self.state, self._last_written = state, written
        self.read_back = {
            "rate_bps": self._rate.written["rate"] * 8,
            "buffer_bytes": self._rate.written.get("buffer", state.buffer_bytes),
            "delay_ns": self._delay.written["delay"],
            "jitter_ns": self._delay.written["jitter"],
            "limit_packets": self._delay.written["limit"],
        }
        self._rates_bps.append((time.monotonic_ns(), self.read_back["rate_bps"]))

    def fastest_bps(self, since_ns: int) -> int:
        """The highest rate that held at any time since then (CLOCK_MONOTONIC)."""
        last_ns, last_bps = self._rates_bps[-1]
        if last_ns <= since_ns:
            return last_bps
        held = max(bisect_right(self._rates_bps, since_ns, key=itemgetter(0)) - 1, 0)
        return max(rate_bps for _, rate_bps in self._rates_bps[held:])

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What was read back after the last change, by part: of those that it wrote."""
        return {name: self._parts[name].written for name in self._last_written}

    def verify(self) -> list[Problem]:
        """Read everything again: whatever is not as it was last set.

        An answer that is, but for counters, that of the last time, when it was right, is not decoded anew.
        """
        changed = {
            name: answers
            for name, answers in self._answers(self._parts).items()
            if self._settings_in(name, answers) != self._right.get(name)
        }
        return self._differences(changed)

    def reports(self) -> dict[str, dict[str, Any]]:
        """All that the kernel reports, by part."""
        return {name: self._parts[name].found(one) for name, one in self._answers(self._parts).items()}

    def _answers(self, names: Collection[str]) -> dict[str, list[list[bytes]]]:
        """The kernel's answers to the questions of these parts, in the order of `names`."""
        answers: dict[str, list[list[bytes]]] = {}
        for device, parts in self._on.items():
            questions = {name: self._parts[name].questions for name in parts if name in names}
            found = iter(device.answers([one for several in questions.values() for one in several]))
            answers |= {name: list(islice(found, len(several))) for name, several in questions.items()}
        return {name: answers[name] for name in names}

    def _settings_in(self, name: str, answers: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
        questions = self._parts[name].questions
        return [
            [without_counters(question.kind, one) for one in several]
            for question, several in zip(questions, answers, strict=True)
        ]

    def _differences(self, answers: Mapping[str, Sequence[Sequence[bytes]]]) -> list[Problem]:
        problems = []
        for name, one in answers.items():
            part = self._parts[name]
            found = part.found(one)
            different = [
                Problem(
                    f"link {self.direction}: {name}: {field}",
                    f"kernel says {found.get(field)!r}",
                    f"{value!r}, as it was set",
                )
                for field, value in part.written.items()
                if found.get(field) != value
            ]
            if not different:
                self._right[name] = self._settings_in(name, one)
            problems += different
        return problems


def super_packet_bytes(states: Iterable[LinkState], mtu_bytes: int) -> int:
    """Largest super-packet that a link in these states should carry: a sixteenth of its smallest buffer.

    A buffer drops super-packets whole, so they must be small beside it; never below two packets.
    """
    smallest = min(state.buffer_bytes for state in states)
    return min(max(smallest // SUPER_PACKETS_PER_BUFFER, 2 * mtu_bytes), SUPER_PACKET_BYTES)
