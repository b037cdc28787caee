"""What a capture holds, as values: pcap/summary.json, and the same in columns for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl

MOST_LINES = 40


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts."""


class Rtt(Frozen, frozen=True, kw_only=True):
    """Round trips, s."""

    samples: int
    min_s: float
    median_s: float
    p99_s: float


class Side(Frozen, frozen=True, kw_only=True):
    """One direction of a flow, as `testbed.capture.flows.Side` defines it."""

    packets: int
    bytes: int
    payload_bytes: int
    retransmitted_packets: int
    retransmitted_bytes: int
    late_bytes: int
    ect_packets: int
    ce_packets: int
    ece_packets: int
    cwr_packets: int
    rtt: Rtt | None


class Flow(Frozen, frozen=True, kw_only=True):
    """One TCP connection, or all of UDP between two ports; `there` is from source to sink."""

    protocol: str
    source: str
    """address:port of the side that opened it, as far as that was seen."""
    sink: str
    first_s: float
    """Virtual seconds since t0."""
    last_s: float
    handshake_s: float | None
    there: Side
    back: Side

    @property
    def packets(self) -> int:
        """Both directions."""
        return self.there.packets + self.back.packets

    @property
    def bytes(self) -> int:
        """Both directions, with all headers."""
        return self.there.bytes + self.back.bytes

    @property
    def retransmitted_bytes(self) -> int:
        """Both directions."""
        return self.there.retransmitted_bytes + self.back.retransmitted_bytes

    @property
    def late_bytes(self) -> int:
        """Both directions."""
        return self.there.late_bytes + self.back.late_bytes

    @property
    def ce_packets(self) -> int:
        """Both directions."""
        return self.there.ce_packets + self.back.ce_packets

    @property
    def times_s(self) -> tuple[float | None, ...]:
        """Of the handshake; least, median and 99th percentile of the direction with more round trips."""
        found = [side.rtt for side in (self.there, self.back) if side.rtt]
        rtt = max(found, key=lambda one: one.samples, default=None)
        return (self.handshake_s, *((rtt.min_s, rtt.median_s, rtt.p99_s) if rtt else (None,) * 3))


class File(Frozen, frozen=True, kw_only=True):
    """One pcap file. Super-packets count as one packet, as the interface saw them."""

    device: str
    packets: int
    """In the flows and in `others`; no more than `limit_packets` are read."""
    limit_packets: int
    complete: bool
    """Whether the file was read to its end, and its end is that of a packet."""
    problem: str
    """Why not."""
    too_short_packets: int
    """The snap length cut them within their headers."""
    others: dict[str, int]
    """Packets that are neither TCP nor UDP over IPv4, by what scapy calls them."""
    flows: tuple[Flow, ...]


class Summary(Frozen, frozen=True, kw_only=True):
    """All captures of a run."""

    files: tuple[File, ...]

    def write(self, directory: Path) -> None:
        """summary.json and summary.txt."""
        directory.mkdir(exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        (directory / "summary.json").write_bytes(text + b"\n")
        (directory / "summary.txt").write_text("\n".join(map(table, self.files)), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Summary | None:
        """The summary of a run that has one."""
        try:
            return msgspec.json.decode((directory / "summary.json").read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None


def heaviest(flows: Sequence[Flow]) -> list[Flow]:
    """Flows by bytes, most first."""
    return sorted(flows, key=lambda flow: (-flow.bytes, flow.first_s, flow.source))


def headline(file: File) -> str:
    """What was read, in a sentence."""
    parts = [f"{file.packets} packets in {len(file.flows)} flows"]
    parts += [f"{count} {name}" for name, count in sorted(file.others.items())]
    if file.too_short_packets:
        parts.append(f"{file.too_short_packets} cut within their headers by the snap length")
    if not file.complete:
        parts.append(file.problem)
    return "; ".join(parts)


def table(file: File) -> str:
    """The file's flows in columns, the heaviest first."""
    heads = [
        "flow", "packets", "bytes", "first s", "last s", "sent again B", "late B", "CE", "handshake ms",
        "RTT min ms", "median", "p99",
    ]  # fmt: skip
    rows = [heads, *(_row(flow) for flow in heaviest(file.flows)[:MOST_LINES])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = [f"{file.device}: {headline(file)}"]
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    if len(file.flows) > MOST_LINES:
        lines.append(f"and {len(file.flows) - MOST_LINES} flows with fewer bytes: summary.json")
    return "\n".join(lines) + "\n"


def _row(flow: Flow) -> list[str]:
    return [
        f"{flow.protocol} {flow.source} > {flow.sink}",
        str(flow.packets),
        str(flow.bytes),
        f"{flow.first_s:.6f}",
        f"{flow.last_s:.6f}",
        str(flow.retransmitted_bytes),
        str(flow.late_bytes),
        str(flow.ce_packets),
        *("-" if time_s is None else f"{time_s * 1e3:.3f}" for time_s in flow.times_s),
    ]


def zeros_ns(events: pl.DataFrame) -> Iterator[tuple[str, int]]:
    """Device of each capture that began, and what its clock said at t0; `events` of the record."""
    began = events.filter(pl.col("kind") == "capture").select("t_s", "name", "detail")
    for t_s, device, detail in began.iter_rows():
        yield device, json.loads(detail)["realtime_ns"] - round(t_s * 1e9)
