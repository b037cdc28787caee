"""The lines that the bench writes: the run's course, the link, other tenants, what was done to agents."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from testbed.journal_lines.line import Line


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
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
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


class Program(Line, frozen=True, kw_only=True, tag="program"):
    """What became of a program of the scenario; `detail` says why it failed, and how it ended."""

    name: str
    state: Literal["started", "ready", "ended", "stopped", "failed"]
    detail: str


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


class Fault(Line, frozen=True, kw_only=True, tag="fault"):
    """Something was done to an agent or a host, or is over; noted after it was read back."""

    fault: str
    """As `plan.Fault.kind`."""
    target: str
    active: bool
    detail: str = ""
