"""What the simulated system is put through, and what is asked of it."""

from functools import partial

from tests.unit.policy_sim import (
    Setup,
    Simulation,
    stratified,
)

LONG_PROMPT = 60_000


def steps(t_s: float, before: float, within: float, low_s: float, high_s: float) -> float:
    """One value, and another one from `low_s` on and before `high_s`."""
    return within if low_s <= t_s < high_s else before


def congested(seed: int, policy: str = "bandwidth_aware") -> Setup:
    """100 Gbps, and 8 Gbps with burst loss of 1e-4 from 30 to 75 s."""
    return Setup(
        policy,
        seed=seed,
        capacity_bps=partial(steps, before=100e9, within=8e9, low_s=30, high_s=75),
        loss=partial(steps, before=0.0, within=1e-4, low_s=30, high_s=75),
    )


def constant(value: float) -> partial[float]:
    """The same at any time."""
    return partial(steps, before=value, within=value, low_s=0, high_s=0)


def mean(values: list[float] | list[int]) -> float:
    """Plain mean."""
    return sum(values) / len(values)


def served_share(done: Simulation, low_s: float, possible_per_s: float) -> float:
    """Requests that ended from `low_s` on, as a share of what was possible, or of what arrived if less."""
    first = next(point for point in done.history if point.t_s >= low_s)
    last = done.history[-1]
    arrived = sum(t_s >= low_s for t_s, _, _ in done.placed)
    return (last.ended - first.ended) / min(arrived, possible_per_s * (last.t_s - first.t_s))


def roles_of(done: Simulation, low_s: float = 0.0) -> list[int]:
    """Prefill instances that were wanted, each change once, from `low_s` on."""
    wanted = [point.state.prefill_instances for point in done.history if point.t_s >= low_s]
    return [each for each, before in zip(wanted, [None, *wanted], strict=False) if each and each != before]


def at_link(policy: str, gbps: float, load: float, end_s: float) -> Setup:
    """A link of one rate from the start, the paper's threshold and roles, a load in requests per second."""
    return Setup(
        policy,
        capacity_bps=constant(gbps * 1e9),
        rate=constant(load),
        threshold=19400,
        draw=stratified(),
        end_s=end_s,
        tenant_bytes=0.0,
    )
