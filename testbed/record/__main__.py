"""Record what computing costs here: `python -m testbed.record --model tiny_hybrid --out profiles/x.parquet`.

Or take over what others have measured, or what a run took: `--import FILE|RUN`. Either way the profile is
three files: a table (Parquet), what it is of (JSON) and a picture (SVG); see docs/profiles.md.
"""

from __future__ import annotations

import errno
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from agents.kv_layouts import MODELS
from agents.measurements import Began, Wanted
from agents.shapes import SHAPES
from testbed.command import run_command, terminal
from testbed.errors import Problem, ScenarioError
from testbed.profiles import imports, table
from testbed.profiles.cells import printable
from testbed.profiles.imports.plain import plain_name
from testbed.profiles.read import MOST_LAYERS
from testbed.profiles.table import About, Row
from testbed.readable import number, quantity
from testbed.record import asked, plots, samples
from testbed.record.measuring import lines, lines_of_guest

app = typer.Typer(add_completion=False)
SHOWN: Final = 5
MAX_THREADS: Final = 4096
MAX_ROUNDS: Final = 10_000
MOST_LINES: Final = 20
"""Of the table on the terminal."""
NAMES: Final = (
    errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EPERM,
    errno.EROFS,
)  # fmt: skip
"""Errors of where the profile was to go, not of the machine."""


