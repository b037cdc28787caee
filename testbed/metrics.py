"""The vocabulary of expectations: every metric a scenario may name, and what it means.

Names and metadata only. `scenario.model` checks names, kinds and units against this dict; `expect`
computes the values from the tables of `record`. A metric is computed like this:

1. take the rows of `table` for which every pair of `where` holds;
2. keep those whose `time` column lies in the expectation's window [from, to);
3. apply `statistic` to `column`, leaving out nulls.

The statistics:

    signal           the series (time, column) itself, for every kind that follows a signal; with
                     `counted` the rows for which every pair of it holds, per second, in bins of a second
    mean min max     of the column
    p50 p90 p99      percentiles of the column, linearly interpolated
    sum              of the column (0 when there is no row)
    count            rows for which every pair of `counted` holds; `column` is not read
    share            count divided by all rows of step 2; `column` is not read
    sum_share        sum of `column` divided by the sum of `whole`
    rate             count per second of the window
    end_sum          of `column` in the last row of each instance and pool
    steady_goodput   see `bulk.steady_goodput_bps`
    violations       what `ledger` finds in the whole run
    oracle           share of what an oracle would have carried: `expect.oracle`

What pools hold and how many sockets are open is noted when it changes: what held before a window counts
as in it.

A statistic other than `sum` and `count` without any row has no value, and an expectation on it fails
as "not measured"; unless `otherwise` says what it is where nothing of the kind happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal[
    "s",
    "bps",
    "bytes",
    "tokens",
    "packets",
    "super-packets",
    "requests",
    "requests/s",
    "transfers",
    "chunks",
    "sockets",
    "times",
    "violations",
    "instances",
    "blocks",
    "ratio",
]
Kind = Literal[
    "bound", "reaction", "recovery", "stability", "settling", "overshoot", "oscillation", "fairness", "oracle"
]
Table = Literal["requests", "decisions", "transfers", "links", "pools", "connections", "health"]
Statistic = Literal[
    "signal",
    "mean",
    "min",
    "max",
    "p50",
    "p90",
    "p99",
    "sum",
    "count",
    "share",
    "sum_share",
    "rate",
    "end_sum",
    "steady_goodput",
    "violations",
    "oracle",
]
Match = tuple[tuple[str, str | bool], ...]

BOUND: tuple[Kind, ...] = ("bound",)
SIGNAL: tuple[Kind, ...] = ("reaction", "recovery", "stability", "settling", "overshoot", "oscillation")
FEWEST_PER_CYCLE = 4
"""Samples that an oscillation needs in each of its cycles."""
TIME_COLUMN: dict[Table, str] = {
    "requests": "arrival_s",
    "decisions": "t_s",
    "transfers": "start_s",
    "links": "t_s",
    "pools": "t_s",
    "connections": "t_s",
    "health": "t_s",
}


@dataclass(frozen=True)
class Metric:
    """How one metric follows from the record."""

    table: Table
    column: str
    statistic: Statistic
    unit: Unit
    meaning: str
    where: Match = ()
    counted: Match = ()
    whole: str = ""
    """For sum_share: the column that `column` is a part of."""
    window: str = ""
    """The time column that the window selects by, where it is not that of the table."""
    otherwise: float | None = None
    """The value where the table was recorded, but no row of the window has one; None: not measured."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of expectation this metric may stand in."""
        if self.statistic == "signal":
            return SIGNAL
        if self.statistic == "oracle":
            return ("oracle",)
        by_tenant = self.table == "requests" and self.statistic != "violations"
        return (*BOUND, "fairness") if by_tenant else BOUND

    @property
    def time(self) -> str:
        """The column that the window selects by: arrival of requests, start of transfers, sample time."""
        return self.window or TIME_COLUMN[self.table]


