"""The plan: a scenario with every default filled in and all its randomness spent.

`resolve` writes it, `inside` executes it, `expect` and `report` read it. Nothing here has units to
parse, names to look up or dice to throw. Times count from t0, the virtual moment at which the
workload starts. Rates, buffers and KV sizes are already multiplied by `scale`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from agents.compute_profile import ComputeProfile
from agents.config import Cache, Failures, Flaw, Log, Service, Timeouts, Transport
from testbed import regular
from testbed.program import Program

Direction = Literal["a_to_b", "b_to_a"]
DIRECTIONS: tuple[Direction, ...] = ("a_to_b", "b_to_a")


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all plan values."""


class Loss(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """A loss process (kernel: net/sched/sch_netem.c, act_gact.c); all ratios are probabilities per packet.

    `random`: every packet is lost with `ratio`.
    `gilbert_elliott`: two states; good to bad with `p`, bad to good with `r`; a packet is lost with
    `loss_bad` in the bad state and `loss_good` in the good one.
    `four_state`: netem's Markov chain (Salsano et al., "GI" in the kernel): good reception (1), good
    reception within a burst (2), loss within a burst (3), single loss (4); pij is the way from i to j.
    `periodic`: every `every_packets`-th packet is lost.
    """

    model: Literal["random", "gilbert_elliott", "four_state", "periodic"]
    ratio: float = 0.0
    p: float = 0.0
    r: float = 0.0
    loss_bad: float = 1.0
    loss_good: float = 0.0
    p13: float = 0.0
    p31: float = 0.0
    p32: float = 0.0
    p23: float = 0.0
    p14: float = 0.0
    every_packets: int = 0


class Slot(Frozen, frozen=True, kw_only=True):
    """Packets leave in bunches (netem slots): after a pause drawn from [min, max], up to so many at once.

    0 packets or bytes: no limit.
    """

    min_ns: int
    max_ns: int
    packets: int = 0
    size_bytes: int = 0


class Queue(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """What manages the buffer in front of the link.

    `tail_drop`: bfifo, limited to `buffer_bytes`, nothing else.
    `fq_codel`, `codel` (RFC 8289, 8290): `target_ns`, `interval_ns`; the buffer is the hard limit.
    `red`: marks or drops with up to `probability` while the average queue is between `min_bytes` and
    `max_bytes` (shares of the buffer are resolved already).
    `ecn`: mark packets that allow it (RFC 3168) where the queue would drop them.
    """

    kind: Literal["tail_drop", "fq_codel", "codel", "red"] = "tail_drop"
    ecn: bool = False
    target_ns: int = 0
    interval_ns: int = 0
    min_bytes: int = 0
    max_bytes: int = 0
    probability: float = 0.0


class TokenBucket(Frozen, frozen=True, kw_only=True):
    """Full rate until `budget_bytes` are spent, then `sustained_bps`, at which the budget fills up, too."""

    sustained_bps: int
    budget_bytes: int


class LinkState(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about one direction of the WAN at one moment."""

    rate_bps: int
    buffer_bytes: int
    delay_ns: int
    """One way, mean."""
    jitter_ns: int = 0
    """Scale of `distribution`: half the width of `uniform`, the standard deviation of `normal` and `pareto`;
    of a file the unit of its table."""
    distribution: str = "uniform"
    """A key of Plan.delay_tables."""
    loss: Loss | None = None
    reorder: float = 0.0
    """Share of packets that overtake: they skip the delay."""
    duplicate: float = 0.0
    """Share of packets that arrive twice."""
    corrupt: float = 0.0
    """Share of packets with one bit turned over."""
    slot: Slot | None = None
    queue: Queue = Queue()
    token_bucket: TokenBucket | None = None
    flow_cap_bps: int | None = None
    """What a single flow may have at most, whatever the link has left."""
    path_mtu_bytes: int | None = None
    """Larger IP packets are dropped on the WAN node, which says so (ICMP fragmentation needed)."""
    black_hole_bytes: int | None = None
    """Larger IP packets vanish on the WAN node without a word."""
    limit_packets: int | None = None
    """Forces the delay stage's limit; None: computed so that it is never reached."""
    partitioned: bool = False

    def marks_ecn(self) -> bool:
        """Whether something on the way marks packets."""
        return self.queue.ecn


class LinkChange(Frozen, frozen=True, kw_only=True):
    """At `t_ns` the direction takes `state`; `seed` feeds the loss and jitter of that state."""

    t_ns: int
    direction: Direction
    state: LinkState
    seed: int


class Burst(Frozen, frozen=True, kw_only=True):
    """Other people's traffic: `flows` TCP connections that carry `size_bytes` in all, from `t_ns`."""

    t_ns: int
    source: str
    sink: str
    flows: int
    size_bytes: int
    congestion_control: str


class Tenant(Frozen, frozen=True, kw_only=True):
    """Another tenant: each of `flows` sends one transfer, pauses, sends the next, from `t_ns` to `until_ns`.

    Sizes are lognormal with mean `size_bytes` and coefficient of variation `size_cv` (0: all the same),
    pauses exponential with mean `pause_ns` (0: none). Drawn from `seed`, for each flow on its own.
    """

    t_ns: int
    until_ns: int
    source: str
    sink: str
    flows: int
    size_bytes: int
    size_cv: float
    pause_ns: int
    congestion_control: str
    seed: int


class Microbursts(Frozen, frozen=True, kw_only=True):
    """UDP at `rate_bps` for `length_ns`, every `every_ns` from `t_ns` to `until_ns`; one size of packets."""

    t_ns: int
    until_ns: int
    source: str
    sink: str
    rate_bps: int
    packet_bytes: int
    """Of the IP packet."""
    length_ns: int
    every_ns: int


class Capture(Frozen, frozen=True, kw_only=True):
    """Packets of one interface, into pcap/<device>.pcap: `snap_bytes` of each that matches `filter`."""

    node: str
    device: str
    snap_bytes: int
    filter: str
    """In tcpdump's language (pcap-filter(7)); empty: all."""


class Fault(Frozen, frozen=True, kw_only=True):
    """Something that is done to an agent, or to a host, from `t_ns` to `until_ns` (None: to the end).

    `kill`: the agent dies, for good. `restart`: it dies and is started again at `until_ns`. `pause`: it is
    frozen (cgroup freezer). `slow`: it runs 1/`amount` of the time, and what it computes takes `amount` times
    as long. `corrupt`: one bit is turned over in each of the next `amount` chunks that it sends. `fill`:
    a decode instance has no room for KV. `exhaust_ports`: no connection can be opened from a host.
    """

    t_ns: int
    kind: Literal["kill", "restart", "pause", "slow", "corrupt", "fill", "exhaust_ports"]
    target: str
    """Name of the agent; of the host for `exhaust_ports`."""
    until_ns: int | None = None
    amount: float = 0.0


class Event(Frozen, frozen=True, kw_only=True):
    """A named moment of the timeline, for expectations and for the report."""

    t_ns: int
    name: str
    detail: str


class Request(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """One inference request of a tenant.

    `hash_ids`: one for each 512 tokens of the input, the last one may stand for fewer. An id names all of the
    input up to its block's end: requests with the same id share that prefix. Empty: nothing is shared.
    """

    id: int
    t_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    tenant: str = "default"


class BulkTransfer(Frozen, frozen=True, kw_only=True):
    """A plain KV-sized transfer without a request, to measure the link itself."""

    t_ns: int
    source: str
    sink: str
    size_bytes: int


class Agent(Frozen, frozen=True, kw_only=True):
    """One container: its role, the topology host whose network it joins, and its limits."""

    name: str
    role: Literal["router", "prefill", "decode", "client", "reference"]
    """`reference`: after the run it computes every request once more, in one process (real kernels)."""
    host: str
    cluster: Literal["prfaas", "pd"]
    profile: str
    """Compute profile: a key of `Plan.profiles`, else of `agents.profiles.PROFILES`, e.g. `h200`, `h20`."""
    memory_bytes: int


class SourceFile(Frozen, frozen=True, kw_only=True):
    """A file of the user's: its text, and the digest of its bytes."""

    sha256: str
    text: str


class Policy(Frozen, frozen=True, kw_only=True):
    """The scheduler under test: a key of `agents.policies.POLICIES`, `recorded`, or an import path of the
    user's own, and its parameters.
    """

    name: str
    threshold_tokens: int
    interval_ns: int
    params: dict[str, float]
    length_quantiles: tuple[int, ...]
    """Lengths to compute (tokens) at evenly spaced probabilities: the profiled distribution."""
    prior_arrival_per_s: float
    conversion_ns: int
    """What an instance needs to change its role, once it is idle."""
    files: dict[str, SourceFile] = {}
    """Modules of a policy of the user's own, by their paths below `directory`, where they were found."""
    directory: str = ""
    log: Log | None = None
    """What `recorded` does, and the digest of the file that it came from."""
    log_sha256: str = ""
    service: Service | None = None
    """Where the policy `http` asks; its program is `testbed.program.SCHEDULER`."""


class Expectation(Frozen, frozen=True, kw_only=True):
    """One line of the scenario's `expect`, with every name checked.

    bound      statistic `metric` over requests or samples in [from, to) lies in [low, high]
    reaction   after the event, `metric` first crosses `level` in `crosses` direction within `within_ns`
    recovery   after the event, `metric` comes to lie within [low, high] within `within_ns`, and stays there
               until the window's end
    stability  in [from, to) `metric` changes direction at most `high` times, ignoring moves under `level`
    settling   after the event, `metric` comes within `within_ns` to lie within `band`, or `band_ratio`, of
               `target`, or of where it comes to rest, and stays there until the window's end
    overshoot  after the event, `metric` goes at most the ratio `high` of its step beyond its end, or `target`
    oscillation in [from, to) no `cycles` cycles of `metric` have an amplitude above `high`
    fairness   over `tenants`, Jain's index of `metric` is at least `low`, or the largest at most `high` times
               the smallest
    oracle     in [from, to) at least the ratio `low` of what an oracle would have carried was carried
    """

    name: str
    kind: Literal[
        "bound",
        "reaction",
        "recovery",
        "stability",
        "settling",
        "overshoot",
        "oscillation",
        "fairness",
        "oracle",
    ]
    metric: str
    from_ns: int
    to_ns: int
    low: float | None = None
    high: float | None = None
    event: str | None = None
    within_ns: int | None = None
    level: float | None = None
    crosses: Literal["above", "below"] | None = None
    tenant: str | None = None
    """A bound on requests of this tenant only."""
    target: float | None = None
    band: float | None = None
    band_ratio: float | None = None
    cycles: int | None = None
    tenants: tuple[str, ...] = ()
    line: int = 0
    """Line of the scenario file, for messages."""


class Plan(Frozen, frozen=True, kw_only=True):
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
    compute: Literal["replay", "real"] = "replay"
    """Whether agents replay their profiles, or run the model with real kernels."""
    link: dict[Direction, LinkState]
    changes: tuple[LinkChange, ...]
    delay_tables: dict[str, bytes] = {}
    """By name of distribution: little-endian int16 at equally spaced probabilities, in 1/8192 of jitter_ns
    (netem's form). All that the states name; also `uniform`. Those of files are called `file:<path>`."""
    offload: Literal["auto", "on", "off"] = "auto"
    """Super-packets on the WAN: as the impairments allow, always, never."""
    bursts: tuple[Burst, ...]
    tenants: tuple[Tenant, ...] = ()
    microbursts: tuple[Microbursts, ...] = ()
    captures: tuple[Capture, ...] = ()
    faults: tuple[Fault, ...] = ()
    programs: tuple[Program, ...] = ()
    events: tuple[Event, ...]
    requests: tuple[Request, ...]
    traces: tuple[str, ...] = ()
    """What became of the rows of each trace, for people."""
    bulk: tuple[BulkTransfer, ...]
    agents: tuple[Agent, ...]
    profiles: dict[str, ComputeProfile] = {}
    """Those of the agents' profiles that came from files."""
    transport: Transport
    cache: Cache
    timeouts: Timeouts = Timeouts()
    failures: Failures = Failures()
    flaws: tuple[Flaw, ...] = ()
    policy: Policy
    expectations: tuple[Expectation, ...]
    sample_ns: int
    """Interval of link samples."""
    window_bytes: int
    """Largest TCP window a connection may need: sets tcp_rmem and tcp_wmem."""
    memory_bytes: int
    """Memory of the guest."""
    stream_interval_tokens: int
    """Tokens a decode instance gathers before it sends them on towards the client."""

    @property
    def tcp_sample_ns(self) -> int:
        """TCP sockets are sampled every ten samples of the link, at least once a second."""
        return min(1_000_000_000, 10 * self.sample_ns)

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        return msgspec.json.decode(regular.read(path), type=cls)
