"""Policies on a simulated two-cluster system: a fluid link, real KV layer sizes, seeded arrivals.

Much simpler than the kernel's TCP, and enough to see a policy react, settle and return in milliseconds per
second. It models what a policy can act on: prefill in both clusters, KV that crosses a lossy link in order,
decode in slots, instances of the PD cluster that change their role, prefix hits, tenants.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from random import Random
from statistics import NormalDist

from agents.model import Lengths, System
from agents.policies import POLICIES
from agents.policies.view import (
    Answer,
    Config,
    Decision,
    Egress,
    Placed,
    Request,
    State,
    TenantLoad,
    View,
)
from agents.profiles import MODELS, PROFILES
from tests.unit.sim_parts import INTERVAL_STEPS, LAYERS, STEP_S, Decode, Job, Link, Prefill

NORMAL = NormalDist(9.90, 1.00)
LOW, HIGH = NORMAL.cdf(log(128)), NORMAL.cdf(log(131072))
SYSTEM = System(
    PROFILES["h200"], PROFILES["h20"], MODELS["internal_1t"], n_prfaas=4, n_p=3, n_d=5, output_tokens=1024
)
Draw = Callable[[Random, float, int], Request]
"""The request number n that arrives at a time in seconds."""


def paper_length(at: float) -> int:
    """The paper's length at probability `at`."""
    return round(exp(NORMAL.inv_cdf(LOW + (HIGH - LOW) * at)))


LENGTHS = Lengths.from_quantiles([paper_length((i + 0.5) / 512) for i in range(512)])


def independent(rng: Random, _t_s: float, number: int) -> Request:
    """Lengths drawn one by one."""
    return Request(str(number), paper_length(rng.random()), 1024)


def stratified(block: int = 64) -> Draw:
    """The paper's lengths without the chance of what comes: every `block` requests hold all quantiles."""
    deck: list[float] = []

    def draw(rng: Random, _t_s: float, number: int) -> Request:
        if not deck:
            deck.extend((i + rng.random()) / block for i in range(block))
            rng.shuffle(deck)
        return Request(str(number), paper_length(deck.pop()), 1024)

    return draw


@dataclass(frozen=True)
class Point:
    """One control interval: the view that the policy saw and the state that followed."""

    view: View
    state: State
    ended: int  # requests that have ended since the beginning

    @property
    def t_s(self) -> float:
        """When the interval ended."""
        return self.view.t_s


@dataclass(frozen=True)
class Setup:
    """What to simulate; rates are in requests per second, times in seconds since the start."""

    policy: str
    seed: int = 1
    capacity_bps: Callable[[float], float] = lambda _t_s: 100e9
    loss: Callable[[float], float] = lambda _t_s: 0.0
    rate: Callable[[float], float] = lambda _t_s: 2.56
    end_s: float = 120.0
    threshold: int = 19600
    params: dict[str, float] = field(default_factory=dict)
    system: System = SYSTEM
    draw: Draw = independent
    conversion_s: float = 20.0
    tenant_bytes: float = 64e6  # of another tenant, every 5 s


