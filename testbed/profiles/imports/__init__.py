"""Profiles that others have measured, from their files into rows of the project's own table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from agents.kv_layouts import MODELS
from testbed.errors import Problem, ScenarioError
from testbed.profiles.imports import aiconfigurator, dynamo, plain, service, vidur
from testbed.profiles.imports.lines import Sheet
from testbed.profiles.read import check
from testbed.profiles.table import Row

Format = Literal["dynamo", "aiconfigurator", "vidur", "csv", "run"]
FORMATS: Final[tuple[Format, ...]] = ("dynamo", "aiconfigurator", "vidur", "csv", "run")
FILES: Final = {"dynamo": (1, 2), "aiconfigurator": (1, 1), "vidur": (2, 2), "csv": (1, 1), "run": (1, 1)}
"""Least and most files of each."""


def guess(path: Path) -> Format:
    """The format of a file, by its suffix or, of a CSV file, its header; a directory is a run's."""
    if path.is_dir():
        return "run"
    if path.suffix in (".npz", ".json"):
        return "dynamo"
    header = set(Sheet(path).header)
    if any(column.startswith("time_stats.") for column in header):
        return "vidur"
    if {"isl", "osl", "ttft", "tpot"} <= header:
        return "aiconfigurator"
    return "csv"


def model_in(path: Path, form: Format) -> str:
    """The model that a file says it is of, if its format says so; else empty."""
    return service.model_of(path) if form == "run" else ""


def convert(paths: Sequence[Path], wanted: Format | None, *, model: str, layers: int | None) -> list[Row]:
    """The points of these files, which together are one profile; `wanted` None: guessed.

    `layers` of the model, where the files are of one layer (vidur) and `model` is none that is known here.

    Raises:
        ScenarioError: files of several formats or too many, what is wrong in them by line, or what would be
            refused in the profile, such as too few points.
    """
    formats = {wanted or guess(path) for path in paths}
    if len(formats) > 1:
        raise ScenarioError(Problem("--import", f"files of {' and '.join(sorted(formats))}", "one format"))
    chosen = formats.pop()
    least, most = FILES[chosen]
    if not least <= len(paths) <= most:
        allowed = f"{least}" if least == most else f"{least} or {most}"
        raise ScenarioError(Problem("--import", f"{len(paths)} files of format {chosen}", allowed))
    rows = _rows(paths, chosen, model, layers)
    where = ", ".join(map(str, paths))
    _once(rows, where)
    check(rows, where, len(MODELS[model].layers) if model in MODELS else 0)
    return sorted(rows, key=lambda row: (row.kind != "prefill", row.kind, row.batch or 0, row.tokens))


def _rows(paths: Sequence[Path], chosen: Format, model: str, layers: int | None) -> list[Row]:
    if chosen == "dynamo":
        return [row for path in paths for row in dynamo.rows(path)]
    if chosen == "run":
        return service.rows(paths[0])
    if chosen == "aiconfigurator":
        return aiconfigurator.rows(Sheet(paths[0]))
    if chosen == "csv":
        return plain.rows(Sheet(paths[0]), model)
    attention, mlp = sorted((Sheet(path) for path in paths), key=lambda sheet: not vidur.is_attention(sheet))
    of_layers = layers or (len(MODELS[model].layers) if model in MODELS else 0)
    if not of_layers:
        raise ScenarioError(
            Problem("--import", "Vidur's files are of one layer", "--layers: how many the model has")
        )
    return vidur.rows(attention, mlp, of_layers)


def _once(rows: Sequence[Row], where: str) -> None:
    counts = Counter((row.kind, row.tokens, row.layer, row.batch) for row in rows)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        kind, tokens, layer, batch = twice[0]
        which = "" if layer is None else f", layer {layer}"
        which += "" if batch is None else f", batch {batch}"
        problem = Problem(where, f"{kind} of {tokens} tokens{which} is there more than once", "once")
        raise ScenarioError(problem)
