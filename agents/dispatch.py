"""Behind the router's front: the agents, the requests in flight, and the policy's control loop."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import msgspec

from agents import config, wire
from agents.journal import Journal
from agents.metrics import Metrics
from agents.model import Lengths, System
from agents.policies import POLICIES
from agents.policies.view import Config, Decision, Egress, Request, State, View
from agents.profiles import MODELS, PROFILES
from agents.ticks import Ticks


class Flight(msgspec.Struct):
    """One request between its arrival and its end."""

    id: int
    input_tokens: int
    output_tokens: int
    sent_ns: int
    decision: Decision
    prefill: str = ""
    decode: str = ""
    prefilled: bool = False
    cause: str | None = None
    progress: asyncio.Queue[int] = msgspec.field(default_factory=asyncio.Queue)

    async def next(self) -> int:
        """Wait for more tokens; returns how many there are so far. `cause` is set if there will be none."""
        return await self.progress.get()


class _Instance(msgspec.Struct):
    """A prefill or decode instance as the router knows it."""

    peer: config.Peer
    channel: wire.Channel | None = None
    flights: dict[int, Flight] = {}
    signals: wire.Message = {}


class Dispatcher:
    """Places requests, follows them, and lets the policy look at the cluster once per interval."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self.metrics = Metrics()
        scheduling = settings.scheduling
        self._policy = POLICIES[scheduling.policy]
        self._prefills = {peer.name: _Instance(peer) for peer in settings.having("prefill")}
        self._decodes = {peer.name: _Instance(peer) for peer in settings.having("decode")}
        self._model = MODELS[settings.model]
        self._config = Config(
            threshold_tokens=scheduling.threshold_tokens,
            params=scheduling.params,
            lengths=Lengths.from_quantiles(scheduling.length_quantiles),
            system=self._system(),
            prior_arrival_per_s=scheduling.prior_arrival_per_s,
        )
        self._state: State = self._policy.start(self._config)
        self._flights: dict[int, Flight] = {}
        self._used: set[int] = set()
        self._started_ns = self._looked_ns = time.monotonic_ns()
        self._ticks = Ticks(scheduling.interval_ns / 1e9, self._control)
        self._acked_bytes = self._retrans_bytes = 0
        self._egress = Egress(0.0, 0, 0, 0, 0.0, 0.0)

    def _system(self) -> System:
        def profile(role: str, cluster: str) -> str:
            return next(peer.profile for peer in self._settings.having(role) if peer.cluster == cluster)

        def count(role: str, cluster: str) -> int:
            return sum(peer.cluster == cluster for peer in self._settings.having(role))

        return System(
            prfaas=PROFILES[profile("prefill", "prfaas")],
            pd=PROFILES[profile("decode", "pd")],
            model=self._model,
            n_prfaas=count("prefill", "prfaas"),
            n_p=count("prefill", "pd"),
            n_d=count("decode", "pd"),
            output_tokens=self._settings.scheduling.output_tokens,
            scale=self._settings.scale,
        )

    async def start(self) -> None:
        """Connect to every agent; the control loop runs from then on."""
        for instances, handle in ((self._prefills, self._from_prefill), (self._decodes, self._from_decode)):
            for name in sorted(instances):
                instance = instances[name]
                instance.channel = await wire.Channel.open(
                    instance.peer.address,
                    config.CONTROL_PORT,
                    partial(handle, instance),
                    partial(self._lost, instance),
                )
        self._looked_ns = time.monotonic_ns()
        self._ticks.wake()

    def _lost(self, instance: _Instance) -> None:
        """An agent went away: its requests fail."""
        instance.channel = None
        for flight in list(instance.flights.values()):
            self._fail(flight, f"{instance.peer.name} went away")

    def close(self) -> None:
        """Let go of the agents and of the journal."""
        self._ticks.stop()
        for instance in (*self._prefills.values(), *self._decodes.values()):
            if instance.channel is not None:
                instance.channel.close()
        self._journal.close()

    def knows(self, request: int) -> bool:
        """Whether this id has been used before."""
        return request in self._used

    def submit(self, request: int | None, input_tokens: int, output_tokens: int) -> Flight:
        """Place a request and start it."""
        number = request if request is not None else max(self._used, default=-1) + 1
        self._used.add(number)
        now_ns = time.monotonic_ns()
        view = self._view(now_ns)
        decision = self._policy.route(
            self._config, self._state, view, Request(str(number), input_tokens, output_tokens)
        )
        flight = Flight(number, input_tokens, output_tokens, now_ns, decision)
        self._flights[number] = flight
        prefill = self._idlest_prefill(decision.route)
        decode = self._idlest_decode()
        if prefill is None or decode is None:
            self._fail(flight, f"no {'decode' if prefill else decision.route + ' prefill'} instance is up")
            return flight
        flight.prefill, flight.decode = prefill.peer.name, decode.peer.name
        prefill.flights[number] = decode.flights[number] = flight
        self._journal.note(
            "decision",
            now_ns,
            id=number,
            route=decision.route,
            prefill=flight.prefill,
            decode=flight.decode,
            uncached_tokens=input_tokens,
            threshold_tokens=decision.threshold_tokens,
            reason=decision.reason,
        )
        assert prefill.channel is not None
        assert decode.channel is not None
        decode.channel.send(
            "expect",
            id=number,
            tokens=input_tokens,
            kv_bytes=self._model.kv_bytes(input_tokens, self._settings.scale),
            output_tokens=output_tokens,
        )
        prefill.channel.send("prefill", id=number, tokens=input_tokens, decode=flight.decode)
        return flight

    def _idlest_prefill(self, route: str) -> _Instance | None:
        """The instance of the chosen cluster that will be free first."""

        def work_s(instance: _Instance) -> float:
            profile = PROFILES[instance.peer.profile]
            return sum(
                profile.prefill_s(flight.input_tokens)
                for flight in instance.flights.values()
                if not flight.prefilled
            )

        able = [one for one in self._prefills.values() if one.peer.cluster == route and one.channel]
        return min(able, key=work_s, default=None)

    def _idlest_decode(self) -> _Instance | None:
        able = [one for one in self._decodes.values() if one.channel]
        return min(able, key=lambda one: len(one.flights), default=None)

    def _from_prefill(self, instance: _Instance, message: wire.Message) -> None:
        if message["op"] == "signals":
            instance.signals = message
            return
        flight = self._flights.get(message["id"])
        if flight is None:
            return
        if message["op"] == "prefilled":
            flight.prefilled = True  # its KV may still be on its way: not until a token has the instance done
        else:
            assert message["op"] == "failed"
            self._fail(flight, message["cause"])

    def _from_decode(self, _instance: _Instance, message: wire.Message) -> None:
        if message["op"] == "failed":
            flight = self._flights.get(message["id"])
            if flight is not None:
                self._fail(flight, message["cause"])
            return
        now_ns = time.monotonic_ns()
        for number, total, last in message["items"]:
            flight = self._flights.get(number)
            if flight is None:
                continue
            if total == 1:
                self._prefills[flight.prefill].flights.pop(number, None)
                self.metrics.first_token(flight.decision.route, (now_ns - flight.sent_ns) / 1e9)
            if last:
                self._end(flight)
                self.metrics.ended(flight.decision.route, "completed")
            flight.progress.put_nowait(total)

    def _fail(self, flight: Flight, cause: str) -> None:
        """End a request without the rest of its tokens; its KV, wherever it is, is dropped."""
        decode = self._decodes.get(flight.decode)
        if decode is not None and decode.channel is not None:
            decode.channel.send("cancel", id=flight.id)
        self._end(flight)
        flight.cause = cause
        flight.progress.put_nowait(0)
        self.metrics.ended(flight.decision.route, "failed")

    def _end(self, flight: Flight) -> None:
        self._flights.pop(flight.id, None)
        for instances in (self._prefills, self._decodes):
            for instance in instances.values():
                instance.flights.pop(flight.id, None)

    def _view(self, now_ns: int) -> View:
        def queue(cluster: str) -> tuple[int, int]:
            counts = [
                sum(not flight.prefilled for flight in one.flights.values())
                for one in self._prefills.values()
                if one.peer.cluster == cluster
            ]
            return sum(counts), sum(count > 0 for count in counts)

        (queue_prfaas, active_prfaas), (queue_pd, active_pd) = queue("prfaas"), queue("pd")
        decoding = [
            sum(flight.prefilled for flight in one.flights.values()) for one in self._decodes.values()
        ]
        slots = self._config.system.pd.bs_max
        return View(
            t_s=(now_ns - self._started_ns) / 1e9,
            egress=self._egress,
            queue_prfaas=queue_prfaas,
            queue_pd=queue_pd,
            queue_decode=sum(decoding),
            active_prfaas=active_prfaas,
            active_pd=active_pd,
            active_decode=sum(min(count, slots) for count in decoding),
        )

    def _measure_egress(self, interval_s: float) -> Egress:
        """Sum what the PrfaaS instances reported since the last look."""
        reports = [
            one.signals for one in self._prefills.values() if one.peer.cluster == "prfaas" and one.signals
        ]
        acked = sum(report["acked_bytes"] for report in reports)
        retrans = sum(report["retrans_bytes"] for report in reports)
        active = [report for report in reports if report["active"]]
        minima = [report["min_rtt_s"] for report in reports if report["min_rtt_s"]]
        egress = Egress(
            goodput_bps=(acked - self._acked_bytes) * 8 / interval_s,
            backlog_bytes=sum(report["backlog_bytes"] for report in reports),
            retrans_bytes=retrans - self._retrans_bytes,
            acked_bytes=acked - self._acked_bytes,
            rtt_s=sum(report["rtt_s"] for report in active) / len(active) if active else 0.0,
            min_rtt_s=min(minima, default=0.0),
        )
        self._acked_bytes, self._retrans_bytes = acked, retrans
        return egress

    def _control(self) -> bool:
        """Once per interval: look, let the policy think, note what it saw and what it decided."""
        now_ns = time.monotonic_ns()
        self._egress = self._measure_egress((now_ns - self._looked_ns) / 1e9)
        self._looked_ns = now_ns
        view, before = self._view(now_ns), self._state
        self._state = self._policy.update(self._config, before, view)
        self.metrics.controlled(view, self._state)
        sent = view.egress.acked_bytes + view.egress.retrans_bytes
        self._journal.note(
            "control",
            now_ns,
            threshold_tokens=self._state.threshold_tokens,
            previous_tokens=before.threshold_tokens,
            reason=self._state.reason if self._state.threshold_tokens != before.threshold_tokens else "",
            capacity_bps=self._state.capacity_bps,
            goodput_bps=view.egress.goodput_bps,
            backlog_bytes=view.egress.backlog_bytes,
            retrans_ratio=view.egress.retrans_bytes / sent if sent else 0.0,
            queue_prfaas=view.queue_prfaas,
            queue_pd=view.queue_pd,
            queue_decode=view.queue_decode,
        )
        return True
