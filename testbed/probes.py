"""A train of probes through each direction of the WAN, on the state with which the run begins.

Every probe is a UDP datagram of scapy's making, numbered, with its time of sending, from one tenant to the
other. Taps on both edge routers' WAN interfaces see it leave the rate stage and come out of the delay stage,
frames with wrong checksums, too, and the kernel gives both moments from one clock. What they saw goes into
the journal; `testbed.audit` judges it.
"""

from __future__ import annotations

import errno
import mmap
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import msgspec

from testbed import namespaces
from testbed.plan import DIRECTIONS, Direction, LinkState, Plan
from testbed.rundir import RunDir

PORT = 9
"""Discard (RFC 863): the sink has a socket there that nobody reads, so that no ICMP answers a probe."""
COUNT = 2_000
SHORTEST_INTERVAL_NS = 1_000_000
LONGEST_TRAIN_NS = {"virtual": 60_000_000_000, "real": 500_000_000}
"""In virtual time waiting is free."""
FEWEST = 20
LOAD = 10
"""The train takes at most one part in so many of the link's rate, of a flow's and of the sustained one."""
LARGE_PROBES = 8
"""How many of each size where a state lets only small packets pass."""
SETTLE_S = 0.02
TABLE_UNIT = 8192
"""In which the tables count one jitter_ns."""

PACKET_BYTES = 72
_IP_BYTES, _UDP_BYTES, _ETHERNET_BYTES = 20, 8, 14
PAYLOAD_AT = _IP_BYTES + _UDP_BYTES
_CHECKSUM_AT = _IP_BYTES + 6
_MAGIC = 0x50524F42
_NUMBERS = struct.Struct(">IIIIQ")
"""The number stands there three times, so that one wrong bit cannot hide it."""
_S = 1_000_000_000

_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION = 263, 5, 6, 10  # include/uapi/linux/if_packet.h
_TPACKET_V2, _OUTGOING, _ALL_PROTOCOLS = 1, 4, 0x0003
_BLOCK_BYTES, _SLOT_BYTES, _SLOTS = 1 << 16, 256, 1 << 14
_SLOT = struct.Struct("=IIIHHII")
"""struct tpacket2_hdr: status, length, captured length, offsets of MAC and network header, s, ns."""
_KIND_AT = 32 + 10
"""sll_pkttype in the struct sockaddr_ll behind it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A frame at a tap: whether it went out, when (CLOCK_REALTIME, ns), its length and first bytes."""

    outgoing: bool
    t_ns: int
    frame: bytes

    @property
    def number(self) -> int | None:
        """The number that at least two of its three places show; None: no probe."""
        at = _ETHERNET_BYTES + PAYLOAD_AT
        if len(self.frame) < at + _NUMBERS.size:
            return None
        magic, *numbers, _ = _NUMBERS.unpack_from(self.frame, at)
        number, places = Counter(numbers).most_common(1)[0]
        return number if places > 1 and (magic ^ _MAGIC).bit_count() <= 1 else None


