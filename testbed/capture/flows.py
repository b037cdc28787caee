"""What a conversation looks like from one point on its way: sequence numbers, round trips, marks.

Retransmissions and round trips are told as tcptrace tells them (S. Ostermann): a byte range that was seen
before is a retransmission; an acknowledgement is a round trip of the newest segment that it covers, unless
bytes below it were sent again in between (Karn's rule).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

SEQUENCE = 1 << 32
FIN, SYN, RST, ACK, ECE, CWR = 0x01, 0x02, 0x04, 0x10, 0x40, 0x80
ECT_1, ECT_0, CE = 1, 2, 3
SYN_AND_ACK = 2
"""Packets of the opening side in a handshake in which nothing was sent again."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One packet of TCP or UDP; what UDP lacks is 0."""

    t_ns: int
    size_bytes: int
    """Of the frame on the wire, not of what was kept of it."""
    ecn: int
    """The two bits of the IP header (RFC 3168)."""
    payload_bytes: int = 0
    flags: int = 0
    seq: int = 0
    ack: int = 0


@dataclass(slots=True)
class Sequence:
    """Which bytes of one direction have been seen; positions count from its first byte and do not wrap."""

    end: int = 0
    """Behind the newest byte that was seen."""
    _first: int | None = None
    _holes: list[tuple[int, int]] = field(default_factory=list)

    def position(self, number: int) -> int:
        """Where a 32-bit sequence number lies: within 2^31 of the newest byte."""
        if self._first is None:
            self._first = number
        return self.end + (number - self._first - self.end + SEQUENCE // 2) % SEQUENCE - SEQUENCE // 2

    def see(self, start: int, end: int) -> tuple[int, int]:
        """Note [start, end); returns how many of its bytes are seen again, and how many fill a hole."""
        again = max(0, min(end, self.end) - start)
        filled = 0
        if again and self._holes:
            filled = self._fill(start, min(end, self.end))
        if start > self.end:
            self._holes.append((self.end, start))
        self.end = max(self.end, end)
        return again - filled, filled

    def _fill(self, start: int, end: int) -> int:
        first = max(0, bisect_right(self._holes, (start, start)) - 1)
        left: list[tuple[int, int]] = []
        filled, last = 0, first
        for low, high in self._holes[first:]:
            if low >= end:
                break
            last += 1
            covered = (max(low, start), min(high, end))
            if covered[0] >= covered[1]:
                left.append((low, high))
                continue
            filled += covered[1] - covered[0]
            left += [piece for piece in ((low, covered[0]), (covered[1], high)) if piece[0] < piece[1]]
        self._holes[first:last] = left
        return filled


@dataclass(slots=True)
class Side:
    """One direction of a conversation."""

    packets: int = 0
    bytes: int = 0
    payload_bytes: int = 0
    retransmitted_packets: int = 0
    retransmitted_bytes: int = 0
    """Seen before at this point."""
    late_bytes: int = 0
    """First seen here after younger bytes: lost before this point and sent again, or overtaken."""
    ect_packets: int = 0
    ce_packets: int = 0
    ece_packets: int = 0
    cwr_packets: int = 0
    rtts_ns: list[int] = field(default_factory=list)
    """From this direction's data to its acknowledgement: this point to the receiver and back."""
    _sequence: Sequence = field(default_factory=Sequence)
    _waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """End and moment of segments that are not acknowledged yet."""
    _ambiguous_until: int = 0

    def see(self, segment: Segment) -> None:
        """Count a packet of this direction."""
        self.packets += 1
        self.bytes += segment.size_bytes
        self.payload_bytes += segment.payload_bytes
        self.ect_packets += segment.ecn in (ECT_0, ECT_1)
        self.ce_packets += segment.ecn == CE
        self.ece_packets += segment.flags & (ECE | SYN) == ECE  # on a SYN it only asks for ECN
        self.cwr_packets += segment.flags & (CWR | SYN) == CWR
        length = segment.payload_bytes + bool(segment.flags & SYN) + bool(segment.flags & FIN)
        if not segment.flags or not length or segment.flags & RST:  # without flags: UDP, which has no numbers
            return
        start = self._sequence.position(segment.seq)
        end = start + length
        again, late = self._sequence.see(start, end)
        self.retransmitted_packets += again > 0
        self.retransmitted_bytes += again
        self.late_bytes += late
        if again or late:
            # what is outstanding now may be acknowledged only because of this packet
            self._ambiguous_until = self._sequence.end
        else:
            self._waiting.append((end, segment.t_ns))

    def acknowledged(self, segment: Segment) -> int | None:
        """The other direction acknowledges; the round trip (ns) that this measures, if it does."""
        if not segment.flags & ACK or not self._waiting:
            return None
        position = self._sequence.position(segment.ack)
        covered: tuple[int, int] | None = None
        while self._waiting and self._waiting[0][0] <= position:
            covered = self._waiting.popleft()
        if covered is None or covered[0] <= self._ambiguous_until:
            return None
        rtt_ns = segment.t_ns - covered[1]
        self.rtts_ns.append(rtt_ns)
        return rtt_ns


@dataclass(slots=True)
class Conversation:
    """Both directions; `there` is that of the first packet seen, or of the SYN."""

    first_ns: int
    last_ns: int
    there: Side = field(default_factory=Side)
    back: Side = field(default_factory=Side)
    handshake_ns: int | None = None
    """SYN to the acknowledgement of the SYN/ACK: a whole round trip, wherever on the way it is seen."""
    _syn: Segment | None = None

    def is_another(self, segment: Segment) -> bool:
        """Whether this SYN opens a new connection with the old one's ports."""
        return segment.flags & (SYN | ACK) == SYN and self._syn is not None and self._syn.seq != segment.seq

    def see(self, segment: Segment, *, there: bool) -> None:
        """Take in the next packet, in order of time."""
        self.last_ns = max(self.last_ns, segment.t_ns)
        mine, other = (self.there, self.back) if there else (self.back, self.there)
        mine.see(segment)
        other.acknowledged(segment)
        if segment.flags & (SYN | ACK) == SYN:
            self._syn = segment
        elif there and self._syn is not None and mine.packets == SYN_AND_ACK and self.back.packets == 1:
            self.handshake_ns = segment.t_ns - self._syn.t_ns
