"""Fewer points where a chart has more than its width can show; what is seen stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.report.svg import PLOT_WIDTH, Chart, Curve, TimeAxis

MOST_POINTS = 2 * PLOT_WIDTH
"""A curve with fewer points is drawn as it is."""


def thinned(chart: Chart, axis: TimeAxis) -> Chart:
    """The chart with what matters of each column of pixels: the lowest, the highest and, of steps, the last.

    Dots and marks are left to `svg`, which puts those together that lie on each other.
    """
    return replace(chart, curves=tuple(_curve(curve, axis) for curve in chart.curves))


def _curve(curve: Curve, axis: TimeAxis) -> Curve:
    if curve.shape not in ("line", "area", "step") or len(curve.times_s) <= MOST_POINTS:
        return curve
    kept: list[int] = []
    column: list[int] = []
    place = None
    for index, t_s in enumerate(curve.times_s):
        x = int((t_s - axis.from_s) / (axis.to_s - axis.from_s) * PLOT_WIDTH)
        if x != place:
            kept += _chosen(column, curve.values, keep_last=curve.shape == "step")
            place, column = x, []
        column.append(index)
    kept += _chosen(column, curve.values, keep_last=curve.shape == "step")
    return replace(
        curve,
        times_s=[curve.times_s[index] for index in kept],
        values=[curve.values[index] for index in kept],
    )


def _chosen(column: Sequence[int], values: Sequence[float | None], *, keep_last: bool) -> list[int]:
    """Indices that stand for a column of pixels, in order of time; a break at either end stays one."""
    there = [(value, index) for index in column if (value := values[index]) is not None]
    chosen = {min(there)[1], max(there)[1]} if there else set()
    if column and (keep_last or values[column[-1]] is None):
        chosen.add(column[-1])
    if column and values[column[0]] is None:
        chosen.add(column[0])
    return sorted(chosen)
