"""What an agent is told when it starts: one JSON file."""

from __future__ import annotations

import sys
from io import FileIO
from typing import Literal

import msgspec

from agents.compute_profile import ComputeProfile

CONTROL_PORT, KV_PORT, HTTP_PORT = 7000, 7001, 8000
_REQUESTS = 1 << 32
FIRST_CACHE_TRANSFER = 1 << 40
"""Transfers of cached prefixes are numbered from here; those of requests see `job`."""
MAX_ATTEMPTS = 100
COMPUTE_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""For programs that compute with torch: glibc keeps what was freed, or every activation would cost page
faults, a tenth of the time (mallopt(3)).
"""
Payload = Literal["synthetic", "verified", "tensors"]
"""What KV bytes are: zeros, noise that is checked, or what their producer computed."""


def job(request: int, attempt: int) -> int:
    """The number under which instances know one attempt at a request, and the transfer of its KV."""
    return attempt * _REQUESTS + request


def request_of(number: int) -> int:
    """The request of a job."""
    return number % _REQUESTS


def attempt_of(number: int) -> int:
    """Which attempt at its request a job is, from 0."""
    return number // _REQUESTS


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all configuration values."""


class Peer(Frozen, frozen=True):
    """Another agent; `address` is its IPv4 address."""

    name: str
    role: Literal["router", "prefill", "decode", "client", "reference"]
    cluster: Literal["prfaas", "pd"]
    address: str
    profile: str


class Transport(Frozen, frozen=True):
    """How KV crosses between agents."""

    payload: Payload
    connections: int
    chunk_bytes: int
    layer_group: int
    """Layers handed over together, once the last of them is computed."""
    congestion_control: str
    """Of KV connections between the datacenters."""
    lan_congestion_control: str = "cubic"
    """Of those within one."""
    control_congestion_control: str = "cubic"
    """Of the router's connections to the instances."""
    compression: str = ""
    """A key of `agents.profiles.COMPRESSIONS`, for policies that compress; empty: none."""
    handover: Literal["source_first", "destination_first"] = "source_first"
    """Who needs room first: prefill computes and then asks for room at decode, or decode sets it aside before
    prefill is asked."""
    priority: Literal["fifo", "least_slack"] = "fifo"
    """Which chunk is next: the one produced first, or that of the transfer with the least time to spare."""
    ttft_target_ns: int = 0
    """From arrival to first token, for `least_slack`."""
    pacing_bps: int = 0
    """Most that one connection between the datacenters sends; 0: as congestion control allows."""
    send_pool_bytes: int = 1 << 42
    """KV that a prefill instance holds at once, computed or being computed and not yet delivered."""
    receive_pool_bytes: int = 1 << 42
    """KV that a decode instance holds at once, from the first byte's coming to the last token."""


class Timeouts(Frozen, frozen=True):
    """How long each waits without a sign of progress before it gives up; each longer than the next one.

    `client`: for a byte of the answer. `router`: for anything that moves a request on. `decode_wait`: a
    decode instance for KV. `lease`: KV at the prefill instance, without a byte moving. `transfer`: a
    connection, before it is given up for a new one.
    """

    client_ns: int = 120_000_000_000
    router_ns: int = 60_000_000_000
    decode_wait_ns: int = 30_000_000_000
    lease_ns: int = 20_000_000_000
    transfer_ns: int = 1_000_000_000


class Failures(Frozen, frozen=True):
    """What becomes of a request whose instance or KV is lost, and how lost instances are looked for.

    `recompute`: once more in the PD cluster. `retry`: once more in the same cluster, on another instance
    where there is one. Both wait where none is up. `fail`: it ends with the cause. An instance that has been
    silent for `silence_ns` gets no work; it is tried again after `probe_ns`, then twice as long, up to
    `probe_max_ns`.
    """

    policy: Literal["recompute", "retry", "fail"] = "recompute"
    attempts: int = 3
    silence_ns: int = 2_000_000_000
    probe_ns: int = 250_000_000
    probe_max_ns: int = 1_000_000_000


Flaw = Literal[
    "blacklist_for_ever",
    "no_cancel",
    "fail_open",
    "no_resume",
    "no_lease",
    "no_timeouts",
    "send_after_compute",
    "wait_for_tcp",
]
"""What systems in the field do wrong, one at a time, so that a scenario can show that it notices.

blacklist_for_ever   an instance that was once unreachable gets no work any more
no_cancel            the failure of one leg of a request is not told to the other
fail_open            damaged chunks are taken as they are, and decoded
no_resume            a broken connection fails every transfer that used it
no_lease             KV whose transfer failed stays pinned
no_timeouts          nobody gives up waiting
send_after_compute   KV leaves when the last layer is computed, not layer by layer
wait_for_tcp         a connection that stands still is left to TCP's timer
"""


