"""What a profile on disk looks like: NAME.parquet, one long table, and NAME.json beside it.

    kind      prefill: a whole prompt of `tokens`          layer: one layer of it, alone
              kv: bytes of the KV cache of such a prompt   decode: one step of `batch` requests, each of
              which holds `tokens` already

Times are seconds of wall time. A null means that the kind of row has no such value.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, Literal

import msgspec

Kind = Literal["prefill", "layer", "kv", "decode"]
FORMAT: Final = 1
"""Of the JSON file; a reader refuses a higher one."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Of layers, threads, rounds: more is a mistake."""

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


def timed(row: Row, times_s: Sequence[float]) -> Row:
    """The row with median, quartiles (inclusive: of one sample all are the same) and number of samples."""
    values = [times_s[0], *times_s] if len(times_s) == 1 else times_s
    p25_s, median_s, p75_s = statistics.quantiles(values, n=4, method="inclusive")
    return msgspec.structs.replace(row, median_s=median_s, p25_s=p25_s, p75_s=p75_s, samples=len(times_s))


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON file: what was measured, on what and how. Where nothing is known, empty, 0 or null."""

    model: str
    source: str
    """A command line for what was recorded here, file and format for what was imported."""
    format: Annotated[int, msgspec.Meta(ge=1)] = FORMAT
    layers: Count = 0
    """Measured; 0: no layers apart."""
    of_layers: Count = 0
    """In the model."""
    device: str = ""
    device_name: str = ""
    threads: Count = 0
    dtype: str = ""
    exact: bool | None = None
    """Each row of a batch by itself; false: batched matmuls."""
    versions: dict[str, str] = {}
    clocks: dict[str, str] = {}
    warmup: Count = 0
    repeats: Count = 0
    command: str = ""
    date: str = ""


def about_path(path: Path) -> Path:
    """The JSON file of a profile."""
    return path.with_suffix(".json")


def plot_path(path: Path) -> Path:
    """The picture of a profile."""
    return path.with_suffix(".svg")


def all_paths(path: Path) -> tuple[Path, Path, Path]:
    """The files of a profile, in the order in which they appear: where the last is, the others are."""
    return about_path(path), plot_path(path), path


def write(
    path: Path, rows: Iterable[Row], about: About, *, plot: str | None = None, force: bool = False
) -> None:
    """Write the profile: `path`, and beside it JSON and, where there is one, the picture.

    The files are written in a private directory beside it, and then moved while no other writer may, the
    Parquet file last. `force` replaces a profile, whose Parquet file goes first: so no mixture is ever read.

    Raises:
        FileExistsError: there is one of the files, and no `force`.
        OSError: a file cannot be written; nothing of it stays.
    """
    import polars as pl  # noqa: PLC0415 - 0.2 s, which who only reads the schema does not need

    columns = [msgspec.structs.astuple(row) for row in rows]
    packed = io.BytesIO()
    pl.DataFrame(columns, schema=COLUMNS, orient="row").write_parquet(packed)
    document = msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"
    contents = {about_path(path): document, path: packed.getvalue()}
    if plot is not None:
        contents[plot_path(path)] = plot.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=".profile-") as private:
        for final, content in contents.items():
            (Path(private) / final.name).write_bytes(content)
        with _alone(path.parent):
            _make_room(path, force=force)
            for final in all_paths(path):
                if final in contents:
                    (Path(private) / final.name).replace(final)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No other writer of profiles moves files in this directory meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_room(path: Path, *, force: bool) -> None:
    """Check that nothing is in the way; with `force` the old profile is none any more."""
    for one in all_paths(path):
        if one.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(one))
        if not force and os.path.lexists(one):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(one))
    path.unlink(missing_ok=True)
    plot_path(path).unlink(missing_ok=True)
