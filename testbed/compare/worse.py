"""Which way a metric gets worse, and what a scenario without opinions is compared by."""

from __future__ import annotations

from typing import Final, Literal

from testbed.metrics import METRICS
from testbed.plan import Expectation

Worse = Literal["up", "down"]

COMPARED: Final = (
    "requests.completed_ratio",
    "requests.failed",
    "requests.refused",
    "requests.unfinished",
    "requests.retried",
    "requests.recomputed",
    "throughput_per_s",
    "ttft_s.p50",
    "ttft_s.p90",
    "ttft_s.p99",
    "itl_s.p50",
    "itl_s.p99",
    "e2e_s.p50",
    "e2e_s.p90",
    "e2e_s.p99",
    "queue_s.p90",
    "kv_transfer_s.p90",
    "cache.hit_ratio",
    "offloaded_share",
    "threshold_tokens.mean",
    "queue_prfaas.mean",
    "queue_pd.mean",
    "queue_decode.mean",
    "goodput_bps.mean",
    "transfers.wan_goodput_bps.mean",
    "transfers.failed",
    "transfers.resent_bytes.sum",
    "retrans_ratio.mean",
    "link.a_to_b.utilisation",
    "link.a_to_b.drops",
    "link.a_to_b.lost_packets",
    "link.a_to_b.backlog_bytes.mean",
    "link.a_to_b.backlog_bytes.max",
    "bulk.goodput_bps.min",
)
"""Shown in every comparison, in this order; those that neither side measured are left out."""

LESS_IS_WORSE: Final = (
    "requests.completed",
    "throughput_per_s",
    "cache.hit_ratio",
    "transfers.wan_goodput_bps",
    "transfers.hidden_share",
    "bulk.",
)
MORE_IS_WORSE: Final = (
    "requests.",
    "retrans_ratio",
    "ttft_over_prefill",
    "health.down",
    "ledger.",
    "transfers.checksum_errors",
    "transfers.failed",
    "transfers.resumed",
    "transfers.resent_bytes",
    "transfers.dropped_bytes",
    "transfers.superseded_bytes",
    "pools.end_bytes",
)
LINK_IS_WORSE_WITH: Final = ("drops", "backlog_bytes")


def of_metric(name: str) -> Worse | None:
    """The direction in which this metric gets worse.

    None where a change is neither: thresholds, roles, where requests are placed and wait and how much the
    link carries are what a policy chooses, and what that costs stands in other metrics; packets lost on the
    way are the link's doing.
    """
    if name.startswith(LESS_IS_WORSE):
        return "down"
    gauge = name.split(".")[2] if name.startswith("link.") else ""
    seconds = name in METRICS and METRICS[name].unit == "s"
    return "up" if seconds or name.startswith(MORE_IS_WORSE) or gauge in LINK_IS_WORSE_WITH else None


def of_expectation(expectation: Expectation) -> Worse | None:
    """Towards the bound; a later reaction and more turns are worse. None between two bounds."""
    if expectation.within_ns is not None or expectation.kind == "stability":
        return "up"
    if (expectation.low is None) != (expectation.high is None):
        return "up" if expectation.low is None else "down"
    return of_metric(expectation.metric)