class Tap:
    """All frames of a device, either way, in a ring that the kernel fills (packet_mmap, TPACKET_V2)."""

    def __init__(self, namespace: str, device: str) -> None:
        with namespaces.entered(namespace):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
        size = _SLOTS * _SLOT_BYTES
        request = struct.pack("=IIII", _BLOCK_BYTES, size // _BLOCK_BYTES, _SLOT_BYTES, _SLOTS)
        self._socket.setsockopt(_SOL_PACKET, _RX_RING, request)
        self._ring = mmap.mmap(self._socket.fileno(), size, mmap.MAP_SHARED)
        self._socket.bind((device, _ALL_PROTOCOLS))

    def frames(self) -> Iterator[Seen]:
        """Every frame so far."""
        for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES):
            status, _, captured, mac, _, seconds, ns = _SLOT.unpack_from(self._ring, at)
            if not status:
                return
            frame = self._ring[at + mac : at + mac + captured]
            yield Seen(self._ring[at + _KIND_AT] == _OUTGOING, seconds * _S + ns, frame)

    def missed(self) -> int:
        """Frames for which the ring had no room."""
        answer = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)
        return int(struct.unpack("=II", answer)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ring.close()
        self._socket.close()


class Sender:
    """Sends probes made from a template from one host to another; each is (host, address)."""

    def __init__(self, source: tuple[str, str], sink: tuple[str, str], template: bytes) -> None:
        with namespaces.entered(sink[0]):
            self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sink.bind((sink[1], PORT))
        with namespaces.entered(source[0]):
            self._source = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._source.connect((sink[1], 0))
        self._template = template
        self.sent: list[bytes] = []
        """IP packets, in the order of their numbers."""

    def send(self, packet_bytes: int = PACKET_BYTES) -> None:
        """The next one, padded to this size."""
        packet = numbered(self._template, len(self.sent), time.monotonic_ns(), packet_bytes)
        self.sent.append(packet)
        try:
            self._source.send(packet)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:  # the path has said so already (RFC 1191)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()
        self._sink.close()


def numbered(template: bytes, number: int, sent_ns: int, packet_bytes: int = PACKET_BYTES) -> bytes:
    """The template, padded with zeros, with number and time in it and the checksums to match (RFC 1624)."""
    packet = bytearray(template.ljust(packet_bytes, b"\0"))
    _NUMBERS.pack_into(packet, PAYLOAD_AT, _MAGIC, number, number, number, sent_ns)
    added = sum(struct.unpack_from(f">{_NUMBERS.size // 2}H", packet, PAYLOAD_AT))
    longer = packet_bytes - len(template)
    for length_at, checksum_at, extra, lengths in ((2, 10, 0, 1), (_IP_BYTES + 4, _CHECKSUM_AT, added, 2)):
        (length,) = struct.unpack_from(">H", packet, length_at)
        struct.pack_into(">H", packet, length_at, length + longer)
        (checksum,) = struct.unpack_from(">H", packet, checksum_at)
        total = (~checksum & 0xFFFF) + extra + lengths * longer  # UDP sums its length up twice
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        struct.pack_into(">H", packet, checksum_at, ~total & 0xFFFF or 0xFFFF)
    return bytes(packet)


def interval_ns(plan: Plan) -> int:
    """So far apart that no probe waits for another: neither for its turn nor because jitter delayed it.

    Where packets leave in slots, each is gone before the next one comes: that would draw the pause anew.
    """
    apart = [SHORTEST_INTERVAL_NS]
    for state in plan.link.values():
        rates_bps = {state.rate_bps, state.flow_cap_bps}
        rates_bps.add(state.token_bucket.sustained_bps if state.token_bucket else None)
        slowest_bps = min(rate_bps for rate_bps in rates_bps if rate_bps is not None)
        apart.append((PACKET_BYTES + _ETHERNET_BYTES) * 8 * LOAD * _S // slowest_bps)
        least, most = _extremes(plan, state)
        apart.append(most - least + SHORTEST_INTERVAL_NS)
        if state.slot is not None:
            apart.append(state.delay_ns + most + state.slot.max_ns + SHORTEST_INTERVAL_NS)
    return max(apart)


def large_sizes(plan: Plan, direction: Direction) -> list[int]:
    """Just as large as a state lets pass, and one byte more, for each such limit of it."""
    state = plan.link[direction]
    limits = {state.path_mtu_bytes, state.black_hole_bytes} - {None}
    sizes = {size for limit in limits if limit is not None for size in (limit, limit + 1)}
    return sorted(size for size in sizes if PACKET_BYTES < size <= plan.mtu_bytes)


def measure(
    run: RunDir,
    plan: Plan,
    hosts: Mapping[Direction, tuple[tuple[str, str], tuple[str, str]]],
    taps: Mapping[Direction, tuple[str, str]],
    *,
    clock: str,
) -> dict[Direction, dict[str, object]]:
    """Send the train both ways at once; what the journal's `train` line says of each direction.

    `hosts`: (name, address) of sender and receiver; `taps`: node and device at which a direction begins, so
    that the other's is where it ends. Blocks: nothing else goes on before the workload.
    """
    made = msgspec.json.decode(run.probes.read_bytes(), type=dict[Direction, bytes])
    step_ns = interval_ns(plan)
    count = max(FEWEST, min(COUNT, LONGEST_TRAIN_NS[clock] // step_ns))
    longest_s = max(_longest_ns(plan, direction) for direction in DIRECTIONS) / _S
    with ExitStack() as stack:
        rings = {name: stack.enter_context(Tap(*taps[name])) for name in DIRECTIONS}
        senders = {name: stack.enter_context(Sender(*hosts[name], made[name])) for name in DIRECTIONS}
        for _ in range(count):
            for sender in senders.values():
                sender.send()
            time.sleep(step_ns / _S)
        for name, sender in senders.items():
            for packet_bytes in [size for size in large_sizes(plan, name) for _ in range(LARGE_PROBES)]:
                sender.send(packet_bytes)
                time.sleep(step_ns * packet_bytes / PACKET_BYTES / _S)
        time.sleep(longest_s + SETTLE_S)
        offset_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
        seen = {name: list(ring.frames()) for name, ring in rings.items()}
        missed = sum(ring.missed() for ring in rings.values())
    far: dict[Direction, Direction] = {"a_to_b": "b_to_a", "b_to_a": "a_to_b"}
    return {
        name: {
            "clock": clock,
            "interval_ns": step_ns,
            "missed": missed,
            "sizes": [len(packet) for packet in senders[name].sent],
            **told(
                senders[name].sent,
                [one for one in seen[name] if one.outgoing],
                [one for one in seen[far[name]] if not one.outgoing],
                offset_ns,
            ),
        }
        for name in DIRECTIONS
    }


def told(sent: list[bytes], near: list[Seen], far: list[Seen], offset_ns: int) -> dict[str, object]:
    """When each number left the rate stage, and every arrival: (number, when, whether intact).

    Times on CLOCK_MONOTONIC, which is CLOCK_REALTIME less `offset_ns`. A frame is intact when it is the one
    that left, its two hops less and its Ethernet header that of most.
    """
    left_ns: list[int | None] = [None] * len(sent)
    for one in near:
        if one.number is not None and one.number < len(sent):
            left_ns[one.number] = one.t_ns - offset_ns
    probes = [(one, number) for one in far if (number := one.number) is not None and number < len(sent)]
    usual = Counter(one.frame[: _ETHERNET_BYTES + 1] for one, _ in probes).most_common(1)
    ip = slice(_ETHERNET_BYTES, _ETHERNET_BYTES + _IP_BYTES)
    headers = Counter((one.frame[ip], len(sent[number])) for one, number in probes)
    common = {size: header for (header, size), _ in sorted(headers.items(), key=lambda item: item[1])}
    arrived = []
    for one, number in sorted(probes, key=lambda pair: pair[0].t_ns):
        body = one.frame[_ETHERNET_BYTES + _IP_BYTES :]
        intact = (
            one.frame[: _ETHERNET_BYTES + 1] == usual[0][0]
            and one.frame[ip] == common[len(sent[number])]
            and body == sent[number][_IP_BYTES : _IP_BYTES + len(body)]
        )
        arrived.append((number, one.t_ns - offset_ns, intact))
    return {"left_ns": left_ns, "arrived": arrived}


def _longest_ns(plan: Plan, direction: Direction) -> int:
    """How long a probe may be under way."""
    state = plan.link[direction]
    return state.delay_ns + _extremes(plan, state)[1] + (2 * state.slot.max_ns if state.slot else 0)


def _extremes(plan: Plan, state: LinkState) -> tuple[int, int]:
    """Least and most that jitter adds to the delay (ns), without numpy, which a guest need not load."""
    if not state.jitter_ns:
        return 0, 0
    entries = memoryview(plan.delay_tables[state.distribution]).cast("h")
    return min(entries) * state.jitter_ns // TABLE_UNIT, -(-max(entries) * state.jitter_ns // TABLE_UNIT)
