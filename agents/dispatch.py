"""Behind the router's front: the requests in flight, and the policy's control loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from agents import config, wire
from agents.attempts import Attempts
from agents.fleet import Fleet, Flight, Instance, given_role
from agents.journal import Journal
from agents.metrics import Metrics
from agents.model import Lengths, System
from agents.policies.failure import PolicyFailure
from agents.policies.find import find as find_policy
from agents.policies.view import Config, Egress, Placed, Request, State, View
from agents.profiles import COMPRESSIONS, MODELS, ComputeProfile, find
from agents.session import Session
from agents.ticks import Ticks


def policy_config(settings: config.Config) -> Config:
    """What the policy is told once."""
    scheduling, transport = settings.scheduling, settings.transport

    def profile(role: str, cluster: str) -> ComputeProfile:
        name = next(peer.profile for peer in settings.having(role) if peer.cluster == cluster)
        return find(name, settings.profiles)

    def count(role: str, cluster: str) -> int:
        return sum(peer.cluster == cluster for peer in settings.having(role))

    pd = profile("decode", "pd")
    n_prfaas = count("prefill", "prfaas")
    return Config(
        threshold_tokens=scheduling.threshold_tokens,
        params=scheduling.params,
        lengths=Lengths.from_quantiles(scheduling.length_quantiles),
        system=System(
            prfaas=profile("prefill", "prfaas") if n_prfaas else pd,
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
        log=scheduling.log,
    )


class Dispatcher:
    """Asks the policy where requests go, and lets it look at the clusters once per interval."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self.metrics = Metrics()
        self._fleet = Fleet(settings)
        self._attempts = Attempts(
            settings,
            self._fleet,
            self._journal,
            self.metrics,
            lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call),
        )
        self._prefixes = self._attempts.prefixes
        self._config = policy_config(settings)
        self._opening: set[asyncio.Task[None]] = set()
        self._used: set[int] = set()
        self._next = 0
        self._steps = 0
        self._failure: str | None = None
        """What the policy broke with: it is not asked any more."""
        self._state = State(self._config.threshold_tokens, None, "")
        try:
            asked = settings.scheduling
            self._policy = find_policy(asked.policy, asked.files, asked.service)
            self._state = self._policy.start(self._config)
        except (PolicyFailure, ValueError) as error:
            self._give_up(str(error), time.monotonic_ns())
        self._placed: list[Placed] = []
        self._started_ns = self._looked_ns = time.monotonic_ns()
        self._ticks = Ticks(settings.scheduling.interval_ns / 1e9, self._control)
        self._acked_bytes = self._retrans_bytes = 0
        self._egress = Egress(0.0, 0, 0, 0, 0.0, 0.0)

    async def start(self) -> None:
        """Connect to every instance that is there; the control loop runs from then on."""
        epoch = time.monotonic_ns()
        for instance in self._fleet.instances.values():
            instance.session = Session(
                instance.peer.address,
                config.CONTROL_PORT,
                failures=self._settings.failures,
                epoch=epoch,
                congestion_control=self._settings.transport.control_congestion_control,
                probing="wait_for_tcp" not in self._settings.flaws,
                handle=partial(self._hear, instance),
                on_up=partial(self._up, instance),
                on_down=partial(self._down, instance),
                on_restarted=partial(self._restarted, instance),
            )
        opening = [asyncio.create_task(self._open(one)) for one in self._fleet.instances.values()]
        # Those that are away keep nobody else waiting: requests for them wait, or go elsewhere.
        done, self._opening = await asyncio.wait(opening, timeout=self._settings.failures.probe_max_ns / 1e9)
        for task in done:
            task.result()
        self._looked_ns = time.monotonic_ns()
        self._ticks.wake()

    async def _open(self, instance: Instance) -> None:
        assert instance.session is not None
        try:
            await instance.session.open()
        except OSError as error:
            self._down(instance, str(error) or type(error).__name__)

    def _up(self, instance: Instance) -> None:
        self._journal.note("health", time.monotonic_ns(), instance=instance.peer.name, up=True, cause=None)
        self._attempts.resume()

    def _down(self, instance: Instance, cause: str) -> None:
        """An instance cannot be reached: it gets nothing new. What it has may still come to a good end."""
        self._journal.note("health", time.monotonic_ns(), instance=instance.peer.name, up=False, cause=cause)
        instance.given_up = "blacklist_for_ever" in self._settings.flaws

    def _restarted(self, instance: Instance, cause: str) -> None:
        """Its program has ended: all that it had is gone."""
        if instance.peer.cluster == "prfaas":  # the counters begin again
            self._acked_bytes -= instance.signals.get("acked_bytes", 0)
            self._retrans_bytes -= instance.signals.get("retrans_bytes", 0)
        instance.role, instance.signals = given_role(instance.peer), {}
        self._attempts.lost(instance, f"{instance.peer.name} {cause}")
        self._attempts.soon()

    def close(self) -> None:
        """Let go of the instances and of the journal."""
        self._ticks.stop()
        for instance in self._fleet.instances.values():
            if instance.session is not None:
                instance.session.close()
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
        *,
        prompt: Sequence[int] = (),
    ) -> Flight:
        """Place a request and start it; `chain` names the blocks of its prompt, where prefixes are cached;
        `prompt` has its token ids, where real kernels compute.

        Raises:
            PolicyFailure: the policy breaks, or has broken before.
        """
        if self._failure is not None:
            raise PolicyFailure(self._failure)
        number = request if request is not None else self._next
        self._used.add(number)
        self._next = max(self._next, number + 1)
        now_ns = time.monotonic_ns()
        asked = Request(
            str(number), input_tokens, output_tokens, *self._prefixes.cached(chain, input_tokens), tenant
        )
        view = self._view(now_ns)
        try:
            decision = self._policy.route(self._config, self._state, view, asked)
        except PolicyFailure as failure:
            raise self._give_up(
                str(failure), now_ns, id=number, seen={"view": view, "request": asked}
            ) from None
        flight = Flight(number, asked, chain, now_ns, decision, decision.route, now_ns, prompt=prompt)
        flight.order_s = view.t_s if decision.order_s is None else decision.order_s
        self._placed.append(Placed(asked, decision.route))
        self._attempts.choose(flight)
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
        self._attempts.start(flight)
        return flight

    def _give_up(self, cause: str, now_ns: int, **asked: object) -> PolicyFailure:
        """The policy is broken: what comes is refused with what is returned; what has been placed goes on
        without it.
        """
        self._failure = f"the policy failed: {cause}"
        self._journal.note("policy_failed", now_ns, step=self._step(), cause=cause, **asked)
        return PolicyFailure(self._failure)

    def _step(self) -> int:
        """A number for what the policy was asked, in order."""
        self._steps += 1
        return self._steps

    def abandon(self, flight: Flight) -> None:
        """Its client has gone away."""
        self._attempts.abandon(flight)

    def refusal(self, input_tokens: int) -> str | None:
        """Why a prompt of this length can never be served; None: it can."""
        size_bytes, room_bytes = self._attempts.kv_bytes(input_tokens), self._attempts.room_bytes
        if size_bytes > room_bytes:
            return f"its KV has {size_bytes} bytes; an instance holds at most {room_bytes}"
        return None

    def _hear(self, instance: Instance, message: wire.Message) -> None:
        """What an instance says."""
        match message["op"]:
            case "signals":
                instance.signals = message
            case "became":
                instance.role = message["role"]
                self._attempts.resume()
            case _:
                self._attempts.hear(instance, message)

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
        now_ns, model = time.monotonic_ns(), MODELS[self._settings.model]
        return sum(
            model.kv_bytes(flight.kv_tokens, self._settings.scale)
            for instance in self._fleet.silent("prfaas", now_ns)
            for flight in instance.prefilling.values()
        )

    def _control(self) -> bool:
        """Once per interval: look, let the policy think, note what it saw and what it decided, do it."""
        now_ns = time.monotonic_ns()
        interval_ns = now_ns - self._looked_ns
        if interval_ns > self._settings.scheduling.interval_ns + self._settings.failures.silence_ns // 2:
            self._attempts.excuse(now_ns)  # this program was frozen, not the others
        self._attempts.check(now_ns)
        self._egress = self._measure_egress(interval_ns / 1e9)
        self._looked_ns = now_ns
        before = self._state
        answered = self._attempts.answered
        view = replace(self._view(now_ns), placed=tuple(self._placed), answered=tuple(answered))
        self._placed.clear()
        answered.clear()
        if self._failure is not None:
            return True
        try:
            state = self._state = self._policy.update(self._config, before, view)
        except PolicyFailure as failure:
            self._give_up(str(failure), now_ns, seen={"view": view})
            return True
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