@app.command(name="record")
def record(
    context: typer.Context,
    *,
    out: Annotated[Path, typer.Option(help="The profile: NAME.parquet.", show_default=False)],
    model: Annotated[str, typer.Option(help="What to measure; of an import, what it is of.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_LAYERS,
            help="Measure the first so many only; the others take as long.",
            show_default=False,
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Prompt lengths in tokens.")] = "512,1024,2048,4096",
    batches: Annotated[str, typer.Option(help="Requests in a decode step.")] = "1,2,4,8",
    contexts: Annotated[str, typer.Option(help="Tokens that each holds before the step.")] = "512,2048,4096",
    warmup: Annotated[int, typer.Option(min=0, max=MAX_ROUNDS, help="Rounds that do not count.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Rounds that count.")] = 5,
    threads: Annotated[
        int, typer.Option(min=0, max=MAX_THREADS, help="Of torch; 0: as many as it takes. Agents have 1.")
    ] = 1,
    rest: Annotated[
        float, typer.Option(min=0, max=60, help="Seconds of rest before each prefill, as under a light load.")
    ] = 0.0,
    kernel: Annotated[
        str, typer.Option(help="Where: host, or uml, a guest as that in which runs with real kernels are.")
    ] = "host",
    batched: Annotated[
        bool, typer.Option("--batched", help="One matrix product for a batch, as an engine does.")
    ] = False,
    imported: Annotated[
        list[Path] | None,
        typer.Option(
            "--import", metavar="FILE|RUN", help="Convert this instead of measuring; may come twice."
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Of the import: dynamo, aiconfigurator, vidur, csv, run or auto.")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a profile that is there.")] = False,
) -> None:
    """Record a profile, or import one. Exit code: 0 done, 2 broken off, 3 bad arguments, 4 bad machine."""
    problems: list[Problem] = []
    asked.check_import(context, importing=bool(imported), problems=problems)
    asked.check_out(out, imported or [], force=force, problems=problems)
    if imported:
        chosen = next((one for one in imports.FORMATS if one == form), None)
        if chosen is None and form != "auto":
            problems.append(Problem("--format", repr(form), f"auto, {', '.join(imports.FORMATS)}"))
        asked.raise_all(problems)
        form_of_it = chosen or imports.guess(imported[0])
        name = model or imports.model_in(imported[0], form_of_it)
        known = plain_name(name) if plain_name(name) in MODELS else name
        rows = imports.convert(imported, chosen, model=known, layers=layers)
        about = _about_import(imported, form_of_it, known, rows)
    else:
        wanted = asked.wanted(
            model=model, device=device, layers=layers, lengths=lengths, batches=batches, contexts=contexts,
            warmup=warmup, repeats=repeats, threads=threads, rest=rest, batched=batched,
            kernel=kernel, problems=problems,
        )  # fmt: skip
        asked.raise_all(problems)
        assert wanted is not None
        asked.require_torch()
        rows, about = _measure(wanted, kernel, out)
    _write(out, rows, about, force=force)
    _show(out, rows, about)


def _measure(wanted: Wanted, kernel: str, out: Path) -> tuple[list[Row], About]:
    """Measure in a process of its own; says so where the samples lie far apart."""
    from testbed.manifest import cpu  # noqa: PLC0415 - polars takes half a second, which others do not need

    found = list((lines_of_guest if kernel == "uml" else lines)(wanted, Console(stderr=True)))
    shape = SHAPES[wanted.model]
    rows = samples.rows(found, shape)
    began = next(line for line in found if isinstance(line, Began))
    about = About(
        model=wanted.model,
        source=shape.source,
        layers=wanted.layers,
        of_layers=len(shape.layers),
        device=began.device,
        device_name=f"{cpu('model name')}, in a guest" if kernel == "uml" else began.device_name,
        threads=began.threads,
        dtype=began.dtype,
        exact=wanted.exact,
        versions=began.versions,
        clocks=began.clocks,
        warmup=wanted.warmup,
        repeats=wanted.repeats,
        command=_command(wanted, kernel, out),
        date=_now(),
    )
    if wide := samples.restless(rows):
        more = f" and {len(wide) - SHOWN} more" if len(wide) > SHOWN else ""
        print(f"warning: samples lie far apart: {'; '.join(wide[:SHOWN])}{more}", file=sys.stderr)
    return rows, about


def _about_import(paths: Sequence[Path], form: imports.Format, model: str, rows: Sequence[Row]) -> About:
    with_layers = {row.layer for row in rows if row.layer is not None}
    return About(
        model=model,
        source=f"{', '.join(path.name for path in paths)} ({form})",
        layers=len(with_layers),
        of_layers=len(MODELS[model].layers) if model in MODELS else len(with_layers),
        command=shlex.join(["python", "-m", "testbed.record", *_import_options(paths, form, model)]),
        date=_now(),
    )


def _import_options(paths: Sequence[Path], form: imports.Format, model: str) -> list[str]:
    files = [part for path in paths for part in ("--import", str(path))]
    return [*files, "--format", form, *(["--model", model] if model else [])]


def _command(wanted: Wanted, kernel: str, out: Path) -> str:
    """The command line that measures the same once more."""
    lists = {"lengths": wanted.lengths, "batches": wanted.batches, "contexts": wanted.contexts}
    counts = {"layers": wanted.layers, "warmup": wanted.warmup, "repeats": wanted.repeats}
    options = [f"--{name} {','.join(map(str, values))}" for name, values in lists.items()]
    options += [f"--{name} {value}" for name, value in {**counts, "threads": wanted.threads}.items()]
    options += [f"--rest {wanted.rest_s:g}"] if wanted.rest_s else []
    options += [] if kernel == "host" else [f"--kernel {kernel}"]
    options += [] if wanted.exact else ["--batched"]
    what = f"--model {wanted.model} --device {wanted.device}"
    return f"python -m testbed.record {what} {' '.join(options)} --out {shlex.quote(str(out))}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(out: Path, rows: Sequence[Row], about: About, *, force: bool) -> None:
    """The three files. ScenarioError where they cannot go there, OSError where the machine fails."""
    where = f"--out {printable(str(out))}"
    try:
        table.write(out, rows, about, plot=plots.picture(rows, about), force=force)
    except FileExistsError:
        problem = Problem(where, "somebody else has written it meanwhile", "a new name", "--force overwrites")
        raise ScenarioError(problem) from None
    except OSError as error:
        if error.errno not in NAMES:
            raise
        raise ScenarioError(Problem(where, f"cannot be written: {error.strerror}")) from None


def _show(out: Path, rows: Sequence[Row], about: About) -> None:
    """What is in the profile, in a few lines."""
    console = terminal()
    shown = Table("tokens", "T_prefill", "quartiles apart", "S_kv")
    sizes = {row.tokens: row.size_bytes for row in rows if row.kind == "kv"}
    prefill = sorted((row for row in rows if row.kind == "prefill"), key=lambda row: row.tokens)
    left_out = len(prefill) - MOST_LINES
    for place, row in enumerate(prefill):
        if left_out > 0 and place == MOST_LINES // 2:
            shown.add_row(f"... {left_out:,} more")
        if row.median_s is not None and not (0 <= place - MOST_LINES // 2 < left_out):
            spread = "" if row.p25_s is None else f"{number(samples.spread_of(row) * 100, 2)} %"
            size_bytes = sizes.get(row.tokens)
            size = "" if size_bytes is None else quantity(size_bytes, "bytes")
            shown.add_row(f"{row.tokens:,}", quantity(row.median_s, "s"), spread, size)
    console.print(shown)
    steps = [row.median_s for row in rows if row.kind == "decode" and row.median_s is not None]
    decode = f", decode steps of {quantity(min(steps), 's')} to {quantity(max(steps), 's')}" if steps else ""
    what = printable(f"{about.model or about.source} on {about.device_name or 'a machine unknown'}")
    console.print(
        f"{what}{decode}   {printable(str(out), len(str(out)))}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(run_command(app))
