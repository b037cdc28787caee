"""A request's way through the instances: placed, followed, tried again when something is lost, ended once.

An attempt has two legs, the prefill instance (until its KV has arrived) and the decode instance. When one is
lost the other is told at once, and the request goes the way that `failures.policy` says: computed again in
the PD cluster, tried again in its own, or ended with the cause. While no instance is up for it, it waits.
Tokens that the client has are not generated again: they are computed like a part of the prompt.

A flight lives from its arrival to its end; what instances say of an attempt that is over is not heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from agents import config, wire
from agents.cache.pool import BLOCK_TOKENS
from agents.fleet import Fleet, Flight, Instance
from agents.journal import Journal
from agents.metrics import Metrics
from agents.policies.view import Answer
from agents.prefixes import Prefixes
from agents.profiles import MODELS, find

NEWS_S = 0.05
"""Where several instances end at once, the last of them is known to have after this."""
Action = Literal["recompute", "retry", "fail"]


class Attempts:
    """All requests in flight. `later` calls a function after so many seconds."""

    def __init__(
        self,
        settings: config.Config,
        fleet: Fleet,
        journal: Journal,
        metrics: Metrics,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._settings, self._fleet, self._journal, self._metrics = settings, fleet, journal, metrics
        self._model, self._later = MODELS[settings.model], later
        self._real = settings.compute is not None
        self._longest_tokens = min(
            find(peer.profile, settings.profiles).max_tokens for peer in settings.having("prefill")
        )
        self.room_bytes = min(settings.transport.send_pool_bytes, settings.transport.receive_pool_bytes)
        """KV that an instance of either role can hold."""
        self._home = any(peer.cluster == "pd" for peer in settings.having("prefill"))
        self._flights: dict[int, Flight] = {}
        self._held: dict[int, tuple[Flight, str]] = {}
        """Those to be tried again for which no instance is up, and what happened to them."""
        self.prefixes = Prefixes(settings, fleet, self._compute, journal.note, later)
        self.answered: list[Answer] = []
        """First tokens since whoever reads this emptied it."""

    def choose(self, flight: Flight) -> bool:
        """Take the instances with the least to do, if both are there; none that failed it, if possible."""
        prefill = self._fleet.idlest_prefill(flight.route, flight.avoid)
        decode = self._fleet.idlest_decode(flight.avoid)
        if prefill is None or decode is None:
            flight.prefill = flight.decode = ""
            return False
        flight.prefill, flight.decode = prefill.peer.name, decode.peer.name
        prefill.prefilling[flight.id] = decode.decoding[flight.id] = flight
        return True

    def start(self, flight: Flight) -> None:
        """A request for which `choose` was asked: off it goes, or on to what failures lead to."""
        self._flights[flight.id] = flight
        if flight.prefill:
            self._place(flight)
            return
        prefill = self._fleet.idlest_prefill(flight.route, flight.avoid)
        cause = f"no {'decode' if prefill is not None else f'{flight.route} prefill'} instance is up"
        if self._settings.failures.policy == "fail":
            self._failed(flight, cause)
            return
        if prefill is None:
            self._move(flight)
        self._hold(flight, cause)

    def _move(self, flight: Flight) -> None:
        """To the PD cluster, if that is the policy and it can prefill."""
        if self._settings.failures.policy == "recompute" and self._home:
            flight.route = "pd"

    def _hold(self, flight: Flight, cause: str) -> None:
        """Let it wait for an instance: at least for so long that whatever else has ended is known to have."""
        flight.prefill = flight.decode = ""
        self._held[flight.id] = (flight, cause)
        self.soon()

    def soon(self) -> None:
        """Look then whether there is an instance for those that wait."""
        self._later(NEWS_S, self.resume)

    def _place(self, flight: Flight) -> None:
        flight.spent += 1
        self.prefixes.place(flight)
        if not flight.waits:
            self._compute(flight)

    def _compute(self, flight: Flight) -> None:
        """Everything that prefill needs is there: let decode expect the KV, and prefill compute.

        With `destination_first` prefill hears of it once decode has room.
        """
        size_bytes = self._kv_bytes(flight.kv_tokens, flight.input_tokens)
        self._fleet.instances[flight.decode].send(
            "expect",
            id=flight.job,
            output_tokens=flight.request.output_tokens - flight.done,
            context_tokens=flight.input_tokens,
            kv_bytes=size_bytes,
            unpack_bytes=size_bytes if flight.compress else 0,
            **self._what_joins(flight),
        )
        if self._settings.transport.handover == "destination_first":
            flight.waits = True
        else:
            self._prefill(flight)

    def _prefill(self, flight: Flight) -> None:
        self._fleet.instances[flight.prefill].send(
            "prefill",
            id=flight.job,
            tokens=flight.computed_tokens,
            kv_tokens=flight.kv_tokens,
            prompt_tokens=flight.input_tokens,
            decode=flight.decode,
            compress=flight.compress,
            order_s=flight.order_s,
            since_ns=flight.sent_ns,
            **self._what_kernels_need(flight),
        )

    def _what_kernels_need(self, flight: Flight) -> dict[str, object]:
        """Token ids, and what of them is, or becomes, a cached prefix."""
        if not self._real:
            return {}
        return {"prompt": flight.prompt, "chain": self._full(flight), "state_tokens": flight.state_tokens}

    def _what_joins(self, flight: Flight) -> dict[str, object]:
        """Where decode has the KV before the last `kv_tokens`; and what came becomes prefix cache there.

        Within the PD cluster all comes, and prefill has kept the blocks.
        """
        if not self._real:
            return {}
        chain = self._full(flight) if flight.route == "prfaas" else ()
        return {"kv_tokens": flight.kv_tokens, "chain": chain}

    def _full(self, flight: Flight) -> tuple[int, ...]:
        """Ids of the full blocks of a prompt, where prefixes are cached."""
        blocks = flight.input_tokens // BLOCK_TOKENS
        return flight.chain[:blocks] if self.prefixes.manager is not None else ()

    def kv_bytes(self, tokens: int) -> int:
        """KV of a whole prompt."""
        return self._model.kv_bytes(tokens, self._settings.scale)

    def _kv_bytes(self, tokens: int, prompt_tokens: int) -> int:
        scale = self._settings.scale
        layers = range(len(self._model.layers))
        return sum(self._model.end_bytes(layer, tokens, prompt_tokens, scale) for layer in layers)

    def hear(self, instance: Instance, message: wire.Message) -> None:
        """What an instance says of the work that it was given."""
        match message["op"]:
            case "beat":
                self._alive(instance, message)
            case "tokens":
                self._tokens(message["items"])
            case "fetched":
                self.prefixes.fetched(message["id"])
            case "sent" | "failed" if message["id"] >= config.FIRST_CACHE_TRANSFER:
                self.prefixes.ended(message["id"], failed=message["op"] == "failed")
            case op:
                flight = self._flying(message["id"])
                if flight is not None:
                    self._step(flight, op, message)

    def _flying(self, job: int) -> Flight | None:
        """The request of a job, if this is the attempt that counts."""
        flight = self._flights.get(config.request_of(job))
        return flight if flight is not None and flight.job == job and flight.id not in self._held else None

    def _step(self, flight: Flight, op: str, message: wire.Message) -> None:
        flight.moved_ns = time.monotonic_ns()
        match op:
            case "reserved":
                flight.waits = False
                self._prefill(flight)
            case "prefilled":
                flight.prefilled = True
                self.prefixes.computed(flight)
            case "sent":
                self._arrived(flight)
            case "failed":
                self._again(flight, message["cause"], (flight.prefill, flight.decode))
            case _:
                raise AssertionError(op)

    def _alive(self, instance: Instance, message: wire.Message) -> None:
        """An instance that computes moves its queue; one that decodes, whatever waits for a place."""
        now_ns = time.monotonic_ns()
        moved = set(message["moved"])
        for flight in instance.prefilling.values():
            if flight.job in moved or (message["computing"] and not flight.prefilled):
                flight.moved_ns = now_ns
        if message["decoding"]:
            for flight in instance.decoding.values():
                if flight.arrived or flight.waits:
                    flight.moved_ns = now_ns

    def _arrived(self, flight: Flight) -> None:
        """The KV of a request is at decode: prefill has nothing of it any more.

        Over a bad link its first token may be here before the word that it is prefilled, or sent.
        """
        if flight.arrived:
            return
        flight.arrived = flight.prefilled = True
        self._fleet.instances[flight.prefill].prefilling.pop(flight.id, None)
        self.prefixes.computed(flight)
        self.prefixes.sent(flight)

    def _tokens(self, items: list[Any]) -> None:
        now_ns = time.monotonic_ns()
        for job, count, last, *ids in items:
            flight = self._flying(job)
            if flight is None:
                continue
            flight.moved_ns = now_ns
            if count == 1:
                self._arrived(flight)
                if not flight.told:
                    self._first(flight, now_ns)
            if ids:
                _take(flight, count, ids[0])
            flight.told = max(flight.told, flight.done + count)
            if last:
                self._end(flight, "completed")
            flight.progress.put_nowait(flight.told)

    def _first(self, flight: Flight, now_ns: int) -> None:
        ttft_s = (now_ns - flight.sent_ns) / 1e9
        self._metrics.first_token(flight.route, ttft_s)
        self.answered.append(Answer(flight.route, flight.computed_tokens, ttft_s, flight.request.tenant))

    def _end(self, flight: Flight, state: str) -> None:
        del self._flights[flight.id]
        self._held.pop(flight.id, None)
        self._fleet.forget(flight.id)
        self._metrics.ended(flight.route, state)

    def lost(self, instance: Instance, cause: str) -> None:
        """All that an instance had is gone, KV on its way to it or from it too."""
        for flight in list(instance.flights.values()):
            self._again(flight, cause, (instance.peer.name,))
        self.prefixes.lost(instance)

    def abandon(self, flight: Flight) -> None:
        """Nobody waits for the answer any more."""
        if flight.id in self._flights:
            self._stop(flight)
            self._failed(flight, "the client went away")

    def excuse(self, now_ns: int) -> None:
        """Count from now on: nobody was listening until now."""
        for flight in self._flights.values():
            flight.moved_ns = now_ns
        for instance in self._fleet.instances.values():
            if instance.session is not None:
                instance.session.heard_ns = now_ns

    def check(self, now_ns: int) -> None:
        """Give up what has not moved for too long; once per control interval."""
        if "no_timeouts" in self._settings.flaws:
            return
        timeouts = self._settings.timeouts
        for flight in list(self._flights.values()):
            if now_ns - flight.moved_ns > timeouts.router_ns:
                _, before = self._held.get(flight.id, (flight, ""))
                waited = f"nothing moved for {timeouts.router_ns / 1e9:g} s"
                self._stop(flight)
                self._failed(flight, f"{before}, and {waited}" if before else waited)
        for instance in self._fleet.instances.values():
            silent_ns = now_ns - instance.heard_ns
            if not instance.up and instance.flights and silent_ns > timeouts.lease_ns:
                self.lost(instance, f"{instance.peer.name} has been silent for {silent_ns / 1e9:.1f} s")

    def _again(self, flight: Flight, cause: str, blamed: tuple[str, ...]) -> None:
        """An attempt is lost: stop what is left of it, and do what the failure policy says."""
        self._stop(flight)
        failures = self._settings.failures
        if failures.policy == "fail" or flight.spent >= failures.attempts:
            self._failed(flight, cause)
            return
        if not self._real:  # real kernels generate them once more, and the same ones
            flight.done = flight.told
        flight.avoid |= set(blamed)
        flight.prefilled = flight.arrived = flight.waits = False
        self._move(flight)
        too_large = self.kv_bytes(flight.input_tokens) > self.room_bytes
        if too_large or flight.input_tokens > self._longest_tokens:
            self._failed(flight, cause)
        else:
            self._hold(flight, cause)

    def resume(self) -> None:
        """Let go on what waits for an instance, if there is one now."""
        for flight, cause in list(self._held.values()):
            if self.choose(flight):
                del self._held[flight.id]
                flight.attempt += 1
                self._note(flight, self._settings.failures.policy, cause)
                self._metrics.again(self._settings.failures.policy)
                self._place(flight)

    def _stop(self, flight: Flight) -> None:
        """Tell both legs that the attempt is over; each drops its KV."""
        self.prefixes.failed(flight)
        if "no_cancel" not in self._settings.flaws:
            for name in (flight.prefill, flight.decode):
                if name:
                    self._fleet.instances[name].send("cancel", id=flight.job)
        self._fleet.forget(flight.id)

    def _failed(self, flight: Flight, cause: str) -> None:
        """End a request without the rest of its tokens."""
        self._note(flight, "fail", cause)
        flight.cause = cause
        self._end(flight, "failed")
        flight.progress.put_nowait(0)

    def _note(self, flight: Flight, action: Action, cause: str) -> None:
        flight.moved_ns = time.monotonic_ns()
        self._journal.note(
            "retry",
            flight.moved_ns,
            id=flight.id,
            attempt=flight.attempt,
            cause=cause,
            action=action,
            route=flight.route,
            prefill=flight.prefill or None,
            decode=flight.decode or None,
        )


def _take(flight: Flight, count: int, ids: list[int]) -> None:
    """Keep the last ones of `count` generated tokens, but for those that an earlier attempt has told."""
    new_from = len(flight.token_ids) - (count - len(ids))
    assert new_from >= 0
    flight.token_ids += ids[new_from:]