def _times() -> dict[str, Metric]:
    """Statistics of the durations a request goes through; requests without a value are left out."""
    meanings = {
        "ttft_s": "time from sent to first token, at the client",
        "itl_s": "mean time between two tokens of a request",
        "e2e_s": "time from sent to last token, at the client",
        "queue_s": "wait at the prefill instance",
        "prefill_s": "prefill computation",
        "kv_transfer_s": "KV transfer not hidden behind prefill",
    }
    statistics: tuple[Statistic, ...] = ("mean", "p50", "p90", "p99", "max")
    return {
        f"{column}.{statistic}": Metric("requests", column, statistic, "s", f"{meaning}, {statistic}")
        for column, meaning in meanings.items()
        for statistic in statistics
    }


def _requests() -> dict[str, Metric]:
    """How requests ended, and where they were prefilled."""
    states = {
        "completed": "requests answered in full",
        "failed": "requests that ended with a cause",
        "refused": "requests turned away",
        "unfinished": "requests without a terminal state",
    }
    metrics: dict[str, Metric] = {}
    for state, meaning in states.items():
        counted: Match = (("state", state),)
        metrics[f"requests.{state}"] = Metric(
            "requests", "state", "count", "requests", meaning, counted=counted
        )
        metrics[f"requests.{state}_ratio"] = Metric(
            "requests", "state", "share", "ratio", f"{meaning}, share of all", counted=counted
        )
    completed: Match = (("state", "completed"),)
    metrics["throughput_per_s"] = Metric(
        "requests", "state", "rate", "requests/s", "requests whose answer was complete in the window",
        counted=completed, window="end_s",
    )  # fmt: skip
    metrics["cache.hit_ratio"] = Metric(
        "requests", "cached_tokens", "sum_share", "ratio",
        "input tokens that the prefix cache gave, share of all; of requests that were computed",
        where=(), whole="input_tokens",
    )  # fmt: skip
    metrics["cache.fetched_tokens.sum"] = Metric(
        "requests", "fetched_tokens", "sum", "tokens", "input tokens fetched from the other cluster's cache"
    )
    offloaded: Match = (("route", "prfaas"),)
    metrics["offloaded_share"] = Metric(
        "requests", "route", "share", "ratio", "requests prefilled in DC A, share of all", counted=offloaded
    )
    metrics["offloaded.input_tokens.mean"] = Metric(
        "requests", "input_tokens", "mean", "tokens", "mean input of offloaded requests", where=offloaded
    )
    metrics["offloaded.kv_bytes.sum"] = Metric(
        "requests", "kv_bytes", "sum", "bytes", "KV sent over the WAN", where=offloaded
    )
    return metrics


def _control() -> dict[str, Metric]:
    """What the scheduler saw and decided, once per control interval."""
    columns: dict[str, tuple[Unit, str]] = {
        "threshold_tokens": ("tokens", "length above which a request is offloaded"),
        "goodput_bps": ("bps", "goodput of KV over the WAN, as the policy saw it"),
        "capacity_bps": ("bps", "what the policy believes the link gives"),
        "retrans_ratio": ("ratio", "retransmitted share of the bytes sent, as the policy saw it"),
        "queue_prfaas": ("requests", "requests waiting or running at prefill instances of DC A"),
        "queue_pd": ("requests", "requests waiting or running at prefill instances of DC B"),
        "queue_decode": ("requests", "requests waiting for or held by decode instances"),
        "n_prefill": ("instances", "instances of DC B that take new requests for prefill"),
        "n_decode": ("instances", "instances of DC B that take new requests for decode"),
        "prfaas_prefix_blocks": ("blocks", "blocks of 512 tokens in DC A's cache that hold prefixes"),
        "prfaas_transfer_blocks": ("blocks", "blocks there that requests and copies under way hold"),
        "pd_prefix_blocks": ("blocks", "blocks of 512 tokens in DC B's cache that hold prefixes"),
        "pd_transfer_blocks": ("blocks", "blocks there that requests and copies under way hold"),
    }
    where: Match = (("kind", "control"),)
    metrics: dict[str, Metric] = {}
    for column, (unit, meaning) in columns.items():
        metrics[column] = Metric("decisions", column, "signal", unit, meaning, where)
        for statistic in ("mean", "min", "max"):
            metrics[f"{column}.{statistic}"] = Metric(
                "decisions", column, statistic, unit, f"{meaning}, {statistic}", where
            )
    return metrics


