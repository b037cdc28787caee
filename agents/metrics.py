"""The router's Prometheus metrics; names follow vLLM where it has them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agents.cache.kv_manager import CacheStats, Cluster
from agents.policies.view import State, View

_TTFT_BUCKETS_S = (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Metrics:
    """One registry per router."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._ttft = Histogram(
            "router_time_to_first_token_seconds",
            "Arrival at the router to the first token",
            ["route"],
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self._requests = Counter(
            "router_requests", "Requests that ended", ["route", "state"], registry=self._registry
        )
        self._retries = Counter(
            "router_request_retries",
            "Attempts after a failure",
            ["policy"],
            registry=self._registry,
        )
        self._queue = Gauge(
            "router_num_requests", "Requests waiting or running", ["role"], registry=self._registry
        )
        self._threshold = self._gauge("router_threshold_tokens", "Uncached length from which prefill leaves")
        self._goodput = self._gauge("router_egress_goodput_bps", "Acknowledged by TCP in the last interval")
        self._backlog = self._gauge("router_egress_backlog_bytes", "KV produced and not yet acknowledged")
        self._roles = Gauge(
            "router_pd_instances", "Instances of the PD cluster", ["role"], registry=self._registry
        )
        self._cache_blocks = Gauge(
            "router_prefix_cache_blocks", "Blocks of 512 tokens", ["cluster", "use"], registry=self._registry
        )
        self._cache_queries = self._cache_counter("queries", "Prompt tokens looked up in the prefix cache")
        self._cache_hits = self._cache_counter("hits", "Of these, tokens that the prefix cache gave")
        self._capacity = self._gauge("router_egress_capacity_bps", "The policy's estimate; 0: not binding")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self._registry)

    def _cache_counter(self, name: str, text: str) -> Gauge:
        """A counter that is kept elsewhere, so that it is set."""
        return Gauge(f"router_prefix_cache_{name}", text, ["cluster"], registry=self._registry)

    def cached(self, stats: Mapping[Cluster, CacheStats]) -> None:
        """The state of both clusters' caches."""
        for cluster, now in stats.items():
            self._cache_queries.labels(cluster).set(now.asked_tokens)
            self._cache_hits.labels(cluster).set(now.hit_tokens)
            for use in ("free", "prefix", "transfer"):
                self._cache_blocks.labels(cluster, use).set(getattr(now, f"{use}_blocks"))

    def first_token(self, route: str, ttft_s: float) -> None:
        """A request's first token was passed on."""
        self._ttft.labels(route).observe(ttft_s)

    def ended(self, route: str, state: str) -> None:
        """A request reached its terminal state."""
        self._requests.labels(route, state).inc()

    def again(self, policy: str) -> None:
        """A request is tried once more."""
        self._retries.labels(policy).inc()

    def controlled(self, view: View, state: State) -> None:
        """A control interval went by."""
        self._threshold.set(state.threshold_tokens)
        self._goodput.set(view.egress.goodput_bps)
        self._backlog.set(view.egress.backlog_bytes)
        self._capacity.set(state.capacity_bps or 0)
        for role, count in (
            ("prfaas", view.queue_prfaas),
            ("pd", view.queue_pd),
            ("decode", view.queue_decode),
        ):
            self._queue.labels(role).set(count)
        for role, count in (("prefill", view.n_p), ("decode", view.n_d), ("converting", view.converting)):
            self._roles.labels(role).set(count)

    def exposition(self) -> bytes:
        """The text Prometheus scrapes."""
        return generate_latest(self._registry)
