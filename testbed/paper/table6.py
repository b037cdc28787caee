"""Table 6: the paper's numbers, the model's in both conventions, and what over-loaded runs completed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from agents.model import Capacity, Convention, capacity
from testbed import measure
from testbed.metrics import METRICS
from testbed.paper.printed import (
    LEAST_RATIO_TO_HOMOGENEOUS,
    LEAST_RATIO_TO_NAIVE,
    LENGTHS,
    LINK_BPS,
    TABLE_6,
    Column,
)

FROM_S, TO_S = 100.0, 300.0
"""The queues stand by then, so that each stage that limits is busy throughout."""
Tables = Mapping[str, pl.DataFrame]


class Row(msgspec.Struct, frozen=True):
    """One quantity of one deployment; None: not printed, not limiting, or not there."""

    deployment: str
    quantity: str
    printed: float | None
    time_of_mean: float | None
    mean_of_times: float | None
    emulated: float | None


class Check(msgspec.Struct, frozen=True):
    """A ratio of emulated capacities, and the least that is asked of it."""

    what: str
    measured: float
    least: float

    @property
    def holds(self) -> bool:
        """Whether it is reached."""
        return self.measured >= self.least


def rows(emulated: Mapping[str, Tables]) -> list[Row]:
    """All of table 6; `emulated` holds the tables of each scenario's run."""
    found: list[Row] = []
    base = TABLE_6[1]
    base_model = {
        convention: _model(base, convention).lambda_max for convention in ("time_of_mean", "mean_of_times")
    }
    base_emulated = throughput_per_s(emulated[base.scenario])
    for column in TABLE_6:
        tables = emulated[column.scenario]
        paper, true = _model(column, "time_of_mean"), _model(column, "mean_of_times")
        measured = throughput_per_s(tables)

        def add(
            quantity: str,
            printed: float | None,
            models: tuple[float | None, float | None],
            run: float | None,
            column: Column = column,
        ) -> None:
            found.append(Row(column.title, quantity, printed, *models, run))

        if column.n_prfaas:
            add(
                "theta PrfaaS, requests/s",
                column.theta_prfaas,
                (paper.theta_prfaas, true.theta_prfaas),
                prefilled_per_s(tables, "prfaas"),
            )
        if column.n_p:
            add(
                "theta PD-P, requests/s",
                column.theta_p,
                (paper.theta_p, true.theta_p),
                prefilled_per_s(tables, "pd"),
            )
        add("theta PD-D, requests/s", column.theta_d, (paper.theta_d, true.theta_d), None)
        add("lambda max, requests/s", column.lambda_max, (paper.lambda_max, true.lambda_max), measured)
        add(
            "ratio to homogeneous",
            column.ratio,
            (
                paper.lambda_max / base_model["time_of_mean"],
                true.lambda_max / base_model["mean_of_times"],
            ),
            measured / base_emulated,
        )
        if column.offloaded_share is not None:
            share, tokens = _value("offloaded_share", tables), _value("offloaded.input_tokens.mean", tables)
            add("offloaded share", column.offloaded_share, (paper.share_long, true.share_long), share)
            add(
                "mean offloaded tokens",
                column.mean_offloaded_tokens,
                (paper.mean_long_tokens, true.mean_long_tokens),
                tokens,
            )
        if column.n_prfaas:
            egress_bps = _value("link.a_to_b.utilisation", tables) * LINK_BPS
            models = (paper.egress_bps / 1e9, true.egress_bps / 1e9)
            printed = column.egress_bps / 1e9 if column.egress_bps else None
            add("egress, Gbps", printed, models, egress_bps / 1e9)
    return found


def checks(emulated: Mapping[str, Tables]) -> tuple[Check, ...]:
    """How much more the PrfaaS deployment completes than the two others, at what is most for each."""
    prfaas, homogeneous, naive = (throughput_per_s(emulated[column.scenario]) for column in TABLE_6)
    return (
        Check("PrfaaS-PD to homogeneous PD", prfaas / homogeneous, LEAST_RATIO_TO_HOMOGENEOUS),
        Check("PrfaaS-PD to naive heterogeneous", prfaas / naive, LEAST_RATIO_TO_NAIVE),
    )


def throughput_per_s(tables: Tables) -> float:
    """Requests completed per second while the system was full."""
    return _value("throughput_per_s", tables)


def prefilled_per_s(tables: Tables, route: str) -> float:
    """Requests per second whose prefill ended in one of the clusters while the system was full."""
    ended = pl.col("prefill_end_s")
    mine = tables["requests"].filter((pl.col("route") == route) & (ended >= FROM_S) & (ended < TO_S))
    return mine.height / (TO_S - FROM_S)


def _model(column: Column, convention: Convention) -> Capacity:
    return capacity(column.system, LENGTHS, column.threshold_tokens, LINK_BPS, convention)


def _value(metric: str, tables: Tables) -> float:
    measured = measure.value(METRICS[metric], tables, FROM_S, TO_S)
    assert measured is not None, f"{metric} of a run with requests"
    return measured
