"""What a scheduler that is an HTTP service is asked, and what it answers: the types of every message.

docs/scheduler-openapi.json is made from these. Lengths are in tokens, times in seconds, rates in bits/s.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agents.policies.view import Cache, Config, Decision, Regime, Request, Route, State, View
from agents.profiles import ComputeProfile

MOST_TOKENS = 10**9
LONGEST_REASON = 500

Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Reason = Annotated[str, Meta(max_length=LONGEST_REASON)]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is asked: a later version may add fields."""


class Answered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is answered: a field that nobody knows is refused, as it may be a typing error."""


class ClusterAsked(Asked, frozen=True, kw_only=True):
    """One cluster: instances at the start of the run, and what one of them needs.

    `prefill_s`: measured (tokens, seconds), a power law between two of them; the first piece goes on below,
    the last one up to `max_tokens`. `batch`: requests that an instance decodes at once; 0: it does no decode.
    `decode_step_s`: seconds of a step with a full batch of mean contexts; null where it does no decode.
    """

    prefill_instances: int
    decode_instances: int
    prefill_s: tuple[tuple[int, float], ...]
    max_tokens: int
    batch: int
    decode_step_s: float | None


class StartAsked(Asked, frozen=True, kw_only=True):
    """Asked once, before the first request.

    `threshold_tokens`, `params`: from the scenario. `lengths_tokens`: equally likely lengths, ascending: the
    profiled distribution of what prompts leave to compute. `prior_arrival_per_s`: requests expected per
    second. `output_tokens`: generated per request, on average. The KV of a request of L tokens has
    kv_scale * (kv_bytes_per_token * L + kv_fixed_bytes) bytes. `compression`: whether KV may be compressed.
    """

    threshold_tokens: int
    params: dict[str, float]
    lengths_tokens: tuple[int, ...]
    prior_arrival_per_s: float
    prfaas: ClusterAsked
    pd: ClusterAsked
    output_tokens: int
    kv_bytes_per_token: int
    kv_fixed_bytes: int
    kv_scale: float
    compression: bool


class StateAnswered(Answered, frozen=True, kw_only=True):
    """The scheduler's state: answered to /start and /update, and given back with every question.

    `threshold_tokens`: the length above which a request is offloaded. `capacity_bps`: what it believes the
    link gives, null while the link does not bind. `reason`: why the threshold last moved, in one line.
    `memory`: any JSON; it comes back with the same values. `regime`: while bandwidth is abundant, hot
    prefixes are copied between the clusters. `prefill_instances`: of the PD cluster that should do prefill;
    null: as they are.
    """

    threshold_tokens: Tokens
    reason: Reason
    capacity_bps: Annotated[float, Meta(ge=0)] | None = None
    memory: Any = None
    regime: Regime = "scarce"
    prefill_instances: Annotated[int, Meta(ge=0)] | None = None


class RouteAsked(Asked, frozen=True, kw_only=True):
    """Asked for each request."""

    state: StateAnswered
    view: View
    request: Request


class RouteAnswered(Answered, frozen=True, kw_only=True):
    """Where prefill of one request runs, under which threshold, and why.

    `cache`: compute with what the chosen cluster's cache has (`own`), or fetch a longer prefix from the other
    cluster first (`best`). `compress`: send the KV compressed. `order_s`: the prefill instance takes those
    with the least first; null: by arrival.
    """

    route: Route
    threshold_tokens: Tokens
    reason: Reason
    cache: Cache = "own"
    compress: bool = False
    order_s: float | None = None


class UpdateAsked(Asked, frozen=True, kw_only=True):
    """Asked after each control interval, with what was measured in it."""

    state: StateAnswered
    view: View


def start_asked(config: Config) -> StartAsked:
    """The first question."""
    system = config.system
    context_tokens = min(
        max(_mean(config) + system.output_tokens / 2, system.pd.contexts[0]), system.pd.contexts[1]
    )
    step_s = system.pd.step_s(system.pd.bs_max, context_tokens)
    return StartAsked(
        threshold_tokens=config.threshold_tokens,
        params=dict(config.params),
        lengths_tokens=config.lengths.tokens,
        prior_arrival_per_s=config.prior_arrival_per_s,
        prfaas=_cluster(system.prfaas, system.n_prfaas, 0, None),
        pd=_cluster(system.pd, system.n_p, system.n_d, step_s),
        output_tokens=system.output_tokens,
        kv_bytes_per_token=system.model.bytes_per_token,
        kv_fixed_bytes=system.model.fixed_bytes,
        kv_scale=system.scale,
        compression=system.compression is not None,
    )


def asked_state(state: State) -> StateAnswered:
    """A state as it is given back."""
    return StateAnswered(
        threshold_tokens=state.threshold_tokens,
        capacity_bps=state.capacity_bps,
        reason=state.reason,
        memory=state.memory,
        regime=state.regime,
        prefill_instances=state.prefill_instances,
    )


def state_of(answer: StateAnswered) -> State:
    """The state that was answered."""
    return State(
        answer.threshold_tokens,
        answer.capacity_bps,
        answer.reason,
        answer.memory,
        answer.regime,
        answer.prefill_instances,
    )


def decision_of(answer: RouteAnswered) -> Decision:
    """The decision that was answered."""
    return Decision(
        answer.route, answer.threshold_tokens, answer.reason, answer.cache, answer.compress, answer.order_s
    )


def _mean(config: Config) -> float:
    return config.lengths.sums[-1] / len(config.lengths.tokens)


def _cluster(profile: ComputeProfile, n_prefill: int, n_decode: int, step_s: float | None) -> ClusterAsked:
    return ClusterAsked(
        prefill_instances=n_prefill,
        decode_instances=n_decode,
        prefill_s=profile.knots,
        max_tokens=profile.max_tokens,
        batch=0 if step_s is None else profile.bs_max,
        decode_step_s=step_s,
    )
