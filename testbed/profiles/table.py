"""What a profile on disk looks like: NAME.parquet, one long table, and NAME.json beside it.

    kind      prefill: a whole prompt of `tokens`          layer: one layer of it, alone
              kv: bytes of the KV cache of such a prompt   decode: one step of `batch` requests, each of
              which holds `tokens` already

Times are seconds of wall time. A null means that the kind of row has no such value.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

Kind = Literal["prefill", "layer", "kv", "decode"]
FORMAT: Final = 1
"""Of the JSON file; a reader refuses a higher one."""

COLUMNS: Final[dict[str, type]] = {
    "kind": str,
    "tokens": int,
    "layer": int,
    "batch": int,
    "median_s": float,
    "p25_s": float,
    "p75_s": float,
    "samples": int,
    "size_bytes": int,
}
"""Columns of the Parquet file: Int64, Float64, String."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured point. `layer` is 0-based; `samples` is what the median and the quartiles are of."""

    kind: Kind
    tokens: int
    layer: int | None = None
    batch: int | None = None
    median_s: float | None = None
    p25_s: float | None = None
    p75_s: float | None = None
    samples: int | None = None
    size_bytes: int | None = None


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON file: what was measured, on what and how. Where nothing is known, empty, 0 or null."""

    model: str
    source: str
    """A command line for what was recorded here, file and format for what was imported."""
    format: int = FORMAT
    layers: int = 0
    """Measured; 0: no layers apart."""
    of_layers: int = 0
    """In the model."""
    device: str = ""
    device_name: str = ""
    threads: int = 0
    dtype: str = ""
    exact: bool | None = None
    """Each row of a batch by itself; false: batched matmuls."""
    versions: dict[str, str] = {}
    clocks: dict[str, str] = {}
    warmup: int = 0
    repeats: int = 0
    command: str = ""
    date: str = ""


def about_path(path: Path) -> Path:
    """The JSON file of a profile."""
    return path.with_suffix(".json")


def plot_path(path: Path) -> Path:
    """The picture of a profile."""
    return path.with_suffix(".svg")


def write(path: Path, rows: Iterable[Row], about: About, *, plot: str | None = None) -> None:
    """Write the profile: `path`, and beside it JSON and, where there is one, the picture.

    Each file is written under a temporary name first, the Parquet file takes its own last: where it is, the
    others are.

    Raises:
        OSError: a file cannot be written; temporary ones are gone.
    """
    import polars as pl  # noqa: PLC0415 - 0.2 s, which who only reads the schema does not need

    columns = [msgspec.structs.astuple(row) for row in rows]
    table = pl.DataFrame(columns, schema=COLUMNS, orient="row")
    document = msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"
    beside = {about_path(path): document}
    if plot is not None:
        beside[plot_path(path)] = plot.encode()
    parts = {final: final.with_name(f".{final.name}.part") for final in (*beside, path)}
    try:
        for final, content in beside.items():
            parts[final].write_bytes(content)
        table.write_parquet(parts[path])
        for final, part in parts.items():
            part.replace(final)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
