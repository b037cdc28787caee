"""What a profile covers, in words: for the plan's summary and for the report."""

from __future__ import annotations

from agents.compute_profile import ComputeProfile


def prefill_range(profile: ComputeProfile) -> str:
    """The lengths for which prefill is known, from the shortest to the longest."""
    return f"{profile.knots[0][0]:,} to {profile.knots[-1][0]:,} tokens"


def decode_range(profile: ComputeProfile) -> str:
    """The batches and contexts for which decode is known, if there are any."""
    if not profile.bs_max:
        return "not profiled"
    if profile.decode_step_s is not None:
        return f"1 to {profile.bs_max} requests, the same for all"
    least = min(one.steps[0][0] for one in profile.decode)
    first, last = profile.decode[0].context_tokens, profile.decode[-1].context_tokens
    return f"{least} to {profile.bs_max} requests, {first:,} to {last:,} tokens each"


def beyond(profile: ComputeProfile) -> str:
    """What happens outside of that."""
    if profile.extrapolate:
        return "extrapolated"
    if profile.min_tokens < profile.knots[0][0]:
        return "shorter prompts extrapolated, else refused"
    return "refused"