class Compute(Frozen, frozen=True):
    """Real kernels: a model with random weights from `seed`, and prompts from the same."""

    seed: int
    prefixes: str = ""
    """Directory of the cached prefixes that all instances of a cluster share; empty: none are kept."""
    longest_tokens: int = 0
    """Of the prompts that will come: an instance computes as many once before it is ready; 0: nothing."""


class Cache(Frozen, frozen=True):
    """Memory for cached prefixes in each cluster, in bytes at scale 1; 0: none is kept there."""

    prfaas_bytes: int = 0
    pd_bytes: int = 0


class RecordedRoute(Frozen, frozen=True, array_like=True):
    """Where a request went, see `agents.policies.view.Decision`."""

    route: Literal["prfaas", "pd"]
    threshold_tokens: int
    reason: str
    cache: Literal["own", "best"]
    compress: bool
    order_s: float | None


class RecordedState(Frozen, frozen=True, array_like=True):
    """What a policy answered to one interval, see `agents.policies.view.State`; `reason`: of a change."""

    threshold_tokens: int
    capacity_bps: float | None
    reason: str
    regime: Literal["scarce", "abundant"]
    prefill_instances: int | None


class Log(Frozen, frozen=True):
    """The decisions of a run: those about requests by their ids, those about intervals in order."""

    routes: dict[str, RecordedRoute]
    states: tuple[RecordedState, ...]


class Service(Frozen, frozen=True):
    """A scheduler that is a program beside the router, listening on 127.0.0.1.

    `ended`: the file that says how it ended, once it has.
    """

    port: int
    timeout_ns: int
    ended: str = ""


class Scheduling(Frozen, frozen=True):
    """The router's policy, see `agents.policies.view.Config`."""

    policy: str
    threshold_tokens: int
    interval_ns: int
    params: dict[str, float]
    length_quantiles: tuple[int, ...]
    prior_arrival_per_s: float
    output_tokens: int
    """Tokens a request generates, on average."""
    conversion_ns: int
    """What an instance needs to change its role, once it has nothing left to do."""
    files: dict[str, str] = {}
    """Texts of the modules of a policy of the user's own, by path."""
    log: Log | None = None
    """For `recorded`."""
    service: Service | None = None
    """Who is asked, with the policy `http`."""


class Request(Frozen, frozen=True):
    """One request of the client: when (after the start), how long, how much to generate."""

    id: int
    t_ns: int
    input_tokens: int
    output_tokens: int
    tenant: str = "default"
    hash_ids: tuple[int, ...] = ()
    """Ids of its prefix blocks, where prefixes are cached."""


class Config(Frozen, frozen=True):
    """Everything; `peers` are all agents of the system, this one included."""

    name: str
    journal: str
    model: str
    scale: float
    transport: Transport
    scheduling: Scheduling
    cache: Cache
    stream_interval_tokens: int
    peers: tuple[Peer, ...]
    profiles: dict[str, ComputeProfile] = {}
    """Compute profiles by name that are not in `agents.profiles.PROFILES`."""
    compute: Compute | None = None
    """None: prefill and decode replay their profiles."""
    timeouts: Timeouts = Timeouts()
    failures: Failures = Failures()
    flaws: tuple[Flaw, ...] = ()
    requests: tuple[Request, ...] = ()
    deadline_ns: int = 0
    """Client: how long after the start a request may still end before it counts as failed."""

    @property
    def me(self) -> Peer:
        """This agent among its peers."""
        return next(peer for peer in self.peers if peer.name == self.name)

    def having(self, role: str) -> list[Peer]:
        """All peers of a role, by name."""
        return sorted((peer for peer in self.peers if peer.role == role), key=lambda peer: peer.name)

    def instances(self) -> list[Peer]:
        """All prefill and decode instances, by name."""
        return sorted([*self.having("prefill"), *self.having("decode")], key=lambda peer: peer.name)


def from_arguments() -> Config:
    """Read the file that the program's last argument names."""
    with FileIO(sys.argv[-1]) as file:
        return msgspec.json.decode(file.readall(), type=Config)


def say_ready() -> None:
    """Tell whoever started this program that it serves."""
    print("ready", flush=True)
