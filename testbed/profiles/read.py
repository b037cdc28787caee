"""Reading a profile: Parquet as `table` has it with JSON beside it, or CSV that somebody wrote by hand.

    kind,tokens,seconds,layer,batch     layer and batch may be left out where no row needs them; # begins a
    prefill,512,0.11                    comment. Kinds: prefill, layer (from 0, alone), decode (tokens: what
    decode,4096,0.021,,8                each of the batch holds before the step)

Every wrong row is a problem with its file and line, or the number of the row; rows of one kind, layer and
batch come with rising tokens.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import msgspec

from agents.compute_profile import FURTHEST_TOKENS, ComputeProfile, DecodeSteps, LayerShares
from testbed.errors import Problem, ScenarioError
from testbed.profiles.cells import (
    LEAST_S,
    LONGEST_S,
    MAX_ROWS,
    SECONDS_ALLOWED,
    content,
    decimal,
    printable,
)
from testbed.profiles.table import COLUMNS, FORMAT, About, Row, about_path
from testbed.units import shown

MAX_ABOUT_BYTES: Final = 2**20
MAX_PROBLEMS: Final = 10
"""More than this and the file is something else."""
MOST_LAYERS: Final = 10_000
MOST_BATCH: Final = 1_000_000

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)

Kind = Literal["prefill", "layer", "decode"]


class _Point(NamedTuple):
    """One measured time; `where` it stands, for messages."""

    where: str
    kind: Kind
    tokens: int
    layer: int | None
    batch: int | None
    seconds: float

    @property
    def series(self) -> tuple[Kind, int | None, int | None]:
        return self.kind, self.layer, self.batch


class _Problems:
    """What is wrong so far; gives up when that is much. Without `quotes` the file's text is not shown."""

    def __init__(self, where: str, *, quotes: bool) -> None:
        self.where, self.quotes = where, quotes
        self._found: list[Problem] = []

    def add(self, where: str, found: str, allowed: str = "") -> None:
        self._found.append(Problem(where, printable(found), allowed))
        if len(self._found) >= MAX_PROBLEMS:
            raise ScenarioError(*self._found)

    def cell(self, where: str, value: object, allowed: str) -> None:
        """A value that is not what it should be."""
        found = f"{shown(value)} is not allowed here" if self.quotes else "what stands here is not allowed"
        self.add(where, "is missing" if value == "" or value is None else found, allowed)

    def raise_if_any(self) -> None:
        if self._found:
            raise ScenarioError(*self._found)


def read(path: Path, *, quotes: bool = True) -> ComputeProfile:
    """The profile of a file; its name is the path. `quotes`: messages may show what stands in the file.

    Raises:
        ScenarioError: it cannot be read, or with up to MAX_PROBLEMS of what is wrong in it.
    """
    problems = _Problems(str(path), quotes=quotes)
    try:
        rows = _parquet_rows if path.suffix == ".parquet" else _csv_rows
        points = [point for where, cells in rows(path, problems) if (point := _point(where, cells, problems))]
        about = _about(about_path(path), problems)
    except OSError as error:
        raise ScenarioError(Problem(str(path), f"cannot be read: {error.strerror or error}")) from None
    if path.suffix == ".parquet":
        points = _sorted(points)
    profile = _profile(points, problems)
    if about is None:
        return profile
    count = len(profile.layers[0].ends) if profile.layers else 0
    if about.of_layers and count and about.of_layers != count:
        found = f"of_layers is {about.of_layers}, and the profile has {count} layers"
        problems.add(str(about_path(path)), found, "the same number")
    problems.raise_if_any()
    return msgspec.structs.replace(
        profile, source=_source(about) or profile.source, model=printable(about.model)
    )


def check(rows: Sequence[Row], where: str, of_layers: int = 0) -> None:
    """What `read` checks, of rows that are to be written; `of_layers` of the model, 0: not known.

    Raises:
        ScenarioError: `read` would refuse them, with up to MAX_PROBLEMS of what is wrong.
    """
    problems = _Problems(where, quotes=True)
    if len(rows) > MAX_ROWS:
        raise ScenarioError(Problem(where, f"{len(rows)} rows", f"at most {MAX_ROWS}"))
    named = ((f"{where}: {row.kind} of {row.tokens} tokens", msgspec.structs.asdict(row)) for row in rows)
    points = _sorted(point for place, cells in named if (point := _point(place, cells, problems)))
    profile = _profile(points, problems)
    count = len(profile.layers[0].ends) if profile.layers else 0
    if of_layers and count and count != of_layers:
        raise ScenarioError(Problem(where, f"has {count} layers", f"{of_layers}, as the model has, or none"))


