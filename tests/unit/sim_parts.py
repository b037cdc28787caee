"""The parts of the simulated system: a fluid link, prefill and decode instances."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from agents.policies.view import Request, Route
from agents.profiles import PROFILES

STEP_S = 0.005
INTERVAL_STEPS = 50  # 250 ms
RTT_STEPS = 2  # 10 ms
BUFFER_S = 0.010
BURST_PACKETS = 8
LAYERS = 60


@dataclass
class Job:
    """A request on its way: `work_s` of prefill, `layers` the bytes that each layer sends over the WAN."""

    request: Request
    route: Route
    arrived_s: float
    work_s: float
    layers: list[int]
    computed_tokens: int
    left_bytes: int = 0
    emitted: int = 0
    next_s: float = 0.0  # when the next layer is due


@dataclass
class Link:
    """A fluid link that tenants share; senders slow down after a loss, and a full buffer overflows."""

    rng: Random
    capacity_bps: Callable[[float], float]
    loss: Callable[[float], float]
    backlog: float = 0.0  # produced, not yet sent
    tenant: float = 0.0
    slowed: float = 1.0
    window: float = 100e6  # bytes that the senders' congestion windows let out at once
    in_flight: deque[float] = field(default_factory=lambda: deque([0.0] * RTT_STEPS))
    srtt_s: float = 0.01
    retrans: float = 0.0

    def step(self, t_s: float) -> float:
        """Carry one step's bytes; returns the bytes acknowledged in it."""
        room = self.capacity_bps(t_s) / 8 * STEP_S
        share = 0.5 if self.tenant > 0 else 1.0
        sent = min(self.backlog, room * share * self.slowed)
        self.tenant = max(self.tenant - (room - sent), 0.0)
        if self.backlog > self.window:
            self.window *= 1 + 0.2 * STEP_S
        overflow = min(self.backlog, self.window) - room / STEP_S * (0.01 + BUFFER_S)
        if overflow > 0 and room > 0:
            self.retrans += overflow
            self.window *= 0.7
            self.slowed = 0.8
        standing = 0.0 if room == 0 else min((self.backlog - sent) / (room / STEP_S), BUFFER_S)
        if sent > 0:
            self.srtt_s += 0.5 * (0.01 + standing - self.srtt_s)
        self.backlog -= sent
        self.slowed = min(self.slowed + 0.5 * STEP_S, 1.0)
        if self.rng.random() < sent / 9000 * self.loss(t_s) / BURST_PACKETS:
            self.retrans += BURST_PACKETS * 9000
            self.slowed = 0.8
        self.in_flight.append(sent)
        return self.in_flight.popleft()

    @property
    def unacknowledged(self) -> int:
        """Bytes produced and not acknowledged."""
        return round(self.backlog + sum(self.in_flight))


class Prefill:
    """First-come-first-served instances that emit a request's layers evenly while computing."""

    def __init__(self, instances: int) -> None:
        self.queue: deque[Job] = deque()
        self.running: list[tuple[float, Job] | None] = [None] * instances
        self.leaving = 0  # instances that shall stop once they are idle

    def step(self, t_s: float) -> tuple[list[tuple[Job, int]], list[Job], int]:
        """Advance to `t_s`; returns bytes by job, the jobs that are done, and instances that have left."""
        produced: list[tuple[Job, int]] = []
        done: list[Job] = []
        gone: list[int] = []
        for i, running in enumerate(self.running):
            if running is None:
                if self.leaving:
                    self.leaving -= 1
                    gone.append(i)
                elif self.queue:
                    self.running[i] = (t_s, self.queue.popleft())
                continue
            started_s, job = running
            if t_s < job.next_s:
                continue
            due = min(int((t_s - started_s) / job.work_s * LAYERS + 1e-9), LAYERS)
            size = sum(job.layers[job.emitted : due])
            if size:
                produced.append((job, size))
            job.emitted = due
            job.next_s = started_s + (due + 1) / LAYERS * job.work_s
            if due == LAYERS:
                done.append(job)
                self.running[i] = None
        for i in reversed(gone):
            del self.running[i]
        return produced, done, len(gone)

    @property
    def serving(self) -> int:
        """Instances that take new work."""
        return len(self.running) - self.leaving

    @property
    def depth(self) -> int:
        """Requests waiting or running."""
        return len(self.queue) + self.active

    @property
    def active(self) -> int:
        """Requests running."""
        return sum(job is not None for job in self.running)


class Decode:
    """Instances with slots; a request holds one for all its steps. One queue for all instances."""

    def __init__(self, instances: int) -> None:
        profile = PROFILES["h20"]
        self.slots, self.step_s = profile.bs_max, profile.step_s(profile.bs_max)
        self.queue: deque[Job] = deque()
        self.instances: list[list[float]] = [[] for _ in range(instances)]  # heaps of ends
        self.leaving: list[list[float]] = []
        self.ended = 0

    def step(self, t_s: float) -> tuple[list[Job], int]:
        """Advance to `t_s`; returns the jobs that got a slot, and instances that have left."""
        for instance in (*self.instances, *self.leaving):
            while instance and instance[0] <= t_s:
                heappop(instance)
                self.ended += 1
        left = sum(not instance for instance in self.leaving)
        self.leaving = [instance for instance in self.leaving if instance]
        joined: list[Job] = []
        while self.queue and self.instances:
            instance = min(self.instances, key=len)
            if len(instance) >= self.slots:
                break
            job = self.queue.popleft()
            heappush(instance, t_s + job.request.output_tokens * self.step_s)
            joined.append(job)
        return joined, left

    @property
    def active(self) -> int:
        """Requests in slots."""
        return sum(map(len, (*self.instances, *self.leaving)))
