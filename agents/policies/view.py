"""What a policy sees and what it answers: values only, so that a policy can be pure.

All of it is measured by the agents themselves (TCP_INFO of the KV connections, queue counters,
acknowledgements); nothing here knows what the link is meant to be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from agents.model import Lengths, System

Route = Literal["prfaas", "pd"]


@dataclass(frozen=True, slots=True)
class Config:
    """What a policy is told once, before the first request.

    `threshold_tokens`: the uncached length up to which a request stays in the PD cluster, to begin with.
    `params`: the policy's own settings by name; an unknown name is an error.
    `lengths`: profiled distribution of uncached lengths. `prior_arrival_per_s`: expected requests per second.
    """

    threshold_tokens: int
    params: Mapping[str, float]
    lengths: Lengths
    system: System
    prior_arrival_per_s: float


@dataclass(frozen=True, slots=True)
class Egress:
    """KV traffic that leaves the PrfaaS cluster, over the control interval that ended at `View.t_s`.

    `goodput_bps`: bits per second acknowledged by TCP during the interval. `acked_bytes`: the same in bytes.
    `backlog_bytes`: KV that prefill has produced and the receiver has not yet acknowledged, when it ended.
    `retrans_bytes`: retransmitted by TCP during the interval.
    `rtt_s`: smoothed round-trip time, mean over active connections. `min_rtt_s`: smallest one seen so far.
    """

    goodput_bps: float
    backlog_bytes: int
    retrans_bytes: int
    acked_bytes: int
    rtt_s: float
    min_rtt_s: float


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at `t_s`, seconds since the run began (monotonic).

    `queue_*`: requests waiting or running at a role. `active_*`: of these, the ones running now.
    """

    t_s: float
    egress: Egress
    queue_prfaas: int
    queue_pd: int
    queue_decode: int
    active_prfaas: int
    active_pd: int
    active_decode: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request to place: tokens to prefill, tokens to generate."""

    id: str
    uncached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Where prefill of one request runs, under which threshold, and why (one line for the record)."""

    route: Route
    threshold_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """What a policy carries from one control interval to the next.

    `capacity_bps`: its estimate of the egress capacity, None while the link is not binding.
    `reason`: why the threshold last changed. `memory`: anything else, read by that policy alone.
    """

    threshold_tokens: int
    capacity_bps: float | None
    reason: str
    memory: object = None


class Policy(Protocol):
    """A scheduling policy: a module with these three pure functions (no I/O, no clock, no randomness)."""

    def start(self, config: Config) -> State:
        """The state before the first request; ValueError for a parameter it does not know or cannot use."""

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:
        """Place one request."""

    def update(self, config: Config, state: State, view: View) -> State:
        """The state after one more control interval (250 ms by default)."""


def by_length(threshold_tokens: int, request: Request) -> Decision:
    """The paper's rule: uncached lengths up to the threshold stay in the PD cluster, longer ones leave."""
    if request.uncached_tokens <= threshold_tokens:
        return Decision(
            "pd", threshold_tokens, f"{request.uncached_tokens} uncached tokens <= {threshold_tokens}"
        )
    return Decision(
        "prfaas", threshold_tokens, f"{request.uncached_tokens} uncached tokens > {threshold_tokens}"
    )