def _sorted(points: Iterable[_Point]) -> list[_Point]:
    return sorted(points, key=lambda one: (one.kind, one.layer or 0, one.batch or 0, one.tokens))


def _source(about: About) -> str:
    """Where the times come from, in a line; empty when nothing says so."""
    part = (
        f"{about.layers} of {about.of_layers} layers measured" if 0 < about.layers < about.of_layers else ""
    )
    versions = ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items()))
    return printable(", ".join(filter(None, (about.device_name, about.source, part, versions, about.date))))


def _profile(points: list[_Point], problems: _Problems) -> ComputeProfile:
    """What the points come to. Raises ScenarioError with all problems so far, and these, if there are any."""
    _check_order(points, problems)
    problems.raise_if_any()
    knots = tuple((one.tokens, one.seconds) for one in points if one.kind == "prefill")
    if len(knots) < 2:  # noqa: PLR2004 - a line has two ends
        problems.add(problems.where, f"prefill rows of {len(knots)} lengths", "two or more")
    decode = _decode(points, problems)
    layers = _layers(points, problems)
    problems.raise_if_any()
    return ComputeProfile(
        name=problems.where,
        source=printable(Path(problems.where).name),
        knots=knots,
        bs_max=max((batch for one in decode for batch, _ in one.steps), default=0),
        from_tokens=knots[0][0],
        layers=layers,
        decode=decode,
    )


def _decode(points: list[_Point], problems: _Problems) -> tuple[DecodeSteps, ...]:
    steps: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for one in points:
        if one.kind == "decode":
            assert one.batch is not None
            steps[one.tokens].append((one.batch, one.seconds))
    if len(steps) == 1:
        problems.add(problems.where, "decode rows with contexts of one length", "none, or two or more")
    return tuple(DecodeSteps(tokens, tuple(sorted(steps[tokens]))) for tokens in sorted(steps))


def _layers(points: list[_Point], problems: _Problems) -> tuple[LayerShares, ...]:
    alone_s: dict[int, dict[int, float]] = defaultdict(dict)
    for one in points:
        if one.kind == "layer":
            assert one.layer is not None
            alone_s[one.tokens][one.layer] = one.seconds
    count = max((layer for layers in alone_s.values() for layer in layers), default=-1) + 1
    for tokens, layers in alone_s.items():
        if len(layers) < count:
            missing = next(layer for layer in range(count) if layer not in layers)
            found = f"no layer {missing} at {tokens} tokens"
            problems.add(problems.where, found, f"each of the {count} layers")
    problems.raise_if_any()
    return tuple(
        LayerShares(tokens, _ends([alone_s[tokens][layer] for layer in range(count)]))
        for tokens in sorted(alone_s)
    )


def _ends(alone_s: list[float]) -> tuple[float, ...]:
    """The share of the sum up to each; the last is 1."""
    sums = list(accumulate(alone_s))
    return tuple(value / sums[-1] for value in sums)


def _check_order(points: Iterable[_Point], problems: _Problems) -> None:
    """Tokens rise within each series: who writes by hand notices a slip so."""
    last: dict[object, int] = {}
    for one in points:
        if one.tokens <= last.get(one.series, 0):
            found = f"{one.tokens} tokens come after {last[one.series]}"
            problems.add(one.where, found, "rising tokens within a kind, layer and batch, each once")
        last[one.series] = one.tokens


def _point(where: str, cells: dict[str, Any], problems: _Problems) -> _Point | None:
    """A row of either file; None, and a problem, when it is none, and None for sizes of KV."""
    kind = cells["kind"]
    if kind == "kv" and "median_s" in cells:
        return None
    if kind not in get_args(Kind):
        problems.cell(f"{where}: kind", kind, ", ".join(get_args(Kind)))
        return None
    needed = {"prefill": None, "layer": "layer", "decode": "batch"}[kind]
    seconds = "median_s" if "median_s" in cells else "seconds"
    kinds: dict[str, tuple[Callable[[Any], Any], str]] = {
        "tokens": (_whole(1, FURTHEST_TOKENS), f"a whole number from 1 to {FURTHEST_TOKENS}"),
        "layer": (_whole(0, MOST_LAYERS - 1), f"a whole number from 0 to {MOST_LAYERS - 1}"),
        "batch": (_whole(1, MOST_BATCH), f"a whole number from 1 to {MOST_BATCH}"),
        seconds: (_seconds, SECONDS_ALLOWED),
    }
    values: dict[str, Any] = {}
    for name, (parse, allowed) in kinds.items():
        cell = cells.get(name)
        empty = cell is None or cell == ""
        if name in {"layer", "batch"} and name != needed:
            if not empty:
                problems.cell(f"{where}: {name}", cell, f"nothing in a row of kind {kind}")
                return None
            values[name] = None
            continue
        values[name] = None if empty else parse(cell)
        if values[name] is None:
            problems.cell(f"{where}: {name}", "" if empty else cell, allowed)
            return None
    return _Point(
        where, cast("Kind", kind), values["tokens"], values["layer"], values["batch"], values[seconds]
    )


