"""What a policy sees and what it answers: values only, so that a policy can be pure.

All of it is measured by the agents themselves (TCP_INFO of the KV connections, queue counters,
acknowledgements); nothing here knows what the link is meant to be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from agents.config import Log
from agents.model import Lengths, System

Route = Literal["prfaas", "pd"]
Cache = Literal["own", "best"]
Regime = Literal["scarce", "abundant"]


@dataclass(frozen=True, slots=True)
class Config:
    """What a policy is told once, before the first request.

    `threshold_tokens`: the uncached length up to which a request stays in the PD cluster, to begin with.
    `params`: the policy's own settings by name; an unknown name is an error.
    `lengths`: profiled distribution of uncached lengths. `prior_arrival_per_s`: expected requests per second.
    `system`: the clusters as they are at the start; roles in the PD cluster may change (`View.n_p`).
    `log`: the decisions of another run, for `recorded`.
    """

    threshold_tokens: int
    params: Mapping[str, float]
    lengths: Lengths
    system: System
    prior_arrival_per_s: float
    log: Log | None = None


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
class Request:
    """A request to place: tokens of the prompt, tokens to generate.

    `cached_*_tokens`: how much of the prompt's beginning the cluster's prefix cache holds, usable there.
    """

    id: str
    input_tokens: int
    output_tokens: int
    cached_prfaas_tokens: int = 0
    cached_pd_tokens: int = 0
    tenant: str = "default"

    @property
    def uncached_tokens(self) -> int:
        """What the PD cluster would have to compute with its own cache, at least 1."""
        return self.input_tokens - self.cached_pd_tokens

    @property
    def fresh_tokens(self) -> int:
        """What has to be computed with the longest prefix that any cluster holds, at least 1."""
        return self.input_tokens - max(self.cached_pd_tokens, self.cached_prfaas_tokens)


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that was placed in the interval, and where."""

    request: Request
    route: Route


@dataclass(frozen=True, slots=True)
class Answer:
    """A request whose first token came in the interval; `ttft_s` since it reached the router.

    `computed_tokens`: the prompt without what the cache gave.
    """

    route: Route
    computed_tokens: int
    ttft_s: float
    tenant: str


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """Prefill of one tenant that is not done yet.

    `work_s`: seconds on one instance of the PrfaaS cluster, by the profile, running requests in full, and
    `requests` so many of them; `pd_work_s`: the same of the PD cluster.
    """

    tenant: str
    requests: int
    work_s: float
    pd_work_s: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """The clusters at `t_s`, seconds since the run began (monotonic).

    `queue_*`: requests waiting or running at a role. `active_*`: of these, the ones running now.
    `n_p`, `n_d`: instances of the PD cluster that take new prefill or decode work now; `converting`: those on
    their way from one role to the other. `tenants`: by name, those with prefill to be done.
    `placed`, `answered`: what happened in the interval that ended, in order; empty for `route`.
    """

    t_s: float
    egress: Egress
    queue_prfaas: int
    queue_pd: int
    queue_decode: int
    active_prfaas: int
    active_pd: int
    active_decode: int
    n_p: int = 0
    n_d: int = 0
    converting: int = 0
    tenants: tuple[TenantLoad, ...] = ()
    placed: tuple[Placed, ...] = ()
    answered: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Where prefill of one request runs, under which threshold, and why (one line for the record).

    `cache`: compute with what the chosen cluster's cache has (`own`), or fetch a longer prefix from the
    other cluster first, if it has one (`best`). `compress`: send the KV compressed. `order_s`: the prefill
    instance takes those with the least first; None: by arrival, which is `View.t_s`.
    """

    route: Route
    threshold_tokens: int
    reason: str
    cache: Cache = "own"
    compress: bool = False
    order_s: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What a policy carries from one control interval to the next.

    `capacity_bps`: its estimate of the egress capacity, None while the link is not binding.
    `reason`: why the threshold last changed. `memory`: anything else, read by that policy alone.
    `regime`: whether bandwidth is scarce; while it is abundant hot prefixes are copied between clusters.
    `prefill_instances`: how many instances of the PD cluster should do prefill; None: as they are.
    """

    threshold_tokens: int
    capacity_bps: float | None
    reason: str
    memory: object = None
    regime: Regime = "scarce"
    prefill_instances: int | None = None


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
