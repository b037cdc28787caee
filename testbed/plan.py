"""The plan: a scenario with every default filled in and all its randomness spent.

`resolve` writes it, `inside` executes it, `expect` and `report` read it. Nothing here has units to
parse, names to look up or dice to throw. Times count from t0, the virtual moment at which the
workload starts. Rates, buffers and KV sizes are already multiplied by `scale`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from agents.config import Transport

Direction = Literal["a_to_b", "b_to_a"]
DIRECTIONS: tuple[Direction, ...] = ("a_to_b", "b_to_a")


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all plan values."""


class Loss(Frozen, frozen=True):
    """A loss process of netem (kernel: net/sched/sch_netem.c).

    `random`: every packet is lost with `ratio`.
    `gilbert_elliott`: two states; good to bad with `p`, bad to good with `r`; a packet is lost with
    `loss_bad` in the bad state and `loss_good` in the good one. All are probabilities per packet.
    """

    model: Literal["random", "gilbert_elliott"]
    ratio: float = 0.0
    p: float = 0.0
    r: float = 0.0
    loss_bad: float = 1.0
    loss_good: float = 0.0


class LinkState(Frozen, frozen=True):
    """Everything about one direction of the WAN at one moment."""

    rate_bps: int
    buffer_bytes: int
    delay_ns: int
    jitter_ns: int
    loss: Loss | None = None
    partitioned: bool = False


class LinkChange(Frozen, frozen=True):
    """At `t_ns` the direction takes `state`; `seed` feeds the loss and jitter of that state."""

    t_ns: int
    direction: Direction
    state: LinkState
    seed: int


class Burst(Frozen, frozen=True):
    """Other people's traffic: `flows` TCP connections that carry `size_bytes` in all, from `t_ns`."""

    t_ns: int
    source: str
    sink: str
    flows: int
    size_bytes: int
    congestion_control: str


class Event(Frozen, frozen=True):
    """A named moment of the timeline, for expectations and for the report."""

    t_ns: int
    name: str
    detail: str


class Request(Frozen, frozen=True):
    """One inference request; `hash_ids` are the trace's ids of its prefix blocks, if it has any."""

    id: int
    t_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


class BulkTransfer(Frozen, frozen=True):
    """A plain KV-sized transfer without a request, to measure the link itself."""

    t_ns: int
    source: str
    sink: str
    size_bytes: int


class Agent(Frozen, frozen=True):
    """One container: its role, the topology host whose network it joins, and its limits."""

    name: str
    role: Literal["router", "prefill", "decode", "client"]
    host: str
    cluster: Literal["prfaas", "pd"]
    profile: str
    """Compute profile (a key of `agents.profiles.PROFILES`), e.g. `h200`, `h20`."""
    memory_bytes: int


class Policy(Frozen, frozen=True):
    """The scheduler under test: a key of `agents.policies.POLICIES` and its parameters."""

    name: str
    threshold_tokens: int
    interval_ns: int
    params: dict[str, float]
    length_quantiles: tuple[int, ...]
    """Input lengths (tokens) at evenly spaced probabilities: the profiled length distribution."""
    prior_arrival_per_s: float


class Expectation(Frozen, frozen=True):
    """One line of the scenario's `expect`, with every name checked.

    bound      statistic `metric` over requests or samples in [from, to) lies in [low, high]
    reaction   after the event, `metric` first crosses `level` in `crosses` direction within `within_ns`
    recovery   after the event, `metric` comes to lie within [low, high] within `within_ns`, and stays there
               until the window's end
    stability  in [from, to) `metric` changes direction at most `high` times, ignoring moves under `level`
    """

    name: str
    kind: Literal["bound", "reaction", "recovery", "stability"]
    metric: str
    from_ns: int
    to_ns: int
    low: float | None = None
    high: float | None = None
    event: str | None = None
    within_ns: int | None = None
    level: float | None = None
    crosses: Literal["above", "below"] | None = None
    line: int = 0
    """Line of the scenario file, for messages."""


class Plan(Frozen, frozen=True):
    """All that a run is."""

    version: int
    name: str
    question: str
    seed: int
    scale: float
    duration_ns: int
    drain_ns: int
    """How long after `duration_ns` requests may still end before they count as failed."""
    topology: str
    topology_params: dict[str, int]
    mtu_bytes: int
    model: str
    """Model profile (a key of `agents.profiles.MODELS`)."""
    link: dict[Direction, LinkState]
    changes: tuple[LinkChange, ...]
    bursts: tuple[Burst, ...]
    events: tuple[Event, ...]
    requests: tuple[Request, ...]
    bulk: tuple[BulkTransfer, ...]
    agents: tuple[Agent, ...]
    transport: Transport
    policy: Policy
    expectations: tuple[Expectation, ...]
    sample_ns: int
    """Interval of link samples; TCP sockets are sampled every ten of them, at least once a second."""
    window_bytes: int
    """Largest TCP window a connection may need: sets tcp_rmem and tcp_wmem."""
    memory_bytes: int
    """Memory of the guest."""
    stream_interval_tokens: int
    """Tokens a decode instance gathers before it sends them on towards the client."""

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        return msgspec.json.decode(path.read_bytes(), type=cls)
