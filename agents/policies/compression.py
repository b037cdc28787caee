"""`bandwidth_aware` with KV compression: offloaded KV is compressed while bandwidth is scarce.

Compressing costs time on the instance that prefills and makes the KV smaller; the threshold is searched with
both. Scarcity is judged by what would be sent uncompressed, so that a relief which compression brought is
not taken for an idle link.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec.structs import replace as replaced

from agents.model import System
from agents.policies import egress, params, regimes, short_loop
from agents.policies.params import Param, values
from agents.policies.regimes import Scarcity
from agents.policies.short_loop import Short
from agents.policies.view import Config, Decision, Request, State, View, by_length

PARAMS: Mapping[str, Param] = MappingProxyType(
    {**short_loop.PARAMS, **regimes.PARAMS, "abundant_after_s": Param(30.0)}
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The short loop, the regime, and the clusters as they are when KV is compressed."""

    short: Short
    scarcity: Scarcity
    compressed: System


def start(config: Config) -> State:
    """The configured threshold, KV as it is.

    Raises:
        ValueError: a parameter is unknown or out of range, or the system has no compression.
    """
    params.check("compression", PARAMS, config.params)
    regimes.check("compression", values(PARAMS, config.params))
    memory = Memory(short_loop.begin(config), Scarcity("abundant"), compressed(config.system))
    return State(config.threshold_tokens, None, "configured threshold", memory, memory.scarcity.regime)


def compressed(system: System) -> System:
    """The same clusters when KV is compressed: fewer bytes, and prefill takes longer in the PrfaaS cluster.

    Raises:
        ValueError: the system has no compression.
    """
    how = system.compression
    if how is None:
        raise ValueError("compression needs a compression profile for the transport, there is none")
    knots = tuple(
        (tokens, seconds + system.model.kv_bytes(tokens) / how.compress_bytes_per_s)
        for tokens, seconds in system.prfaas.knots
    )
    return replace(system, prfaas=replaced(system.prfaas, knots=knots), scale=system.scale / how.ratio)


def route(config: Config, state: State, view: View, request: Request) -> Decision:
    """By uncached length; what leaves is compressed while bandwidth is scarce."""
    decision = by_length(state.threshold_tokens, request)
    return replace(decision, compress=decision.route == "prfaas" and state.regime == "scarce")


def update(config: Config, state: State, view: View) -> State:
    """Learn from the interval, judge the regime, move the threshold for the KV that is sent in it."""
    assert isinstance(state.memory, Memory)
    assert config.system.compression is not None
    given, before = values(PARAMS, config.params), state.memory
    elapsed_s = egress.elapsed_s(before.short.link.t_s, view)
    short = short_loop.observe(given, config, before.short, view)
    ratio = config.system.compression.ratio if state.regime == "scarce" else 1.0
    demand_bps = egress.demand_bps(before.short.link, view) * ratio
    used = regimes.used(demand_bps, view.egress.backlog_bytes, short.link.capacity_bps)
    scarcity = regimes.observe(given, before.scarcity, used, elapsed_s)
    system = before.compressed if scarcity.regime == "scarce" else config.system
    state, short = short_loop.move(given, system, state, short, view)
    return State(
        state.threshold_tokens,
        state.capacity_bps,
        state.reason,
        Memory(short, scarcity, before.compressed),
        scarcity.regime,
    )
