"""What prompts leave to compute after prefix matching, learnt from the requests that were placed.

Without a cache nothing is learnt, and the profiled lengths stay in force to the last token.
"""

from dataclasses import dataclass, replace

from agents.model import Lengths
from agents.policies.view import Regime, Request, View

WINDOW = 512  # requests: the share above a threshold is known to 2 %, and 2.5 requests/s fill it in 200 s
OUTPUTS_WINDOW = 128  # requests: a mean needs fewer, and roles shall follow within a minute
REBUILD_S = 1.0  # the threshold moves no more often than that


@dataclass(frozen=True, slots=True)
class Seen:
    """The last WINDOW requests, oldest first, and the distribution of lengths that follows from them.

    `stale`: requests came since `lengths` was built at `built_s`. `built_for`: the regime it was built for.
    """

    lengths: Lengths
    requests: tuple[Request, ...] = ()
    hits: int = 0
    stale: bool = False
    built_s: float = 0.0
    built_for: Regime = "scarce"


def is_hit(request: Request) -> bool:
    """Whether any cluster's cache holds something of the prompt."""
    return request.cached_pd_tokens > 0 or request.cached_prfaas_tokens > 0


def observe(seen: Seen, view: View, prior: Lengths, regime: Regime) -> Seen:
    """Add what was placed; build the distribution anew if it may have changed and the last one has aged.

    In the scarce regime a length is what the PD cluster's own cache leaves, and what is computed of an
    offloaded request is what that of the PrfaaS cluster leaves; in the abundant regime both are what the
    longest prefix of any cluster leaves. Until WINDOW requests were seen the rest is the prior's.
    """
    placed = tuple(each.request for each in view.placed)
    if placed:
        requests = (seen.requests + placed)[-WINDOW:]
        hits = sum(map(is_hit, requests))
        seen = replace(seen, requests=requests, hits=hits, stale=True)
    if not seen.stale and seen.built_for == regime:
        return seen
    if view.t_s - seen.built_s < REBUILD_S:
        return seen
    return replace(
        seen,
        lengths=_mixed(seen.requests, prior, regime) if seen.hits else prior,
        stale=False,
        built_s=view.t_s,
        built_for=regime,
    )


def _mixed(requests: tuple[Request, ...], prior: Lengths, regime: Regime) -> Lengths:
    if regime == "scarce":
        pairs = [(one.uncached_tokens, one.input_tokens - one.cached_prfaas_tokens) for one in requests]
    else:
        pairs = [(request.fresh_tokens, request.fresh_tokens) for request in requests]
    missing = WINDOW - len(pairs)
    count = len(prior.tokens)
    rest = [prior.tokens[(2 * i + 1) * count // (2 * missing)] for i in range(missing)]
    return Lengths.from_pairs([*pairs, *zip(rest, rest, strict=True)])


def mean_output_tokens(seen: Seen, prior_tokens: int) -> int:
    """Mean tokens that the last OUTPUTS_WINDOW requests generate; the prior counts for those not seen yet."""
    last = seen.requests[-OUTPUTS_WINDOW:]
    missing = OUTPUTS_WINDOW - len(last)
    total = sum(request.output_tokens for request in last) + missing * prior_tokens
    return max(round(total / OUTPUTS_WINDOW), 1)
