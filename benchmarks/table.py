"""The readable table: benchmarks/RESULTS.md from what results.json holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.figures import BUSY_PROCESSORS, Beside, Figure

COLUMNS = ("figure", "median", "samples", "target", "met", "instead", "made of")


def markdown(figures: list[Figure], errors: Mapping[str, str], described: Mapping[str, Any]) -> str:
    """The whole page; `errors` by benchmark, `described` as `machine.describe` has it."""
    return "\n".join(_page(figures, errors, described)) + "\n"


def _page(figures: list[Figure], errors: Mapping[str, str], described: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = described["machine"], described["versions"]
    changed = f" with {versions['changed_files']} changed files" if versions["changed_files"] else ""
    yield "# Results of `make bench`"
    yield ""
    yield f"{machine['cores']} x {machine['cpu']}, Linux {machine['kernel']}, Python {versions['python']};"
    yield f"commit {versions['commit']:.12}{changed}, guest kernel {versions['uml_sha256']:.12}."
    speeds = [each.loop_million_per_s for one in figures for each in one.conditions]
    busy = [each.busy_processors for one in figures for each in one.conditions]
    if speeds:
        yield (
            f"Before the samples others kept {median(busy):.2g} processors busy (at most {max(busy):.2g}), "
            f"and an empty Python loop turned {min(speeds):.3g} to {max(speeds):.3g} million times a second."
        )
    yield "[What each figure means](../docs/performance.md)."
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for one in figures:
        yield f"| {' | '.join(_cells(one))} |"
    yield ""
    if any(not one.quiet for one in figures):
        yield (
            f"\\* The machine was not quiet: before a sample others kept more than {BUSY_PROCESSORS:g} of "
            "its processors busy, so times are too long."
        )
        yield ""
    for name, error in errors.items():
        yield f"No figure from `{name}`: {error}"
        yield ""


def _cells(one: Figure) -> Iterator[str]:
    yield one.name + ("" if one.quiet else " \\*")
    yield f"{one.median:.3g} {one.unit}"
    yield " ".join(f"{sample:.3g}" for sample in one.samples)
    yield f"{one.target.sense} {one.target.bound:g}" if one.target else ""
    yield {True: "yes", False: "**no**", None: ""}[one.met]
    yield "<br>".join(_instead(one, other) for other in one.beside)
    yield one.made_of


def _instead(one: Figure, other: Beside) -> str:
    ratio = one.ratio(other)
    if ratio is None:
        return f"{other.name}: not measured, {other.skipped}"
    return f"{other.name}: {median(other.samples):.3g}, this is {ratio:.2g} times as fast"
