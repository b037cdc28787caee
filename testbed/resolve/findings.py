"""Collecting problems: resolving goes on after the first, so that the user sees all of them."""

from __future__ import annotations

from collections.abc import Collection

from testbed.errors import Problem, ScenarioError
from testbed.scenario.quantities import did_you_mean
from testbed.scenario.source import KeyPath, Source


class Findings:
    """The problems found so far, each at a path of the scenario file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._problems: list[tuple[int, Problem]] = []

    def add(self, path: KeyPath, found: str, allowed: str = "", next_step: str = "") -> None:
        """Note a problem with the value at `path`."""
        problem = Problem(self.source.where(path), found, allowed, next_step)
        self._problems.append((self.source.line(path), problem))

    def add_all(self, others: Findings) -> None:
        """Note the problems that somebody else has found in the same file."""
        self._problems.extend(others._problems)

    def add_error(self, path: KeyPath, error: ScenarioError) -> None:
        """Note the problems of another file that the value at `path` led to."""
        self._problems.extend((self.source.line(path), problem) for problem in error.problems)

    def name_unknown(self, path: KeyPath, what: str, name: str, known: Collection[str]) -> bool:
        """Check a name against a registry; notes a problem and returns True when it is not there."""
        if name in known:
            return False
        self.add(path, f"unknown {what} {name}", ", ".join(known), did_you_mean(name, known))
        return True

    def problems(self) -> tuple[Problem, ...]:
        """All problems in the order of the file, each once."""
        ordered = sorted(self._problems, key=lambda item: item[0])
        return tuple(dict.fromkeys(problem for _, problem in ordered))

    def raise_if_any(self) -> None:
        """Raise ScenarioError with all problems in the order of the file."""
        if self._problems:
            raise ScenarioError(*self.problems())
