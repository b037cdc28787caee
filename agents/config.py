"""What an agent is told when it starts: one JSON file."""

from __future__ import annotations

import sys
from io import FileIO
from typing import Literal

import msgspec

CONTROL_PORT, KV_PORT, HTTP_PORT = 7000, 7001, 8000
FIRST_CACHE_TRANSFER = 1 << 40
"""Transfers of a request's KV have its id; those of cached prefixes are numbered from here."""


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all configuration values."""


class Peer(Frozen, frozen=True):
    """Another agent; `address` is its IPv4 address."""

    name: str
    role: Literal["router", "prefill", "decode", "client"]
    cluster: Literal["prfaas", "pd"]
    address: str
    profile: str


class Transport(Frozen, frozen=True):
    """How KV crosses between agents."""

    payload: Literal["synthetic", "verified"]
    connections: int
    chunk_bytes: int
    layer_group: int
    """Layers handed over together, once the last of them is computed."""
    congestion_control: str
    compression: str = ""
    """A key of `agents.profiles.COMPRESSIONS`, for policies that compress; empty: none."""


class Cache(Frozen, frozen=True):
    """Memory for cached prefixes in each cluster, in bytes at scale 1; 0: none is kept there."""

    prfaas_bytes: int = 0
    pd_bytes: int = 0


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
