"""What the command line asks for, checked before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import typer

from agents.measurements import Wanted
from agents.shapes import SHAPES
from testbed.errors import MachineError, Problem, ScenarioError
from testbed.profiles.cells import printable
from testbed.profiles.table import all_paths

LEAST_POINTS: Final = 2
MOST_POINTS: Final = 256
MOST_TOKENS: Final = 2**20
MOST_BATCH: Final = 4096
MOST_HELD_TOKENS: Final = 2**24
"""Of the largest batch at the longest context."""
MEASURING: Final = (
    "device",
    "lengths",
    "batches",
    "contexts",
    "warmup",
    "repeats",
    "threads",
    "rest",
    "kernel",
    "batched",
)
IMPORTING: Final = {"form": "format"}
"""Parameters, and the option where that has another name."""
DEVICES: Final = ("auto", "cpu", "cuda")
KERNELS: Final = ("host", "uml")

_WHOLE: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def numbers(option: str, text: str, least: int, most: int, problems: list[Problem]) -> tuple[int, ...]:
    """The whole numbers of a list such as 1,2,4, each up to `most`; else there is a problem of `option`.

    `least` so many there are, and MOST_POINTS at most.
    """
    example = "512,1024" if least > 1 else "1,2,4"
    allowed = f"whole numbers from 1 to {most}, ascending, such as {example}"
    parts = [part.strip() for part in text.split(",")]
    if not all(_WHOLE.fullmatch(part) for part in parts):
        problems.append(Problem(option, f"'{printable(text)}'", allowed))
        return ()
    found = tuple(int(part) for part in parts)
    if not 1 <= found[0] <= found[-1] <= most or list(found) != sorted(set(found)):
        problems.append(Problem(option, f"'{printable(text)}'", allowed))
    elif len(found) < least:
        problems.append(Problem(option, repr(text), f"at least {least}, to interpolate between"))
    elif len(found) > MOST_POINTS:
        problems.append(Problem(option, f"{len(found)} numbers", f"at most {MOST_POINTS}"))
    return found


def wanted(
    *,
    model: str,
    device: str,
    layers: int | None,
    lengths: str,
    batches: str,
    contexts: str,
    warmup: int,
    repeats: int,
    threads: int,
    rest: float,
    batched: bool,
    kernel: str,
    problems: list[Problem],
) -> Wanted | None:
    """What to measure; None, and in `problems` why, when that is not possible."""
    before = len(problems)
    shape = SHAPES.get(model)
    if shape is None:
        problems.append(Problem("--model", f"no model {model!r}", ", ".join(SHAPES)))
    if device not in DEVICES:
        problems.append(Problem("--device", repr(device), ", ".join(DEVICES)))
    if kernel not in KERNELS:
        problems.append(Problem("--kernel", repr(kernel), ", ".join(KERNELS)))
    of_layers = len(shape.layers) if shape else 0
    if shape and layers is not None:
        least = 1 + max(shape.layers.index(kind) for kind in set(shape.layers))
        if not least <= layers <= of_layers:
            why = "" if layers > of_layers else ": each kind of layer must be among them"
            problems.append(Problem("--layers", f"{layers}{why}", f"{least} to {of_layers}"))
    found = Wanted(
        model=model,
        layers=layers or of_layers,
        device="cuda" if device == "cuda" else "cpu" if device == "cpu" else "auto",
        lengths=numbers("--lengths", lengths, LEAST_POINTS, MOST_TOKENS, problems),
        batches=numbers("--batches", batches, 1, MOST_BATCH, problems),
        contexts=numbers("--contexts", contexts, LEAST_POINTS, MOST_TOKENS, problems),
        warmup=warmup,
        repeats=repeats,
        threads=threads,
        exact=not batched,
        rest_s=rest,
    )
    if found.batches and found.contexts and found.batches[-1] * found.contexts[-1] > MOST_HELD_TOKENS:
        held = f"a batch of {found.batches[-1]} with {found.contexts[-1]} tokens each"
        problems.append(Problem("--batches, --contexts", held, f"at most {MOST_HELD_TOKENS} tokens in all"))
    return found if len(problems) == before else None


def check_out(out: Path, imported: Sequence[Path], *, force: bool, problems: list[Problem]) -> None:
    """Problems with where the profile goes; nothing is made yet. Files that are `imported` stay as they are.

    Raises:
        OSError: the machine, such as a disk, fails.
    """
    option = f"--out {printable(str(out))}"
    if out.suffix != ".parquet":
        problems.append(Problem(option, f"the suffix {printable(out.suffix)!r}", ".parquet"))
        return
    try:
        problem = _in_the_way(out, imported, force=force)
    except OSError as error:
        problem = f"cannot be made: {error.strerror}", "another name", ""
    if problem:
        problems.append(Problem(option, *problem))


def _in_the_way(out: Path, imported: Sequence[Path], *, force: bool) -> tuple[str, str, str] | None:
    """What is wrong, what is allowed and the next step."""
    paths = all_paths(out)
    there = [path for path in paths if os.path.lexists(path)]
    taken = [path.name for path in there if any(_same(path, one) for one in imported)]
    if taken:
        return f"{', '.join(taken)} is what is imported", "another name", ""
    if there and not force:
        return f"{', '.join(path.name for path in there)} there already", "a new name", "--force overwrites"
    if folders := [path.name for path in there if path.is_dir()]:
        return f"{', '.join(folders)} is a directory", "a file in a writable directory", ""
    return _directory(out)


def _directory(out: Path) -> tuple[str, str, str] | None:
    """As `_in_the_way`: the directory, or the next one above, in which it will be made."""
    above = next(one for one in out.absolute().parents if os.path.lexists(one))
    if not above.is_dir():
        return f"{above} is no directory", "a file in a writable directory", ""
    if not os.access(above, os.W_OK | os.X_OK):
        return "cannot be written", "a file in a writable directory", ""
    most = os.pathconf(above, "PC_NAME_MAX")
    if any(len(os.fsencode(part)) > most for part in out.parts):
        return "has too long a name", f"at most {most} bytes", ""
    return None


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def require_torch() -> None:
    """MachineError unless torch is installed; it is not loaded for that."""
    if find_spec("torch") is None:
        problem = Problem(
            "torch",
            "is not installed",
            next_step="pip install -r requirements-torch.txt (for a processor alone: from https://download.pytorch.org/whl/cpu)",
        )
        raise MachineError(problem)


def check_import(context: typer.Context, *, importing: bool, problems: list[Problem]) -> None:
    """Options that have no effect are refused: those of measuring with an import, and the other way round."""
    for name in MEASURING if importing else IMPORTING:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{IMPORTING.get(name, name)}"
            found = f"has no effect {'with' if importing else 'without'} --import"
            problems.append(Problem(option, found, next_step="leave it out"))


def raise_all(problems: list[Problem]) -> None:
    """ScenarioError with all of them, if there is one."""
    if problems:
        raise ScenarioError(*problems)
