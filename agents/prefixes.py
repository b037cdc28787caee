"""The hands of the global KV manager: places prompts upon what is cached, moves prefixes between clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from agents import config
from agents.cache.kv_manager import OTHER, CacheStats, Cluster, KvManager
from agents.cache.pool import BLOCK_TOKENS
from agents.fleet import Fleet, Flight, Instance
from agents.profiles import MODELS, find

HOT_TRIED = 16
"""So many of the hottest are tried, as one for which there is no room now must not hold up the others."""


class _Fetch(msgspec.Struct):
    """A prefix on its way between two instances; without a flight it is copied because it is hot."""

    source: str
    target: str
    tokens: int
    flight: Flight | None
    cluster: Cluster
    """Where it goes."""


class Prefixes:
    """What both clusters have cached. `compute` is called when a request need not wait for a prefix any more.

    `later` calls a function after so many seconds.

    Without memory for a cache nothing is ever cached, and every prompt is computed in full.
    """

    def __init__(
        self,
        settings: config.Config,
        fleet: Fleet,
        compute: Callable[[Flight], None],
        note: Callable[..., None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._settings, self._fleet = settings, fleet
        self._compute, self._note, self._later = compute, note, later
        cache = settings.cache
        self.manager: KvManager | None = None
        if cache.prfaas_bytes or cache.pd_bytes:
            capacity_bytes: dict[Cluster, int] = {"prfaas": cache.prfaas_bytes, "pd": cache.pd_bytes}
            self.manager = KvManager(MODELS[settings.model], capacity_bytes)
        self._fetches: dict[int, _Fetch] = {}
        self._next = config.FIRST_CACHE_TRANSFER + time.monotonic_ns()
        """Not what a router before this one called its own."""

    def stats(self) -> dict[Cluster, CacheStats]:
        """Both caches now; nothing where there is none."""
        return self.manager.stats() if self.manager is not None else {}

    def cached(self, chain: tuple[int, ...], tokens: int) -> tuple[int, int]:
        """How many of the prompt's tokens PrfaaS and PD cluster have in their caches."""
        if self.manager is None:
            return 0, 0
        match = self.manager.match(chain, tokens)
        return match.prfaas_tokens, match.pd_tokens

    def place(self, flight: Flight) -> None:
        """Take what the cache has for a request whose instances are chosen.

        If it waits then, a longer prefix is on its way from the other cluster, and `compute` follows. Real
        kernels use no cache once an attempt was lost: what could not be read is not tried again.
        """
        if flight.attempt and self._settings.compute is not None:
            flight.state_tokens = ()
            self._expect(flight, 0, 0)
            return
        cluster: Cluster = flight.route
        cached = {
            "prfaas": flight.request.cached_prfaas_tokens,
            "pd": flight.request.cached_pd_tokens,
        }
        other = OTHER[cluster]
        if flight.decision.cache == "best" and not flight.attempt and cached[other] > cached[cluster]:
            self._expect(flight, cached[other], 0)
            number = self._begin_fetch(cluster, flight.chain, cached[other], flight.prefill, flight)
            flight.waits = number is not None
            if number is not None:
                # Waiting longer than computing takes is worse than computing.
                name = self._fleet.instances[flight.prefill].peer.profile
                profile = find(name, self._settings.profiles)
                patience_s = profile.prefill_s(flight.input_tokens - cached[cluster])
                self._later(patience_s, partial(self._finish, number, arrived=False))
        if not flight.waits:
            self._begin(flight)

    def _begin(self, flight: Flight) -> None:
        if self.manager is None:
            self._expect(flight, 0, 0)
            return
        lease = self.manager.begin(flight.id, flight.route, flight.chain, flight.input_tokens)
        flight.state_tokens = self.manager.states_to_come(flight.id, flight.route)
        self._expect(flight, lease.cached_tokens, lease.resident_tokens)

    def _expect(self, flight: Flight, cached_tokens: int, resident_tokens: int) -> None:
        """Within the PD cluster the whole KV goes to decode; over the link what is not there already.

        The last token is computed in any case, and its KV sent.
        """
        instance = self._fleet.instances[flight.prefill]
        flight.computed_tokens = flight.input_tokens - cached_tokens
        sent_already = resident_tokens if flight.route == "prfaas" else 0
        flight.kv_tokens = max(flight.input_tokens - sent_already, 1)
        profile = find(instance.peer.profile, self._settings.profiles)
        flight.work_s = profile.prefill_s(flight.computed_tokens)

    def _begin_fetch(
        self, cluster: Cluster, chain: tuple[int, ...], tokens: int, target: str, flight: Flight | None
    ) -> int | None:
        """Let an instance of the other cluster send a prefix; the number of the transfer, if one does."""
        assert self.manager is not None
        source = self._fleet.idlest_prefill(OTHER[cluster]) or (
            self._fleet.idlest_decode() if cluster == "prfaas" else None
        )
        if source is None:
            return None
        number = self._next
        fetch = self.manager.fetch_begin(number, OTHER[cluster], cluster, chain, tokens)
        if fetch is None:
            return None
        self._next += 1
        crossing = fetch.tokens - fetch.held_tokens
        self._fetches[number] = _Fetch(source.peer.name, target, crossing, flight, cluster)
        what: dict[str, object] = {"id": number, "kv_tokens": crossing, "prompt_tokens": fetch.tokens}
        if self._settings.compute is not None:
            what["chain"] = chain[: fetch.tokens // BLOCK_TOKENS]
            self._fleet.instances[target].send("land", **what)
        source.send("ship", **what, to=target, since_ns=None if flight is None else flight.sent_ns)
        return number

    def copy_hot(self) -> None:
        """Begin to copy a prefix that one cluster is often asked for and the other one lacks.

        One at a time: copies share the link with requests, which come first.
        """
        if self.manager is None or any(one.flight is None for one in self._fetches.values()):
            return
        for prefix in self.manager.hot(HOT_TRIED):
            target = self._fleet.idlest_prefill(prefix.target)
            if target is None:
                continue
            if (
                self._begin_fetch(prefix.target, prefix.chain, prefix.tokens, target.peer.name, None)
                is not None
            ):
                return

    def fetched(self, number: int) -> None:
        """A prefix has arrived: it is cached there now, and whoever waited for it is computed."""
        self._finish(number, arrived=True)

    def ended(self, number: int, *, failed: bool) -> None:
        """The sender's word on a prefix; if it failed, whoever waited does without."""
        if failed:
            self._finish(number, arrived=False)

    def _finish(self, number: int, *, arrived: bool) -> None:
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return
        assert self.manager is not None
        self._note(
            "fetch",
            time.monotonic_ns(),
            id=number,
            request=None if fetch.flight is None else fetch.flight.id,
            cluster=fetch.cluster,
            tokens=fetch.tokens,
            arrived=arrived,
        )
        if arrived:
            self.manager.fetch_landed(number)
        else:
            for name in (fetch.source, fetch.target):
                self._fleet.instances[name].send("cancel", id=number)
        flight = fetch.flight
        if flight is not None:
            flight.waits = False
            self._begin(flight)
        self.manager.fetch_end(number)
        if flight is not None:
            self._compute(flight)

    def lost(self, instance: Instance) -> None:
        """An instance went away and its requests failed; what it was sending, or getting, will not arrive."""
        name = instance.peer.name
        for number, fetch in list(self._fetches.items()):
            if name in (fetch.source, fetch.target):
                self._finish(number, arrived=False)

    def computed(self, flight: Flight) -> None:
        """Prefill is done: what was computed is there for others."""
        if self.manager is not None:
            self.manager.computed(flight.id)

    def sent(self, flight: Flight) -> None:
        """Its KV is at decode: the PD cluster keeps the full blocks; no state that others can use came."""
        if self.manager is None:
            return
        self.manager.end(flight.id)
        if flight.route == "prfaas":
            self.manager.store("pd", flight.chain, flight.input_tokens, state=False)

    def failed(self, flight: Flight) -> None:
        """An attempt ended early: whatever it held is free again, and it waits for no prefix any more."""
        for fetch in self._fetches.values():
            if fetch.flight is flight:
                fetch.flight = None
        if self.manager is not None:
            self.manager.end(flight.id)