def _whole(least: int, most: int) -> Callable[[Any], int | None]:
    def parse(cell: Any) -> int | None:
        if isinstance(cell, str) and not _WHOLE.fullmatch(cell):
            return None
        value = int(cell)
        return value if least <= value <= most else None

    return parse


def _seconds(cell: Any) -> float | None:
    value = decimal(cell) if isinstance(cell, str) else float(cell)
    return value if value is not None and LEAST_S <= value <= LONGEST_S else None


def _csv_rows(path: Path, problems: _Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cells by column, with `file:line`."""
    try:
        lines = content(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise ScenarioError(Problem(str(path), found, "a text file in UTF-8")) from None
    numbered = ((number, line.strip()) for number, line in enumerate(lines, start=1))
    said = [(number, line) for number, line in numbered if line and not line.startswith("#")]
    if len(said) > MAX_ROWS + 1:
        raise ScenarioError(Problem(str(path), f"{len(said)} lines", f"at most {MAX_ROWS} rows"))
    if not said:
        raise ScenarioError(Problem(str(path), "has no rows", "a header with kind,tokens,seconds, then rows"))
    header: list[str] = []
    for number, line in said:
        where = f"{path}:{number}"
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], strict=True, skipinitialspace=True))]
        except csv.Error as error:
            problems.add(where, f"is no CSV: {error}", "a row a line")
            continue
        if not header:
            header = cells
            _check_header(where, header, problems)
        elif len(cells) != len(header):
            problems.add(where, f"{len(cells)} values", f"{len(header)}: {', '.join(header)}")
        else:
            yield where, dict(zip(header, cells, strict=True))


def _check_header(where: str, header: list[str], problems: _Problems) -> None:
    needed, more = ["kind", "tokens", "seconds"], ["layer", "batch"]
    unknown = [name for name in header if name not in [*needed, *more]]
    missing = [name for name in needed if name not in header]
    twice = len(set(header)) < len(header)
    if unknown or missing or twice:
        problems.cell(where, ",".join(header), "a header with kind, tokens, seconds and maybe layer, batch")
        problems.raise_if_any()


def _parquet_rows(path: Path, problems: _Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cells by column, with the number of the row."""
    import polars as pl  # noqa: PLC0415 - 0.2 s, which scenarios without such a file do not need

    try:
        table = pl.read_parquet(io.BytesIO(content(path)), n_rows=MAX_ROWS + 1)
    except pl.exceptions.PolarsError:
        raise ScenarioError(Problem(str(path), "is no Parquet file", "a recorded profile")) from None
    schema = pl.Schema(COLUMNS)
    if dict(table.schema) != dict(schema):
        other = [name for name in table.columns if table.schema[name] != schema.get(name)]
        other += [name for name in schema if name not in table.columns]
        found = f"has other columns: {', '.join(other)}" if problems.quotes else "has other columns"
        allowed = ", ".join(f"{name} ({kind})" for name, kind in schema.items())
        raise ScenarioError(Problem(str(path), printable(found), allowed))
    if table.height > MAX_ROWS:
        raise ScenarioError(Problem(str(path), "has too many rows", f"at most {MAX_ROWS}"))
    for number, cells in enumerate(table.rows(named=True), start=1):
        yield f"{path}: row {number}", cells


def _about(path: Path, problems: _Problems) -> About | None:
    """What the JSON file says; None where there is none."""
    try:
        data = content(path, MAX_ABOUT_BYTES)
    except FileNotFoundError:
        return None
    try:
        about = msgspec.json.decode(data, type=About)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problems.add(str(path), f"is not what describes a profile: {error}", "JSON as the recorder writes it")
        return None
    if about.layers > about.of_layers:
        found = f"layers is {about.layers}, and of_layers {about.of_layers}"
        problems.add(str(path), found, "layers measured, at most as many as the model has")
    if about.format > FORMAT:
        problems.add(str(path), f"has format {about.format}", f"format {FORMAT}, which this version reads")
    return about
