"""Static estimates of NVIDIA AIConfigurator: a CSV file with a line for each length and batch.

Columns are `ColumnsStatic` of its sdk/common.py; `ttft` and `tpot` are ms. A line of batch 1 is a point of
prefill; every line is a point of decode, at the mean context over its output, isl + osl / 2. Aggregated and
disaggregated results (`num_ctx_reqs`, `(p)bs`) are refused: their times contain waiting and corrections.
"""

from __future__ import annotations

from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.profiles.cells import printable
from testbed.profiles.imports.lines import Line, Sheet
from testbed.profiles.table import Row

MS_PER_S: Final = 1000.0
NEEDED: Final = ("isl", "osl", "bs", "ttft", "tpot")
NOT_STATIC: Final = ("num_ctx_reqs", "(p)bs", "(d)bs")
SETUP: Final = ("model", "tp", "pp", "dp", "moe_tp", "moe_ep", "gemm", "kvcache", "backend", "system")
"""Columns that must be the same in all lines: a profile is of one instance."""


def rows(sheet: Sheet) -> list[Row]:
    """The points of the file.

    Raises:
        ScenarioError: results of another kind, more than one setup, a cached prefix, a malformed line.
    """
    if other := [column for column in NOT_STATIC if column in sheet.header]:
        raise ScenarioError(
            Problem(f"{sheet.path}:1", f"not a static estimate: has {', '.join(other)}", "static estimates")
        )
    sheet.require(*NEEDED)
    _one_setup(sheet)
    found = [row for line in sheet.lines for row in _points(line)]
    sheet.finish()
    return found


def _points(line: Line) -> list[Row]:
    isl, osl, batch = line.integer("isl"), line.integer("osl"), line.integer("bs")
    if line.text("prefix") not in ("", "0", "0.0"):
        line.refuse("prefix", "0: what is computed is the whole prompt")
    points = []
    if batch == 1:
        points.append(Row(kind="prefill", tokens=isl, median_s=line.seconds("ttft", MS_PER_S)))
    if osl > 1:  # the first token is prefill's
        step_s = line.seconds("tpot", MS_PER_S)
        points.append(Row(kind="decode", tokens=isl + osl // 2, batch=batch, median_s=step_s))
    return points


def _one_setup(sheet: Sheet) -> None:
    for column in SETUP:
        values = list(dict.fromkeys(line.text(column) for line in sheet.lines))
        if len(values) > 1:
            found = printable(f"{len(values)} values of {column}: {', '.join(values)}")
            raise ScenarioError(Problem(str(sheet.path), found, "one", "keep the lines of one setup"))
