"""Which runs a sweep consists of: every scenario with every seed, checked before the first one starts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from testbed.capture import tcpdump
from testbed.errors import Problem, ScenarioError
from testbed.resolve import load_and_resolve
from testbed.runs import Wanted

EngineName = Literal["local", "ray"]
SEEDS_ALLOWED: Final = "whole numbers and ranges of them, such as 1-200 or 3,7,20-29"
MAX_SEEDS: Final = 10_000
CHECKED: Final = 500
"""As many plans are made beforehand, at 50 ms each; of more runs, those with the first seed."""
_SEEDS: Final = re.compile(r"\s*([0-9]{1,19})\s*(?:-\s*([0-9]{1,19})\s*)?")


def scenario_files(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths`, and the *.yaml directly in the directories among them, sorted; each once.

    Raises:
        ScenarioError: a path is not there, or a directory holds no scenario; all such problems.
    """
    files: dict[str, Path] = {}
    problems = []
    for path in paths:
        found = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not path.exists():
            problems.append(
                Problem(str(path), "is not there", "scenario files (YAML), and directories of them")
            )
        elif not found:
            problems.append(Problem(str(path), "is a directory without scenarios", "one with *.yaml in it"))
        for file in found:
            files.setdefault(os.path.abspath(file), file)  # noqa: PTH100 - a link is another scenario
    if problems:
        raise ScenarioError(*problems)
    return list(files.values())


def parse_seeds(text: str) -> list[int]:
    """`3,7,20-29` as numbers, in the order given; ScenarioError when it is something else."""
    seeds: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part)
        if match is None:
            raise _refused(text, f"{part.strip()!r} is no seed")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _refused(text, f"{part.strip()} runs backwards")
        if len(seeds) + last - first >= MAX_SEEDS:
            raise _refused(text, "too many seeds", f"at most {MAX_SEEDS}")
        seeds += range(first, last + 1)
    if twice := [seed for seed, times in Counter(seeds).items() if times > 1]:
        raise _refused(text, f"names {twice[0]} twice", "each seed once")
    return seeds


def refuse_for_files(options: dict[str, bool], path: Path) -> None:
    """Options that a sweep file has no use for; raises ScenarioError with all that were given."""
    found = "is for scenarios; a sweep file keeps every result, without reports"
    given = [Problem(name, found, f"none of it with {path}") for name, was in options.items() if was]
    if given:
        raise ScenarioError(*given)


def refuse_for_scenarios(files: Sequence[Path], *, engine: EngineName) -> None:
    """A sweep file among other paths, or an engine for scenarios; raises ScenarioError."""
    problems = [
        Problem(str(file), "is a sweep file, beside other paths", "a sweep file by itself") for file in files
    ]
    if engine != "local":
        problems.append(Problem(f"--engine {engine}", "is for sweep files", "local"))
    if problems:
        raise ScenarioError(*problems)


def _refused(text: str, found: str, allowed: str = SEEDS_ALLOWED) -> ScenarioError:
    return ScenarioError(Problem(f"--seeds {text}", found, allowed))


def runs_of(
    files: Sequence[Path], seeds: Sequence[int], overrides: tuple[str, ...], *, report: bool
) -> list[Wanted]:
    """Every scenario with its first seed, then every one with its second, and so on.

    So a sweep that is broken off has seen each of them. Without `seeds` each has its own.

    Raises:
        ScenarioError: scenarios that are none, or not with these overrides; the problems of all.
    """
    checked = len(files) * len(seeds) <= CHECKED
    problems: list[Problem] = []
    wanted = []
    for file, name in zip(files, _names(files), strict=True):
        try:
            own_seed = _check(file, overrides, seeds[0] if seeds else None)
        except ScenarioError as error:
            problems += error.problems
            continue
        for seed in seeds[1:] if checked else ():
            try:
                _check(file, overrides, seed)
            except ScenarioError as error:
                problems += (replace(one, found=f"with seed {seed}: {one.found}") for one in error.problems)
        wanted.append(
            [Wanted(f"{name}-{seed}", file, overrides, seed, report=report) for seed in seeds or (own_seed,)]
        )
    if problems:
        raise ScenarioError(*problems)
    return list(chain.from_iterable(zip(*wanted, strict=True)))


def _check(file: Path, overrides: tuple[str, ...], seed: int | None) -> int:
    """Whether it can be run; returns the seed that it then has."""
    plan = load_and_resolve(file, overrides=overrides, seed=seed)[1]
    tcpdump.require(plan.captures)
    return plan.seed


def _names(files: Sequence[Path]) -> list[str]:
    """A directory name for each: that of the file, numbered where two have the same."""
    names: list[str] = []
    for file in files:
        numbered = chain([file.stem], (f"{file.stem}-{number}" for number in range(2, len(files) + 2)))
        names.append(next(name for name in numbered if name not in names))
    return names
