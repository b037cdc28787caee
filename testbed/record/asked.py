"""What the command line asks for, checked before anything is started."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from agents.measurements import Wanted
from agents.shapes import SHAPES
from testbed.errors import MachineError, Problem, ScenarioError
from testbed.profiles.table import about_path, plot_path

LEAST_POINTS: Final = 2
DEVICES: Final = ("auto", "cpu", "cuda")


def numbers(option: str, text: str, least: int, problems: list[Problem]) -> tuple[int, ...]:
    """The whole numbers of a list such as 1,2,4; anything wrong becomes a problem of `option`."""
    allowed = f"whole numbers from 1 on, ascending, such as {'512,1024' if least > 1 else '1,2,4'}"
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        problems.append(Problem(option, repr(text), allowed))
        return ()
    if found[0] < 1 or list(found) != sorted(set(found)):
        problems.append(Problem(option, repr(text), allowed))
    elif len(found) < least:
        problems.append(Problem(option, repr(text), f"at least {least}, to interpolate between"))
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
    batched: bool,
    problems: list[Problem],
) -> Wanted | None:
    """What to measure; None, and in `problems` why, when that is not possible."""
    before = len(problems)
    shape = SHAPES.get(model)
    if shape is None:
        problems.append(Problem("--model", f"no model {model!r}", ", ".join(SHAPES)))
    if device not in DEVICES:
        problems.append(Problem("--device", repr(device), ", ".join(DEVICES)))
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
        lengths=numbers("--lengths", lengths, LEAST_POINTS, problems),
        batches=numbers("--batches", batches, 1, problems),
        contexts=numbers("--contexts", contexts, LEAST_POINTS, problems),
        warmup=warmup,
        repeats=repeats,
        threads=threads,
        exact=not batched,
    )
    return found if len(problems) == before else None


def check_out(out: Path, *, force: bool, problems: list[Problem]) -> None:
    """Problems with where the profile goes; makes the directory."""
    if out.suffix != ".parquet":
        problems.append(Problem(f"--out {out}", f"the suffix {out.suffix!r}", ".parquet"))
        return
    there = [path for path in (out, about_path(out), plot_path(out)) if path.exists()]
    if there and not force:
        found = f"{', '.join(path.name for path in there)} there already"
        problems.append(Problem(f"--out {out}", found, "a new name", "--force overwrites"))
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problems.append(Problem(f"--out {out}", f"cannot be made: {error.strerror}", "a writable directory"))
        return
    if not os.access(out.parent, os.W_OK) or out.is_dir():
        problems.append(Problem(f"--out {out}", "cannot be written", "a file in a writable directory"))


def require_torch() -> None:
    """MachineError unless torch is installed; it is not loaded for that."""
    if find_spec("torch") is None:
        problem = Problem(
            "torch",
            "is not installed",
            next_step="pip install -r requirements-torch.txt (for a processor alone: from https://download.pytorch.org/whl/cpu)",
        )
        raise MachineError(problem)


def raise_all(problems: list[Problem]) -> None:
    """ScenarioError with all of them, if there is one."""
    if problems:
        raise ScenarioError(*problems)
