"""Policies on a simulated two-cluster system: a fluid link, real KV layer sizes, Poisson arrivals.

Much simpler than the kernel's TCP, and enough to see a policy react, settle and return in milliseconds per
second.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, log
from random import Random
from statistics import NormalDist

import pytest

from agents.model import Lengths, System
from agents.policies import POLICIES
from agents.policies.view import Config, Egress, Request, View
from agents.profiles import MODELS, PROFILES

STEP_S = 0.005
INTERVAL_STEPS = 50  # 250 ms
RTT_STEPS = 2  # 10 ms
BUFFER_S = 0.010
BURST_PACKETS = 8
END_S = 120.0
History = list[tuple[float, int, float | None]]  # (t_s, threshold_tokens, capacity_bps) of each interval
NORMAL = NormalDist(9.90, 1.00)
LOW, HIGH = NORMAL.cdf(log(128)), NORMAL.cdf(log(131072))
SYSTEM = System(
    PROFILES["h200"], PROFILES["h20"], MODELS["internal_1t"], n_prfaas=4, n_p=3, n_d=5, output_tokens=1024
)


def paper_length(at: float) -> int:
    """The paper's length at probability `at`."""
    return round(exp(NORMAL.inv_cdf(LOW + (HIGH - LOW) * at)))


LENGTHS = Lengths.from_quantiles([paper_length((i + 0.5) / 512) for i in range(512)])


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
        self.queue: deque[tuple[float, list[int]]] = deque()  # (seconds, bytes of each layer)
        # (started, seconds, bytes of each layer left) of each instance
        self.running: list[tuple[float, float, list[int]] | None] = [None] * instances

    def step(self, t_s: float) -> int:
        """Advance to `t_s`; returns the KV bytes produced."""
        produced = 0
        for i, running in enumerate(self.running):
            job = running
            if job is None and self.queue:
                job = (t_s, *self.queue.popleft())
            if job is not None:
                started, seconds, layers = job
                while layers and t_s >= started + seconds * (61 - len(layers)) / 60:
                    produced += layers.pop(0)
                job = job if layers else None
            self.running[i] = job
        return produced

    @property
    def depth(self) -> int:
        """Requests waiting or running."""
        return len(self.queue) + self.active

    @property
    def active(self) -> int:
        """Requests running."""
        return sum(job is not None for job in self.running)


def simulate(
    policy_name: str,
    seed: int,
    capacity_bps: Callable[[float], float],
    loss: Callable[[float], float],
    rate: float = 2.56,
) -> History:
    """Run 120 s; returns (t_s, threshold, capacity estimate) of every interval."""
    rng = Random(seed)
    policy = POLICIES[policy_name]
    config = Config(19600, {}, LENGTHS, SYSTEM, rate)
    state = policy.start(config)
    link, prfaas, pd = Link(rng, capacity_bps, loss), Prefill(SYSTEM.n_prfaas), Prefill(SYSTEM.n_p)
    history: History = []
    view = _view(0.0, link, prfaas, pd, 0.0)
    arrival_s, acked = rng.expovariate(rate), 0.0
    for step in range(1, round(END_S / STEP_S)):
        t_s = step * STEP_S
        while arrival_s <= t_s:
            tokens = paper_length(rng.random())
            if policy.route(config, state, view, Request("r", tokens, 1024)).route == "prfaas":
                layers = [SYSTEM.model.layer_bytes(i, tokens) for i in range(60)]
                prfaas.queue.append((SYSTEM.prfaas.prefill_s(tokens), layers))
            else:
                pd.queue.append((SYSTEM.pd.prefill_s(tokens), [0] * 60))
            arrival_s += rng.expovariate(rate)
        link.tenant += 64e6 if step % 1000 == 0 else 0.0
        link.backlog += prfaas.step(t_s)
        pd.step(t_s)
        acked += link.step(t_s)
        if step % INTERVAL_STEPS == 0:
            view = _view(t_s, link, prfaas, pd, acked)
            link.retrans, acked = 0.0, 0.0
            state = policy.update(config, state, view)
            history.append((t_s, state.threshold_tokens, state.capacity_bps))
    return history


def _view(t_s: float, link: Link, prfaas: Prefill, pd: Prefill, acked: float) -> View:
    goodput = 8 * acked / (INTERVAL_STEPS * STEP_S)
    egress = Egress(goodput, link.unacknowledged, round(link.retrans), round(acked), link.srtt_s, 0.01)
    return View(t_s, egress, prfaas.depth, pd.depth, 0, prfaas.active, pd.active, 0)