def _link() -> dict[str, Metric]:
    """What the kernel's counters say about each direction of the WAN."""
    metrics: dict[str, Metric] = {}
    for direction in ("a_to_b", "b_to_a"):
        where: Match = (("direction", direction),)
        prefix = f"link.{direction}"
        gauges: dict[str, tuple[Unit, str]] = {
            "throughput_bps": ("bps", f"bits on the wire {direction}, headers and other tenants included"),
            "backlog_bytes": ("bytes", f"queue in front of the link {direction}"),
        }
        for column, (unit, meaning) in gauges.items():
            metrics[f"{prefix}.{column}"] = Metric("links", column, "signal", unit, meaning, where)
            for statistic in ("mean", "min", "max"):
                metrics[f"{prefix}.{column}.{statistic}"] = Metric(
                    "links", column, statistic, unit, f"{meaning}, {statistic}", where
                )
        metrics[f"{prefix}.utilisation"] = Metric(
            "links",
            "throughput_bps",
            "sum_share",
            "ratio",
            f"bits on the wire {direction}, share of what the link could carry",
            where,
            whole="rate_bps",
        )
        metrics[f"{prefix}.drops"] = Metric(
            "links",
            "drops",
            "sum",
            "super-packets",
            f"dropped by the queue {direction}: super-packets by a full buffer, packets by an AQM",
            where,
        )
        metrics[f"{prefix}.lost_packets"] = Metric(
            "links", "lost_packets", "sum", "packets", f"packets lost on the way {direction}", where
        )
    return metrics


def _transfers() -> dict[str, Metric]:
    """KV transfers of requests, and bulk transfers that measure the link itself."""
    wan_kv: Match = (("use", "kv"), ("wan", True))
    bulk: Match = (("use", "bulk"),)
    return {
        "transfers.checksum_errors": Metric(
            "transfers", "checksum_errors", "sum", "chunks", "chunks refused for a wrong checksum"
        ),
        "transfers.cache_bytes.sum": Metric(
            "transfers",
            "size_bytes",
            "sum",
            "bytes",
            "cached prefixes sent to the other cluster",
            (("use", "cache"), ("wan", True)),
        ),
        "transfers.failed": Metric(
            "transfers", "state", "count", "transfers", "failed transfers", counted=(("state", "failed"),)
        ),
        "transfers.wan_goodput_bps.mean": Metric(
            "transfers", "goodput_bps", "mean", "bps", "goodput per KV transfer over the WAN, mean", wan_kv
        ),
        "bulk.goodput_bps.min": Metric(
            "transfers", "goodput_bps", "min", "bps", "goodput of the slowest bulk transfer", bulk
        ),
        # The tables hold no progress within a transfer, but bytes on the wire every sample. With W(t) the
        # wire bytes of the transfer's direction since its start (linear between samples, the direction
        # being the one with more bytes) and `size` its payload, headers are the factor
        # size / W(end). With t_half the moment at which W reaches W(end) / 2:
        #     steady = 8 * (size / 2) / (t_end - t_half),   the lowest over all bulk transfers.
        # t_end is `end_s` less one way of delay, at which the last byte left the rate stage: take the
        # moment at which W reaches W(end). Not measured when another transfer shares the WAN with it; needs
        # samples well below the transfer's length.
        "bulk.steady_goodput_bps": Metric(
            "transfers", "goodput_bps", "steady_goodput", "bps",
            "payload rate over the second half of a bulk transfer's bytes, lowest of all", bulk,
        ),
    }  # fmt: skip


