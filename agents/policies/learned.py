"""The threshold learnt online, without a profile and without a model of the link.

At the best threshold a request that is just short enough for the PD cluster and one that is just long enough
for the PrfaaS cluster fare alike. So the logarithm of the threshold t moves by stochastic approximation
(Robbins and Monro, 1951) towards equal cost:

    log t  +=  a_k * e_k + damping * (e_k - e_(k-1)),   a_k = max(first_step / k ** 0.6, last_step)
    e_k = clip(mean of log c over PrfaaS - mean of log c over PD, -1, 1),   c = TTFT / length

over answers whose computed length is within `near` of t in the logarithm, at least `answers` of each side.
Queues answer to the threshold late and go on growing until it is right, so that steps along the error alone
would swing around the best threshold; the second term answers to where the error goes. Where the threshold
gives one side nothing at all it cannot be compared: e_k is then a full step towards giving it something.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from types import MappingProxyType

from agents.policies import params
from agents.policies.params import Param, values
from agents.policies.view import Config, Decision, Request, Route, State, View, by_length

PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        "near": Param(1.0),
        "answers": Param(4.0),
        "first_step": Param(0.4, most=1.0),
        "last_step": Param(0.02, most=1.0),
        "damping": Param(0.2, most=1.0),
        "stale_after_s": Param(30.0),
    }
)
DECAY = 0.6  # of the step: above a half, below one, as Robbins and Monro's conditions ask
LOWEST_TOKENS = 128  # where a threshold that has to move by factors stops
WAITING_MAX = 64  # answers of one side after which the other one, if it was given nothing, is tried


@dataclass(frozen=True, slots=True)
class Memory:
    """`costs_*`: log(TTFT / length) of the answers since the last step. `tried`: sides that got one since.

    `log_threshold`: the threshold before rounding. `steps`: steps so far; the last one had `error`, at
    `stepped_s`.
    """

    log_threshold: float
    costs_prfaas: tuple[float, ...] = ()
    costs_pd: tuple[float, ...] = ()
    tried: frozenset[Route] = frozenset()
    steps: int = 0
    error: float = 0.0
    stepped_s: float = 0.0


def start(config: Config) -> State:
    """The configured threshold, wherever it is.

    Raises:
        ValueError: a parameter is unknown or out of range.
    """
    params.check("learned", PARAMS, config.params)
    memory = Memory(log(max(config.threshold_tokens, LOWEST_TOKENS)))
    return State(config.threshold_tokens, None, "configured threshold", memory)


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length against the threshold of the moment."""
    return by_length(state.threshold_tokens, request)


def update(config: Config, state: State, view: View) -> State:
    """Collect answers near the threshold; once both sides have enough, one step."""
    assert isinstance(state.memory, Memory)
    if not (config.system.n_prfaas and config.system.n_p):
        return state  # there is one side only, and nothing to compare
    given, memory = values(PARAMS, config.params), state.memory
    memory = replace(
        memory,
        costs_prfaas=(memory.costs_prfaas + _costs(given, memory, view, "prfaas"))[-WAITING_MAX:],
        costs_pd=(memory.costs_pd + _costs(given, memory, view, "pd"))[-WAITING_MAX:],
        tried=memory.tried | {placed.route for placed in view.placed},
    )
    compared = _compare(given, memory)
    if compared is None:
        return replace(state, memory=memory)
    ratio, reason = compared
    steps = memory.steps + 1
    error = max(-1.0, min(ratio, 1.0))
    size = max(given["first_step"] / steps**DECAY, given["last_step"])
    moved = memory.log_threshold + size * error + given["damping"] * (error - memory.error)
    moved = max(log(LOWEST_TOKENS), min(moved, log(config.system.pd.max_tokens)))
    return State(round(exp(moved)), None, reason, Memory(moved, steps=steps, error=error, stepped_s=view.t_s))


def _compare(given: Mapping[str, float], memory: Memory) -> tuple[float, str] | None:
    """The logarithm of PrfaaS's cost over PD's, and a line about it; None: too little is known."""
    prfaas, pd = memory.costs_prfaas, memory.costs_pd
    if min(len(prfaas), len(pd)) >= given["answers"]:
        ratio = sum(prfaas) / len(prfaas) - sum(pd) / len(pd)
        return ratio, f"near the threshold PrfaaS takes {exp(ratio):.2f} times as long per token as PD"
    if len(pd) == WAITING_MAX and "prfaas" not in memory.tried:
        return -1.0, "nothing went to PrfaaS"
    if len(prfaas) == WAITING_MAX and "pd" not in memory.tried:
        return 1.0, "nothing went to PD"
    return None


def _costs(given: Mapping[str, float], memory: Memory, view: View, route_: Route) -> tuple[float, ...]:
    """log(TTFT / length) of this interval's answers of one side whose length is near the threshold."""
    fresh_enough = view.t_s - memory.stepped_s >= given["stale_after_s"]
    return tuple(
        log(answer.ttft_s) - log(answer.computed_tokens)
        for answer in view.answered
        if answer.route == route_
        and (fresh_enough or view.t_s - answer.ttft_s >= memory.stepped_s)
        and answer.ttft_s > 0
        and abs(log(answer.computed_tokens) - memory.log_threshold) <= given["near"]
    )