def congested_bps(t_s: float) -> float:
    """100 Gbps, and 8 Gbps from 30 to 75 s."""
    return 8e9 if 30 <= t_s < 75 else 100e9


def congested_loss(t_s: float) -> float:
    """Burst loss of 1e-4 while the link is congested."""
    return 1e-4 if 30 <= t_s < 75 else 0.0


def lossless(_t_s: float) -> float:
    """No loss but what overflows the buffer."""
    return 0.0


def turns(history: History) -> int:
    """Direction changes of the threshold; moves under 500 tokens are ignored."""
    count, last, direction = 0, history[0][1], 0
    for _, threshold, _ in history:
        if abs(threshold - last) >= 500:
            now = 1 if threshold > last else -1
            count += direction not in (0, now)
            direction, last = now, threshold
    return count


def within(history: History, low_s: float, high_s: float) -> list[int]:
    """The thresholds of the intervals that ended from `low_s` on and before `high_s`."""
    return [threshold for t_s, threshold, _ in history if low_s <= t_s < high_s]


@pytest.mark.parametrize("seed", range(20))
def test_follows_a_drop_to_8_gbps_and_back(seed: int) -> None:
    """Above 22,000 within 3 s of the drop, near the best for 8 Gbps, back within 10 s, with few turns."""
    history = simulate("bandwidth_aware", seed, congested_bps, congested_loss)
    assert set(within(history, 2, 30)) == {19600}
    assert max(within(history, 30, 33)) > 22000
    settled = sorted(within(history, 36, 75))
    assert (
        settled[len(settled) // 10] >= 23500
    )  # after a lull the link is probed, in less than a tenth of the time
    assert settled[-1] <= 27000
    assert all(19000 <= threshold <= 20500 for threshold in within(history, 85, 120))
    assert turns(history) <= 6


@pytest.mark.parametrize("seed", range(5))
def test_follows_the_drop_without_random_loss(seed: int) -> None:
    """What overflows the buffer is loss enough."""
    history = simulate("bandwidth_aware", seed, congested_bps, lossless)
    assert max(within(history, 30, 33)) > 22000
    assert max(within(history, 36, 75)) <= 27000
    assert turns(history) <= 6


@pytest.mark.parametrize("seed", range(5))
def test_random_loss_on_a_healthy_link_changes_nothing(seed: int) -> None:
    """A link that loses one packet in 100,000 and carries everything does not bind."""
    history = simulate("bandwidth_aware", seed, lambda _t_s: 100e9, lambda _t_s: 1e-5)
    assert set(within(history, 2, 120)) == {19600}


@pytest.mark.parametrize("seed", range(5))
def test_an_outage_keeps_long_prompts_at_home_and_ends(seed: int) -> None:
    """A dead link drives the threshold far up within 4 s; it is back within 10 s of the link."""
    history = simulate("bandwidth_aware", seed, lambda t_s: 0.0 if 30 <= t_s < 50 else 100e9, lossless)
    assert min(within(history, 34, 50)) > 60000
    assert all(19000 <= threshold <= 20500 for threshold in within(history, 60, 120))


def test_a_second_drop_is_followed() -> None:
    """From 8 to 2 Gbps the threshold follows to the region of the best one, 51,200, within 6 s."""

    def steps_bps(t_s: float) -> float:
        return 100e9 if t_s < 20 else 8e9 if t_s < 60 else 2e9

    history = simulate("bandwidth_aware", 1, steps_bps, lossless)
    assert 44000 <= within(history, 66, 67)[0] <= 62000


def test_overload_on_a_healthy_link_moves_little() -> None:
    """A surge at both sides is no reason to push everything to one of them."""
    history = simulate("bandwidth_aware", 1, lambda _t_s: 100e9, lossless, rate=4.0)
    assert all(18500 <= threshold <= 21000 for threshold in within(history, 2, 120))
    assert turns(history) <= 2


@pytest.mark.parametrize("name", ["homogeneous", "static_threshold"])
def test_other_policies_ignore_the_link(name: str) -> None:
    """The controls: the same trouble, and a threshold that stays where it was."""
    assert len(set(within(simulate(name, 1, congested_bps, congested_loss), 0, 120))) == 1