class Simulation:
    """One run of a policy: `history` of control intervals; `placed` and `answers` with their time."""

    def __init__(self, setup: Setup) -> None:
        system = setup.system
        self.setup, self.policy = setup, POLICIES[setup.policy]
        self.config = Config(setup.threshold, setup.params, LENGTHS, system, setup.rate(0.0))
        self.state = self.policy.start(self.config)
        self.rng = Random(setup.seed)
        self.link = Link(self.rng, setup.capacity_bps, setup.loss)
        self.prfaas, self.pd = Prefill(system.n_prfaas), Prefill(system.n_p)
        self.decode = Decode(system.n_d)
        self.crossing: deque[tuple[Job, int]] = deque()  # on the link, in order
        self.credit = 0.0  # bytes acknowledged that have not yet completed an entry of `crossing`
        self.prefilled = 0  # requests that wait for KV on the link only
        self.converting: list[tuple[float, str]] = []  # (end, new role)
        self.egress = Egress(0.0, 0, 0, 0, 0.01, 0.01)
        self.acked = 0.0
        self.number = 0
        self.fresh: list[Placed] = []
        self.answered: list[Answer] = []
        self.history: list[Point] = []
        self.placed: list[tuple[float, Decision, Request]] = []
        self.answers: list[tuple[float, Answer]] = []

    def run(self) -> "Simulation":
        """Run to the end."""
        arrival_s = self.rng.expovariate(self.setup.rate(0.0))
        for step in range(1, round(self.setup.end_s / STEP_S)):
            t_s = step * STEP_S
            while arrival_s <= t_s:
                self._arrive(t_s, arrival_s)
                arrival_s += self.rng.expovariate(self.setup.rate(arrival_s))
            self.link.tenant += self.setup.tenant_bytes if step % round(5 / STEP_S) == 0 else 0.0
            self._advance(t_s)
            if step % INTERVAL_STEPS == 0:
                self._control(t_s)
        return self

    def _arrive(self, t_s: float, arrival_s: float) -> None:
        request = self.setup.draw(self.rng, arrival_s, self.number)
        self.number += 1
        decision = self.policy.route(self.config, self.state, self._view(t_s), request)
        self.fresh.append(Placed(request, decision.route))
        self.placed.append((t_s, decision, request))
        (self.prfaas if decision.route == "prfaas" else self.pd).queue.append(
            _job(self.setup.system, request, decision, t_s)
        )

    def _advance(self, t_s: float) -> None:
        produced, prefilled, _ = self.prfaas.step(t_s)
        self.prefilled += len(prefilled)
        for job, size in produced:
            self.link.backlog += size
            self.crossing.append((job, size))
        _, done, left = self.pd.step(t_s)
        self.converting += [(t_s + self.setup.conversion_s, "decode")] * left
        sent = self.link.step(t_s)
        self.acked += sent
        self.credit += sent
        while self.crossing and self.credit >= self.crossing[0][1] - 1:
            job, size = self.crossing.popleft()
            self.credit -= size
            job.left_bytes -= size
            if not job.left_bytes:
                self.prefilled -= 1
                done.append(job)
        self.decode.queue.extend(done)
        joined, left = self.decode.step(t_s)
        self.converting += [(t_s + self.setup.conversion_s, "prefill")] * left
        for job in joined:
            ttft_s = t_s + self.decode.step_s - job.arrived_s
            answer = Answer(job.route, job.computed_tokens, ttft_s, job.request.tenant)
            self.answered.append(answer)
            self.answers.append((t_s, answer))

    def _control(self, t_s: float) -> None:
        for end_s, role in [each for each in self.converting if each[0] <= t_s]:
            self.converting.remove((end_s, role))
            if role == "prefill":
                self.pd.running.append(None)
            else:
                self.decode.instances.append([])
        goodput = 8 * self.acked / (INTERVAL_STEPS * STEP_S)
        self.egress = Egress(
            goodput,
            self.link.unacknowledged,
            round(self.link.retrans),
            round(self.acked),
            self.link.srtt_s,
            0.01,
        )
        view = replace(self._view(t_s), placed=tuple(self.fresh), answered=tuple(self.answered))
        self.link.retrans, self.acked = 0.0, 0.0
        self.fresh.clear()
        self.answered.clear()
        self.state = self.policy.update(self.config, self.state, view)
        self.history.append(Point(view, self.state, self.decode.ended))
        self._convert()

    def _convert(self) -> None:
        """One instance at a time nearer to what the policy wants."""
        wanted = self.state.prefill_instances
        if wanted is None or self._changing:
            return
        if wanted > self.pd.serving:
            chosen = min(self.decode.instances, key=len)
            self.decode.instances = [each for each in self.decode.instances if each is not chosen]
            self.decode.leaving.append(chosen)
        elif wanted < self.pd.serving:
            self.pd.leaving += 1

    @property
    def _changing(self) -> int:
        return len(self.converting) + self.pd.leaving + len(self.decode.leaving)

    def _view(self, t_s: float) -> View:
        return View(
            t_s=t_s,
            egress=self.egress,
            queue_prfaas=self.prfaas.depth,
            queue_pd=self.pd.depth,
            queue_decode=len(self.decode.queue) + self.decode.active + self.prefilled,
            active_prfaas=self.prfaas.active,
            active_pd=self.pd.active,
            active_decode=self.decode.active,
            n_p=self.pd.serving,
            n_d=len(self.decode.instances),
            converting=self._changing,
            tenants=self._tenants(),
        )

    def _tenants(self) -> tuple[TenantLoad, ...]:
        works: dict[str, list[float]] = {}
        running = [each[1] for each in self.prfaas.running if each is not None]
        for job in (*self.prfaas.queue, *running):
            works.setdefault(job.request.tenant, []).append(job.work_s)
        return tuple(TenantLoad(name, len(works[name]), sum(works[name])) for name in sorted(works))


def _job(system: System, request: Request, decision: Decision, t_s: float) -> Job:
    """What a decision costs: a fetched prefix saves computing it, only what was computed crosses the WAN."""
    offloaded = decision.route == "prfaas"
    own = request.cached_prfaas_tokens if offloaded else request.cached_pd_tokens
    best = max(request.cached_prfaas_tokens, request.cached_pd_tokens)
    tokens = request.input_tokens - (best if decision.cache == "best" else own)
    if not offloaded:
        return Job(request, "pd", t_s, system.pd.prefill_s(tokens), [], tokens)
    work_s = system.prfaas.prefill_s(tokens)
    layers = [system.model.layer_bytes(i, tokens) for i in range(LAYERS)]
    if decision.compress:
        assert system.compression is not None
        work_s += sum(layers) / system.compression.compress_bytes_per_s
        layers = [round(size / system.compression.ratio) for size in layers]
    return Job(request, "prfaas", t_s, work_s, layers, tokens, sum(layers))


def simulate(setup: Setup) -> Simulation:
    """Run it."""
    return Simulation(setup).run()


def turns(thresholds: list[int]) -> int:
    """Direction changes of the threshold; moves under 500 tokens are ignored."""
    count, last, direction = 0, thresholds[0], 0
    for threshold in thresholds:
        if abs(threshold - last) >= 500:
            now = 1 if threshold > last else -1
            count += direction not in {0, now}
            direction, last = now, threshold
    return count


def thresholds(done: Simulation, low_s: float = 0.0, high_s: float = inf) -> list[int]:
    """The thresholds of the intervals that ended from `low_s` on and before `high_s`."""
    return [point.state.threshold_tokens for point in done.history if low_s <= point.t_s < high_s]
