"""Behind the router's front: the requests in flight, and the policy's control loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

from agents import config, wire
from agents.fleet import Fleet, Flight, Instance
from agents.journal import Journal
from agents.metrics import Metrics
from agents.model import Lengths, System
from agents.policies import POLICIES
from agents.policies.view import Answer, Config, Egress, Placed, Request, State, View
from agents.prefixes import Prefixes
from agents.profiles import COMPRESSIONS, MODELS, PROFILES
from agents.ticks import Ticks


def policy_config(settings: config.Config) -> Config:
    """What the policy is told once."""
    scheduling, transport = settings.scheduling, settings.transport

    def profile(role: str, cluster: str) -> str:
        return next(peer.profile for peer in settings.having(role) if peer.cluster == cluster)

    def count(role: str, cluster: str) -> int:
        return sum(peer.cluster == cluster for peer in settings.having(role))

    pd = PROFILES[profile("decode", "pd")]
    n_prfaas = count("prefill", "prfaas")
    return Config(
        threshold_tokens=scheduling.threshold_tokens,
        params=scheduling.params,
        lengths=Lengths.from_quantiles(scheduling.length_quantiles),
        system=System(
            prfaas=PROFILES[profile("prefill", "prfaas")] if n_prfaas else pd,
            pd=pd,
            model=MODELS[settings.model],
            n_prfaas=n_prfaas,
            n_p=count("prefill", "pd"),
            n_d=count("decode", "pd"),
            output_tokens=scheduling.output_tokens,
            scale=settings.scale,
            compression=COMPRESSIONS[transport.compression] if transport.compression else None,
        ),
        prior_arrival_per_s=scheduling.prior_arrival_per_s,
    )


class Dispatcher:
    """Places requests, follows them, and lets the policy look at the cluster once per interval."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self.metrics = Metrics()
        self._policy = POLICIES[settings.scheduling.policy]
        self._fleet = Fleet(settings)
        self._prefixes = Prefixes(
            settings,
            self._fleet,
            self._compute,
            self._journal.note,
            lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call),
        )
        self._model = MODELS[settings.model]
        self._config = policy_config(settings)
        self._state: State = self._policy.start(self._config)
        self._flights: dict[int, Flight] = {}
        self._used: set[int] = set()
        self._next = 0
        self._steps = 0
        self._placed: list[Placed] = []
        self._answered: list[Answer] = []
        self._started_ns = self._looked_ns = time.monotonic_ns()
        self._ticks = Ticks(settings.scheduling.interval_ns / 1e9, self._control)
        self._acked_bytes = self._retrans_bytes = 0
        self._egress = Egress(0.0, 0, 0, 0, 0.0, 0.0)

    async def start(self) -> None:
        """Connect to every instance; the control loop runs from then on."""
        for instance in self._fleet.instances.values():
            instance.channel = await wire.Channel.open(
                instance.peer.address,
                config.CONTROL_PORT,
                partial(self._hear, instance),
                partial(self._lost, instance),
            )
        self._looked_ns = time.monotonic_ns()
        self._ticks.wake()

    def _lost(self, instance: Instance) -> None:
        """An instance went away: its requests fail."""
        instance.channel = None
        for flight in [one for one in instance.flights.values() if one.id in self._flights]:
            self._fail(flight, f"{instance.peer.name} went away")
        self._prefixes.lost(instance)

    def close(self) -> None:
        """Let go of the instances and of the journal."""
        self._ticks.stop()
        for instance in self._fleet.instances.values():
            if instance.channel is not None:
                instance.channel.close()
        self._journal.close()

    def exposition(self) -> bytes:
        """The text Prometheus scrapes."""
        self.metrics.cached(self._prefixes.stats())
        return self.metrics.exposition()

    def knows(self, request: int) -> bool:
        """Whether this id has been used before."""
        return request in self._used

    def submit(
        self,
        request: int | None,
        input_tokens: int,
        output_tokens: int,
        tenant: str = "default",
        chain: tuple[int, ...] = (),
    ) -> Flight:
        """Place a request and start it; `chain` names the blocks of its prompt, where prefixes are cached."""
        number = request if request is not None else self._next
        self._used.add(number)
        self._next = max(self._next, number + 1)
        now_ns = time.monotonic_ns()
        asked = Request(
            str(number), input_tokens, output_tokens, *self._prefixes.cached(chain, input_tokens), tenant
        )
        view = self._view(now_ns)
        decision = self._policy.route(self._config, self._state, view, asked)
        flight = Flight(number, asked, chain, now_ns, decision)
        flight.order_s = view.t_s if decision.order_s is None else decision.order_s
        self._flights[number] = flight
        self._placed.append(Placed(asked, decision.route))
        prefill, decode = self._fleet.idlest_prefill(decision.route), self._fleet.idlest_decode()
        if prefill is not None and decode is not None:
            flight.prefill, flight.decode = prefill.peer.name, decode.peer.name
            prefill.prefilling[number] = decode.decoding[number] = flight
        if flight.prefill:
            self._prefixes.place(flight)
        self._journal.note(
            "decision",
            now_ns,
            step=self._step(),
            id=number,
            route=decision.route,
            prefill=flight.prefill or None,
            decode=flight.decode or None,
            uncached_tokens=asked.uncached_tokens,
            cached_prfaas_tokens=asked.cached_prfaas_tokens,
            cached_pd_tokens=asked.cached_pd_tokens,
            threshold_tokens=decision.threshold_tokens,
            cache=decision.cache,
            compress=decision.compress,
            order_s=decision.order_s,
            reason=decision.reason,
            seen={"view": view, "request": asked},
        )
        if not flight.prefill:
            missing = "decode" if prefill is not None else f"{decision.route} prefill"
            self._fail(flight, f"no {missing} instance is up")
        elif not flight.waits:
            self._compute(flight)
        return flight

    def _step(self) -> int:
        """A number for what the policy was asked, in order."""
        self._steps += 1
        return self._steps

    def _compute(self, flight: Flight) -> None:
        """Everything that prefill needs is there: let it compute, and decode expect the KV."""
        prefill, decode = self._fleet.instances[flight.prefill], self._fleet.instances[flight.decode]
        compress = flight.decision.compress
        prompt_tokens = flight.request.input_tokens
        unpack_bytes = 0
        if compress:
            unpack_bytes = sum(
                self._model.end_bytes(layer, flight.kv_tokens, prompt_tokens, self._settings.scale)
                for layer in range(len(self._model.layers))
            )
        decode.send(
            "expect",
            id=flight.id,
            output_tokens=flight.request.output_tokens,
            unpack_bytes=unpack_bytes,
        )
        prefill.send(
            "prefill",
            id=flight.id,
            tokens=flight.computed_tokens,
            kv_tokens=flight.kv_tokens,
            prompt_tokens=prompt_tokens,
            decode=flight.decode,
            compress=compress,
            order_s=flight.order_s,
        )

    def _hear(self, instance: Instance, message: wire.Message) -> None:
        """What an instance says."""
        instance.heard_ns = time.monotonic_ns()
        match message["op"]:
            case "signals":
                instance.signals = message
            case "tokens":
                self._tokens(message["items"])
            case "became":
                instance.role = message["role"]
            case "fetched":
                self._prefixes.fetched(message["id"])
            case "sent" | "failed" if message["id"] >= config.FIRST_CACHE_TRANSFER:
                self._prefixes.ended(message["id"], failed=message["op"] == "failed")
            case op:
                flight = self._flights.get(message["id"])
                if op == "sent":
                    self._arrived(instance, message["id"])
                elif flight is None:
                    pass  # it ended before
                elif op == "prefilled":
                    flight.prefilled = True
                    self._prefixes.computed(flight)
                else:
                    assert op == "failed", op
                    self._fail(flight, message["cause"])

    def _arrived(self, prefill: Instance, number: int) -> None:
        """The KV of a request is at decode: prefill has nothing of it any more.

        Over a bad link its first token may be here before the word that it is prefilled.
        """
        flight = prefill.prefilling.pop(number, None)
        if flight is not None:
            flight.prefilled = True
            self._prefixes.computed(flight)
            self._prefixes.sent(flight)

    def _tokens(self, items: list[tuple[int, int, bool]]) -> None:
        now_ns = time.monotonic_ns()
        for number, count, last in items:
            flight = self._flights.get(number)
            if flight is None:
                continue
            route = flight.decision.route
            if count == 1:
                self._arrived(self._fleet.instances[flight.prefill], number)
                ttft_s = (now_ns - flight.sent_ns) / 1e9
                self.metrics.first_token(route, ttft_s)
                self._answered.append(Answer(route, flight.computed_tokens, ttft_s, flight.request.tenant))
            if last:
                self._flights.pop(number)
                self._fleet.instances[flight.decode].decoding.pop(number, None)
                self.metrics.ended(route, "completed")
            flight.progress.put_nowait(count)

    def _fail(self, flight: Flight, cause: str) -> None:
        """End a request without the rest of its tokens; its KV, wherever it is, is dropped."""
        decode = self._fleet.instances.get(flight.decode)
        if decode is not None and decode.channel is not None:
            decode.send("cancel", id=flight.id)
        self._flights.pop(flight.id, None)
        self._fleet.forget(flight.id)
        self._prefixes.failed(flight)
        flight.cause = cause
        flight.progress.put_nowait(0)
        self.metrics.ended(flight.decision.route, "failed")

    def _view(self, now_ns: int) -> View:
        fleet = self._fleet
        (queue_prfaas, active_prfaas), (queue_pd, active_pd) = fleet.queues("prfaas"), fleet.queues("pd")
        queue_decode, active_decode = fleet.decoding()
        return View(
            t_s=(now_ns - self._started_ns) / 1e9,
            egress=self._egress,
            queue_prfaas=queue_prfaas,
            queue_pd=queue_pd,
            queue_decode=queue_decode,
            active_prfaas=active_prfaas,
            active_pd=active_pd,
            active_decode=active_decode,
            n_p=len(fleet.serving("pd", "prefill")),
            n_d=len(fleet.serving("pd", "decode")),
            converting=fleet.converting,
            tenants=fleet.tenants(),
        )

    def _measure_egress(self, interval_s: float) -> Egress:
        """Sum what the PrfaaS instances reported since the last look, and what those that are silent hold."""
        reports = self._fleet.signals()
        acked = sum(report["acked_bytes"] for report in reports)
        retrans = sum(report["retrans_bytes"] for report in reports)
        active = [report for report in reports if report["active"]]
        minima = [report["min_rtt_s"] for report in reports if report["min_rtt_s"]]
        egress = Egress(
            goodput_bps=(acked - self._acked_bytes) * 8 / interval_s,
            backlog_bytes=sum(report["backlog_bytes"] for report in reports) + self._unheard_bytes(),
            retrans_bytes=retrans - self._retrans_bytes,
            acked_bytes=acked - self._acked_bytes,
            rtt_s=sum(report["rtt_s"] for report in active) / len(active) if active else 0.0,
            min_rtt_s=min(minima, default=0.0),
        )
        self._acked_bytes, self._retrans_bytes = acked, retrans
        return egress

    def _unheard_bytes(self) -> int:
        """KV that PrfaaS instances should have sent by now, of those that are silent for too long.

        Their reports cross the link, too: one that is cut leaves the last ones, which may look calm.
        """
        now_ns = time.monotonic_ns()
        return sum(
            self._model.kv_bytes(flight.kv_tokens, self._settings.scale)
            for instance in self._fleet.silent("prfaas", now_ns)
            for flight in instance.prefilling.values()
        )

    def _control(self) -> bool:
        """Once per interval: look, let the policy think, note what it saw and what it decided, do it."""
        now_ns = time.monotonic_ns()
        self._egress = self._measure_egress((now_ns - self._looked_ns) / 1e9)
        self._looked_ns = now_ns
        before = self._state
        view = replace(self._view(now_ns), placed=tuple(self._placed), answered=tuple(self._answered))
        self._placed.clear()
        self._answered.clear()
        state = self._state = self._policy.update(self._config, before, view)
        self.metrics.controlled(view, state)
        sent = view.egress.acked_bytes + view.egress.retrans_bytes
        moved = state.threshold_tokens != before.threshold_tokens
        self._journal.note(
            "control",
            now_ns,
            step=self._step(),
            threshold_tokens=state.threshold_tokens,
            previous_tokens=before.threshold_tokens,
            reason=state.reason if moved or state.prefill_instances != before.prefill_instances else "",
            capacity_bps=state.capacity_bps,
            regime=state.regime,
            goodput_bps=view.egress.goodput_bps,
            backlog_bytes=view.egress.backlog_bytes,
            retrans_ratio=view.egress.retrans_bytes / sent if sent else 0.0,
            queue_prfaas=view.queue_prfaas,
            queue_pd=view.queue_pd,
            queue_decode=view.queue_decode,
            n_prefill=view.n_p,
            n_decode=view.n_d,
            cache=self._prefixes.stats(),
            prefill_instances=state.prefill_instances,
            seen={"view": view},
        )
        if state.prefill_instances is not None:
            self._convert(state.prefill_instances, now_ns)
        if state.regime == "abundant":
            self._prefixes.copy_hot()
        return True

    def _convert(self, prefill_instances: int, now_ns: int) -> None:
        """Let one more instance change its role, if the policy wants it and none is changing."""
        change = self._fleet.convert(prefill_instances)
        if change is not None:
            instance, role = change
            self._journal.note("role", now_ns, instance=instance.peer.name, role=role)
