"""The lines of the journal as types, and the reader that turns files into them.

`journal.py` says in words what every line means; this is the same in a form that is checked: a line
with an unknown kind, a missing field or a value of the wrong type is malformed. Further fields are
welcome and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", gc=False):
    """What every line has: when, on CLOCK_MONOTONIC of the run's kernel."""

    t_ns: int


class Start(Line, frozen=True, kw_only=True, tag="start"):
    """The moment t0."""


class Event(Line, frozen=True, kw_only=True, tag="event"):
    """An event of the timeline took place."""

    name: str
    detail: str = ""


class LinkSet(Line, frozen=True, kw_only=True, tag="link_set"):
    """The state of a direction as read back from the kernel after a change."""

    direction: str
    rate_bps: int
    buffer_bytes: int
    delay_ns: int
    jitter_ns: int
    loss_ratio: float
    partitioned: bool
    limit_packets: int | None = None
    """The delay stage's limit; a queue that reaches it means drops that nobody asked for."""
    settings: dict[str, Any] = {}
    """All that was read back, under the kernel's names."""


class Calibration(Line, frozen=True, kw_only=True, tag="calibration"):
    """What the link gave when it was full, and when it was idle."""

    direction: str
    rate_bps: float
    span_ns: int
    """How long the rate stage was surely busy; 0: never, so that nothing was measured."""
    grain_bytes: int
    rtt_ns: int


class Train(Line, frozen=True, kw_only=True, tag="train"):
    """Probes of one direction; `t_ns` is when they were all through."""

    direction: str
    clock: Literal["virtual", "real"]
    tells_limit_drops: bool
    """Whether the kernel counts drops by the delay stage's limit apart from losses."""
    interval_ns: int
    missed: int
    """Frames that a tap had no room for."""
    sizes: list[int]
    """Of the IP packets, by number."""
    left_ns: list[int | None]
    """When each number left the rate stage."""
    arrived: list[tuple[int, int, bool]]
    """Number, moment, and whether every bit was as sent, in the order of arrival."""


class Settings(Line, frozen=True, kw_only=True, tag="settings"):
    """How often the kernel's settings were read again during the run, and what was not as it was set."""

    direction: str
    readings: int
    differences: list[str]


class Counters(Line, frozen=True, kw_only=True, tag="counters"):
    """Counters of every device and qdisc on the way of a direction (`telemetry/path.py`)."""

    direction: str
    moment: Literal["start", "end"]
    places: dict[str, dict[str, int]]


class Trust(Line, frozen=True, kw_only=True, tag="trust"):
    """A reason not to trust the run."""

    what: str


class Capture(Line, frozen=True, kw_only=True, tag="capture"):
    """tcpdump listens on a device; packets are stamped with a clock that shows `realtime_ns` at `t_ns`."""

    device: str
    realtime_ns: int


class Captured(Line, frozen=True, kw_only=True, tag="captured"):
    """What tcpdump says of itself at its end."""

    device: str
    packets: int
    dropped_packets: int


class End(Line, frozen=True, kw_only=True, tag="end"):
    """The run ended by itself."""

    reason: str


class LinkSample(Line, frozen=True, kw_only=True, tag="link"):
    """Counters of one direction of the WAN."""

    direction: str
    rate_bps: int
    delay_ns: int
    jitter_ns: int
    loss_ratio: float
    tx_bytes: int
    drops: int
    backlog_bytes: int
    lost_packets: int
    flight_packets: int
    tx_packets: int = 0
    filtered_packets: int = 0
    limit_drops: int = 0
    busy_from_ns: int | None = None
    busy_ns: int | None = None
    busy_bytes: int | None = None


class TcpSample(Line, frozen=True, kw_only=True, tag="tcp"):
    """TCP_INFO of one socket."""

    host: str
    local: str
    remote: str
    use: str
    cwnd_packets: int
    rtt_ns: int
    bytes_acked: int
    bytes_retrans: int
    delivery_bps: float
    notsent_bytes: int
    congestion_control: str


class Burst(Line, frozen=True, kw_only=True, tag="burst"):
    """A burst of another tenant; `t_ns` is its start."""

    source: str
    sink: str
    flows: int
    size_bytes: int
    t_end_ns: int | None


class Bulk(Line, frozen=True, kw_only=True, tag="bulk"):
    """A transfer without a request; `t_ns` is its start."""

    source: str
    sink: str
    flows: int
    size_bytes: int
    t_end_ns: int | None


class Tenant(Line, frozen=True, kw_only=True, tag="tenant"):
    """One transfer of a tenant; `t_ns` is its start."""

    source: str
    sink: str
    size_bytes: int
    received_bytes: int
    t_end_ns: int | None
    state: str
    cause: str | None = None


class Microburst(Line, frozen=True, kw_only=True, tag="microburst"):
    """One burst of UDP; `t_ns` is when its first packet left."""

    source: str
    sink: str
    packet_bytes: int
    sent_packets: int
    received_packets: int
    t_first_ns: int | None
    t_end_ns: int | None
    waited: bool
    """Until nothing could be on its way any more; otherwise the run ended before."""