def _failures() -> dict[str, Metric]:
    """What became of requests when something failed."""
    metrics: dict[str, Metric] = {}
    for column, meaning in {
        "retried": "requests tried again in their own cluster",
        "recomputed": "requests tried again in the PD cluster",
        "cut_off": "requests without an end when the run had to end",
    }.items():
        metrics[f"requests.{column}"] = _counted("requests", "requests", meaning, (column, True))
        metrics[f"requests.{column}_ratio"] = Metric(
            "requests", "state", "share", "ratio", f"{meaning}, share of all", counted=((column, True),)
        )
    metrics["requests.served_twice"] = _counted(
        "requests", "requests", "requests that ended twice or got too many tokens", ("served_twice", True)
    )
    metrics["requests.damaged"] = _counted(
        "requests", "requests", "requests completed from KV with a damaged chunk",
        ("damaged", True), ("state", "completed"),
    )  # fmt: skip
    metrics["ledger.violations"] = Metric(
        "requests", "state", "violations", "violations", "requests, bytes and pools not accounted for"
    )
    metrics["kv_goodput_bps"] = Metric(
        "requests",
        "kv_bytes",
        "oracle",
        "bps",
        "KV over the WAN from A to B, while it waited for the link alone",
    )
    statistics: tuple[Statistic, ...] = ("p50", "max")
    for statistic in statistics:
        metrics[f"ttft_over_prefill.{statistic}"] = Metric(
            "requests", "ttft_over_prefill", statistic, "times",
            f"time to first token without the queue, by that of prefill alone, {statistic}",
        )  # fmt: skip
    metrics["offload_rate_per_s"] = Metric(
        "requests", "route", "signal", "requests/s", "arrivals per second that were prefilled in DC A",
        counted=(("route", "prfaas"),),
    )  # fmt: skip
    metrics["health.down.count"] = _counted(
        "health", "times", "how often the router gave an instance up", ("up", False)
    )
    metrics["health.down_s.max"] = Metric(
        "health", "down_s", "max", "s", "longest time for which an instance was given up", otherwise=0.0
    )
    return metrics


def _kv() -> dict[str, Metric]:
    """What became of KV, and what its pools and connections held."""
    metrics = {
        "transfers.resumed": _counted(
            "transfers", "transfers", "completed, although a part had to be sent again", ("resumed", True)
        ),
        "transfers.legs_apart_s.max": Metric(
            "transfers", "legs_apart_s", "max", "s",
            "how long one end of a failed transfer knew before the other", otherwise=0.0,
        ),
        "transfers.hidden_share": Metric(
            "transfers", "hidden_ratio", "mean", "ratio",
            "share of the time of a KV transfer over the WAN before its prefill's end, mean",
            (("use", "kv"), ("wan", True)),
        ),
        "pools.end_bytes": Metric(
            "pools", "held_bytes", "end_sum", "bytes", "held by all pools when the run ended"
        ),
        "sockets.kv.max": Metric(
            "connections", "sockets", "max", "sockets", "most connections for KV open at one instance"
        ),
    }  # fmt: skip
    for column, meaning in {
        "resent": "KV that the transport sent again",
        "dropped": "KV produced and dropped, with a reason",
        "superseded": "KV produced by an attempt that another one followed",
    }.items():
        metrics[f"transfers.{column}_bytes.sum"] = Metric(
            "transfers", f"{column}_bytes", "sum", "bytes", meaning, otherwise=0.0
        )
    for pool in ("send", "receive"):
        metrics[f"pools.{pool}_bytes.max"] = Metric(
            "pools", "held_bytes", "max", "bytes", f"most that the {pool} pool of one instance held",
            (("pool", pool),),
        )  # fmt: skip
    return metrics


def _counted(table: Table, unit: Unit, meaning: str, *counted: tuple[str, str | bool]) -> Metric:
    return Metric(table, counted[0][0], "count", unit, meaning, counted=counted)


METRICS: dict[str, Metric] = {
    **_requests(), **_times(), **_control(), **_link(), **_transfers(), **_failures(), **_kv()
}  # fmt: skip
