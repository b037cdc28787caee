"""The lines that the bench writes: the run's course, the link, other tenants, what was done to agents."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

import msgspec

from testbed.journal_lines.line import Direction, Line, Moment, Real, Small, Whole


class Start(Line, frozen=True, kw_only=True, tag="start"):
    """The moment t0."""


class Event(Line, frozen=True, kw_only=True, tag="event"):
    """An event of the timeline took place."""

    name: str
    detail: str = ""


class LinkSet(Line, frozen=True, kw_only=True, tag="link_set"):
    """The state of a direction as read back from the kernel after a change."""

    direction: Direction
    rate_bps: Whole
    buffer_bytes: Whole
    delay_ns: Whole
    jitter_ns: Whole
    loss_ratio: Real
    partitioned: bool
    limit_packets: Whole | None = None
    """The delay stage's limit; a queue that reaches it means drops that nobody asked for."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """All that was read back, under the kernel's names."""


class Calibration(Line, frozen=True, kw_only=True, tag="calibration"):
    """What the link gave when it was full, and when it was idle."""

    direction: Direction
    rate_bps: Real
    span_ns: Whole
    """How long the rate stage was surely busy; 0: never, so that nothing was measured."""
    grain_bytes: Whole
    rtt_ns: Whole


class Train(Line, frozen=True, kw_only=True, tag="train"):
    """Probes of one direction; `t_ns` is when they were all through."""

    direction: Direction
    clock: Literal["virtual", "real"]
    tells_limit_drops: bool
    """Whether the kernel counts drops by the delay stage's limit apart from losses."""
    interval_ns: Whole
    missed: Whole
    """Frames that a tap had no room for."""
    sizes: list[Whole]
    """Of the IP packets, by number."""
    left_ns: list[Whole | None]
    """When each number left the rate stage."""
    arrived: list[tuple[Whole, Whole, bool]]
    """Number, moment, and whether every bit was as sent, in the order of arrival."""

    def __post_init__(self) -> None:
        count = len(self.sizes)
        if len(self.left_ns) != count or not all(0 <= number < count for number, _, _ in self.arrived):
            message = "a probe without a size or a moment"
            raise ValueError(message)


class Settings(Line, frozen=True, kw_only=True, tag="settings"):
    """How often the kernel's settings were read again during the run, and what was not as it was set."""

    direction: Direction
    readings: Whole
    differences: list[str]


PlaceName = Literal[
    "rate", "queue", "rate_device", "wan_device", "filter", "wan", "delay", "delay_device", "far_device"
]  # fmt: skip


class Place(TypedDict, total=False):
    """What a device or a qdisc has counted; a device counts less."""

    packets: Whole
    bytes: Whole
    drops: Whole
    overlimits: Whole
    marked: Whole
    queue_packets: Whole
    backlog_bytes: Whole


class Counters(Line, frozen=True, kw_only=True, tag="counters"):
    """Counters of every device and qdisc on the way of a direction."""

    direction: Direction
    moment: Literal["start", "end"]
    places: dict[PlaceName, Place]

    def __post_init__(self) -> None:
        if len(self.places) < len(get_args(PlaceName)):
            message = "a place without counters"
            raise ValueError(message)


class Trust(Line, frozen=True, kw_only=True, tag="trust"):
    """A reason not to trust the run."""

    what: str


class Capture(Line, frozen=True, kw_only=True, tag="capture"):
    """tcpdump listens on a device; packets are stamped with a clock that shows `realtime_ns` at `t_ns`."""

    device: str
    realtime_ns: Moment


class Captured(Line, frozen=True, kw_only=True, tag="captured"):
    """What tcpdump says of itself at its end."""

    device: str
    packets: Whole
    dropped_packets: Whole


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

    direction: Direction
    rate_bps: Whole
    delay_ns: Whole
    jitter_ns: Whole
    loss_ratio: Real
    tx_bytes: Whole
    drops: Whole
    backlog_bytes: Whole
    lost_packets: Whole
    flight_packets: Whole
    tx_packets: Whole = 0
    filtered_packets: Whole = 0
    limit_drops: Whole = 0
    busy_from_ns: Whole | None = None
    busy_ns: Whole | None = None
    busy_bytes: Whole | None = None


class TcpSample(Line, frozen=True, kw_only=True, tag="tcp"):
    """TCP_INFO of one socket."""

    host: str
    local: str
    remote: str
    use: str
    cwnd_packets: Whole
    rtt_ns: Whole
    bytes_acked: Whole
    bytes_retrans: Whole
    delivery_bps: Real
    notsent_bytes: Whole
    congestion_control: str


class Burst(Line, frozen=True, kw_only=True, tag="burst"):
    """A burst of another tenant; `t_ns` is its start."""

    source: str
    sink: str
    flows: Whole
    size_bytes: Whole
    t_end_ns: Whole | None


class Bulk(Line, frozen=True, kw_only=True, tag="bulk"):
    """A transfer without a request; `t_ns` is its start."""

    source: str
    sink: str
    flows: Whole
    size_bytes: Whole
    t_end_ns: Whole | None


class Tenant(Line, frozen=True, kw_only=True, tag="tenant"):
    """One transfer of a tenant; `t_ns` is its start."""

    source: str
    sink: str
    size_bytes: Whole
    received_bytes: Whole
    t_end_ns: Whole | None
    state: Literal["completed", "failed", "partial"]
    cause: str | None = None


class Microburst(Line, frozen=True, kw_only=True, tag="microburst"):
    """One burst of UDP; `t_ns` is when its first packet left."""

    source: str
    sink: str
    packet_bytes: Small
    sent_packets: Small
    received_packets: Small
    t_first_ns: Whole | None
    t_end_ns: Whole | None
    waited: bool
    """Until nothing could be on its way any more; otherwise the run ended before."""


class Fault(Line, frozen=True, kw_only=True, tag="fault"):
    """Something was done to an agent or a host, or is over; noted after it was read back."""

    fault: str
    """As `plan.Fault.kind`."""
    target: str
    active: bool
    detail: str = ""