class Request(Line, frozen=True, kw_only=True, tag="request"):
    """How a request ended, as its client saw it; `t_ns` is when it was sent."""

    id: int
    state: str
    t_first_ns: int | None = None
    t_last_ns: int | None = None
    t_end_ns: int | None = None
    tokens: int | None = None
    cause: str | None = None


class Decision(Line, frozen=True, kw_only=True, tag="decision"):
    """Where the policy sent a request; null agents: it was refused."""

    step: int | None = None
    """Number of the question among all that the policy was asked."""
    id: int
    route: str | None
    prefill: str | None
    decode: str | None
    uncached_tokens: int | None
    cached_prfaas_tokens: int = 0
    cached_pd_tokens: int = 0
    threshold_tokens: int | None
    cache: str | None = None
    compress: bool | None = None
    order_s: float | None = None
    reason: str
    seen: msgspec.Raw = msgspec.Raw(b"null")
    """What the policy was shown."""


class Control(Line, frozen=True, kw_only=True, tag="control"):
    """One control interval of the policy."""

    step: int | None = None
    threshold_tokens: int
    previous_tokens: int
    reason: str
    capacity_bps: float | None = None
    goodput_bps: float | None = None
    backlog_bytes: int | None = None
    retrans_ratio: float | None = None
    queue_prfaas: int | None = None
    queue_pd: int | None = None
    queue_decode: int | None = None
    regime: str | None = None
    n_prefill: int | None = None
    n_decode: int | None = None
    prefill_instances: int | None = None
    cache: dict[str, dict[str, int]] = {}
    seen: msgspec.Raw = msgspec.Raw(b"null")


class Fetch(Line, frozen=True, kw_only=True, tag="fetch"):
    """A cached prefix that one cluster sent the other has arrived there, or will not."""

    id: int
    request: int | None
    cluster: str
    tokens: int
    arrived: bool


class Role(Line, frozen=True, kw_only=True, tag="role"):
    """An instance was told to take another role."""

    instance: str
    role: str


class Conversion(Line, frozen=True, kw_only=True, tag="conversion"):
    """An instance has another role; `t_ns` is when it was told to."""

    role: str
    t_drained_ns: int
    t_end_ns: int


class Prefill(Line, frozen=True, kw_only=True, tag="prefill"):
    """A prefill; `t_ns` is when it was queued."""

    id: int
    t_start_ns: int | None
    t_end_ns: int | None
    tokens: int
    kv_bytes: int


class Transfer(Line, frozen=True, kw_only=True, tag="transfer"):
    """KV on its way; `t_ns` is the first byte handed to TCP."""

    id: int
    peer: str
    use: str = "kv"
    wan: bool
    size_bytes: int
    chunks: int
    t_end_ns: int | None
    state: str
    cause: str | None = None


class TransferBegin(Line, frozen=True, kw_only=True, tag="transfer_begin"):
    """KV is about to be produced; the transfer line follows when it has arrived or failed."""

    id: int
    peer: str
    use: str = "kv"
    wan: bool
    size_bytes: int
    chunks: int


class Kv(Line, frozen=True, kw_only=True, tag="kv"):
    """The KV of a request is complete and checked at the decode instance."""

    id: int
    size_bytes: int
    chunks: int
    checksum_errors: int


class Decode(Line, frozen=True, kw_only=True, tag="decode"):
    """A request in the decode batch; `t_ns` is when it joined."""

    id: int
    t_first_ns: int | None
    t_last_ns: int | None
    tokens: int


AnyLine = (
    Start | Event | LinkSet | Calibration | Train | Settings | Counters | Trust | Capture | Captured | End
    | LinkSample | TcpSample | Burst | Bulk | Tenant | Microburst
    | Request | Decision | Control | Fetch | Role | Conversion
    | Prefill | TransferBegin | Transfer | Kv | Decode
)  # fmt: skip


@dataclass(frozen=True)
class Noted:
    """A line and who wrote it: the stem of its file, which is the agent's name."""

    writer: str
    line: Line


@dataclass(frozen=True)
class JournalContent:
    """All lines of a run in order of time (file name breaks ties), and what could not be read."""

    lines: tuple[Noted, ...]
    problems: tuple[str, ...]


def read(directory: Path) -> JournalContent:
    """All of `directory`/*.jsonl; an absent directory is an empty journal.

    A last line without its newline is where a killed writer stopped: dropped without a word. Any other
    line that cannot be read is a problem, one per file, with the first such line's number.
    """
    lines: list[Noted] = []
    problems: list[str] = []
    decoder = msgspec.json.Decoder(AnyLine)
    for path in sorted(directory.glob("*.jsonl")):
        whole_lines = path.read_bytes().split(b"\n")[:-1]
        malformed: list[str] = []
        for number, text in enumerate(whole_lines, start=1):
            try:
                lines.append(Noted(path.stem, decoder.decode(text)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                malformed.append(f"line {number}: {error}")
        if malformed:
            problems.append(f"journal/{path.name}: {len(malformed)} malformed line(s), first {malformed[0]}")
    lines.sort(key=lambda noted: noted.line.t_ns)
    return JournalContent(tuple(lines), tuple(problems))
