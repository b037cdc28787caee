"""The long loop: how many instances of the PD cluster should do prefill.

Producers (prefill) and consumers (decode) are compared by queue depth and utilisation, smoothed over the long
interval. An instance changes its role when the throughput model promises enough from another split, the side
to be strengthened is short and the other has one to spare.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, inf
from types import MappingProxyType

from agents.model import Capacity, Lengths, System, at_best, best_allocation
from agents.policies.params import Param
from agents.policies.view import View

PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        "long_interval_s": Param(30.0),
        "convert_gain": Param(0.05),
        "reverse_wait_s": Param(120.0),
        "standing_wait_s": Param(5.0),
        "full_share": Param(0.95, most=1.0),
    }
)
FREE = 0.98  # a smoothed estimate from this share of the ceiling on is a link that does not bind
WAIT_MAX_S = 600.0  # a side that serves nobody makes wait for ever; a mean needs a number


@dataclass(frozen=True, slots=True)
class Roles:
    """What the loop remembers; the first five are means since `since_s`, fading over half a long interval.

    `prefill_share`, `decode_share`: instances or slots in use, as a share. `prefill_wait_s`, `decode_wait_s`:
    waiting requests in seconds of the side's work. `egress_bps`: capacity of the link, the ceiling where it
    does not bind. `looked_s`: the last decision. `wanted`: prefill instances, None: as they are. `step`: the
    last conversion, 1 to prefill and -1 to decode, at `turned_s`.
    """

    prefill_share: float = 0.0
    decode_share: float = 0.0
    prefill_wait_s: float = 0.0
    decode_wait_s: float = 0.0
    egress_bps: float = 0.0
    since_s: float = 0.0
    looked_s: float = 0.0
    wanted: int | None = None
    step: int = 0
    turned_s: float = 0.0


def serving(system: System, view: View, output_tokens: int) -> System:
    """The system with the roles of the moment; a view without instances says nothing of them."""
    if not view.n_p and not view.n_d:
        return replace(system, output_tokens=output_tokens)
    return replace(system, n_p=view.n_p, n_d=view.n_d, output_tokens=output_tokens)


def observe(
    params: Mapping[str, float],
    roles: Roles,
    view: View,
    *,
    system: System,
    now: Capacity,
    egress_bps: float,
    elapsed_s: float,
) -> Roles:
    """Smooth queues and utilisations; they start anew while an instance changes its role.

    `now` is what `system`, the roles of the moment, sustains at the present threshold.
    """
    if view.converting:
        return replace(roles, since_s=view.t_s)
    age_s = view.t_s - roles.since_s
    weight = 1 - exp(-elapsed_s / (params["long_interval_s"] / 2))
    weight = max(weight, elapsed_s / age_s) if age_s > elapsed_s else 1.0
    slots = system.n_d * system.pd.bs_max
    on_its_way = 8 * view.egress.backlog_bytes / system.kv_bits(max(now.mean_long_tokens, 1.0))
    held = max(view.queue_decode - on_its_way, 0.0)  # a request whose KV still crosses takes no slot

    def smooth(before: float, sample: float) -> float:
        return before + (sample - before) * weight

    return replace(
        roles,
        prefill_share=smooth(roles.prefill_share, _share(view.active_pd, system.n_p)),
        decode_share=smooth(roles.decode_share, _share(held, slots)),
        prefill_wait_s=smooth(roles.prefill_wait_s, _wait_s(view.queue_pd - view.active_pd, now.theta_p)),
        decode_wait_s=smooth(roles.decode_wait_s, _wait_s(held - slots, now.theta_d)),
        egress_bps=smooth(roles.egress_bps, egress_bps),
    )


def _share(busy: float, all_: int) -> float:
    return min(busy / all_, 1.0) if all_ else 1.0


def _wait_s(waiting: float, per_s: float) -> float:
    if waiting <= 0:
        return 0.0
    return min(waiting / per_s, WAIT_MAX_S) if per_s else WAIT_MAX_S


def decide(
    params: Mapping[str, float],
    roles: Roles,
    view: View,
    *,
    system: System,
    lengths: Lengths,
    ceiling_bps: float,
) -> tuple[Roles, str]:
    """Every long interval: one conversion, or none; with it why, for the record (empty: none)."""
    if view.converting or view.t_s - max(roles.since_s, roles.looked_s) < params["long_interval_s"]:
        return roles, ""
    roles = replace(roles, looked_s=view.t_s)
    if roles.wanted is not None:
        roles = replace(roles, wanted=system.n_p)  # what did not come about is not asked for any longer
    egress_bps = roles.egress_bps if roles.egress_bps < FREE * ceiling_bps else None
    best = best_allocation(system, lengths, egress_bps)
    now = at_best(system, lengths, egress_bps)
    step = (best.n_p > system.n_p) - (best.n_p < system.n_p)
    after_n_p, after_n_d = system.n_p + step, system.n_d - step
    if not step or after_n_p < 1 or best.lambda_max < (1 + params["convert_gain"]) * now.lambda_max:
        return roles, ""
    if step == -roles.step and view.t_s - roles.turned_s < params["reverse_wait_s"]:
        return roles, ""
    after = at_best(replace(system, n_p=after_n_p, n_d=after_n_d), lengths, egress_bps)
    if not _agree(params, roles, step, now, after):
        return roles, ""
    gain = best.lambda_max / now.lambda_max - 1 if now.lambda_max else inf
    side, wait_s = ("prefill", roles.prefill_wait_s) if step > 0 else ("decode", roles.decode_wait_s)
    lacks = f"{side} has {wait_s:.0f} s of work waiting"
    reason = f"{after_n_p} prefill instances wanted: {lacks}, {best.n_p} promise {gain:.0%} more"
    return replace(roles, wanted=after_n_p, step=step, turned_s=view.t_s), reason


def _producers(at: Capacity) -> float:
    """Requests per second that prefill in both clusters takes together."""
    long = at.theta_prfaas / at.share_long if at.share_long else inf
    short = at.theta_p / (1 - at.share_long) if at.share_long < 1 else inf
    return min(long, short)


def _agree(params: Mapping[str, float], roles: Roles, step: int, now: Capacity, after: Capacity) -> bool:
    """Whether the side to be strengthened is short, and the other would still not be full with one less.

    Decode comes last: where it has the longer queue, it limits everything, and the queue before prefill is no
    reason to leave it as it is.
    """
    prefill = (roles.prefill_share, roles.prefill_wait_s, _producers(now), _producers(after))
    decode = (roles.decode_share, roles.decode_wait_s, now.theta_d, after.theta_d)
    stronger, weaker = (prefill, decode) if step > 0 else (decode, prefill)
    full, standing_s = params["full_share"], params["standing_wait_s"]
    lacks = stronger[0] >= full or stronger[1] >= standing_s
    share, wait_s, per_s, per_s_after = weaker
    spare = wait_s < standing_s and share * per_s <= full * per_s_after
    limits = step < 0 and roles.decode_wait_s > max(roles.prefill_wait_s, standing_s)
    return lacks and (spare or limits)
