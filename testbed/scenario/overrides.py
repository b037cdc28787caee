"""`--set link.a_to_b.rate=50gbit`: values that replace those of the file, before it is validated."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from testbed.errors import Problem, ScenarioError
from testbed.scenario.source import Data, KeyPath, Source, parse_value

SET_ALLOWED = "--set path=value, such as --set link.a_to_b.rate=50gbit or --set timeline.0.at=5s"


def apply_overrides(source: Source, overrides: Sequence[str]) -> Source:
    """A copy of `source` with every `path=value` applied in order; raises ScenarioError with all problems.

    A path names keys, and items of lists by their number from 0. A key that is not there is added (the
    model decides whether it may be), an item that is not there is refused.
    """
    result = replace(source, data=copy.deepcopy(source.data), options=dict(source.options))
    problems: list[Problem] = []
    for override in overrides:
        try:
            _apply(result, override)
        except ScenarioError as error:
            problems.extend(error.problems)
    if problems:
        raise ScenarioError(*problems)
    return result


def _apply(source: Source, override: str) -> None:
    option = f"--set {override}"
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ScenarioError(Problem(option, "is no override", SET_ALLOWED))
    value = parse_value(option, text)
    container, path = _container(source.data, keys, option)
    key = _key(container, keys[-1], option, path)
    container[key] = value
    source.options[(*path, key)] = option


def _container(data: Data, keys: list[str], option: str) -> tuple[Data, KeyPath]:
    """The mapping or list that holds the last key, made when missing, and the path to it."""
    path: KeyPath = ()
    for name in keys[:-1]:
        key = _key(data, name, option, path)
        if isinstance(data, dict) and data.get(key) is None:
            data[key] = {}
        data = data[key]
        path = (*path, key)
    return data, path


def _key(container: Data, name: str, option: str, path: KeyPath) -> str | int:
    """`name` as a key of `container`: itself for a mapping, a number for a list."""
    place = ".".join(str(part) for part in path) or "the scenario"
    if isinstance(container, dict):
        return name
    if not isinstance(container, list):
        raise ScenarioError(Problem(option, f"{place} is a single value, nothing lies inside", SET_ALLOWED))
    numbers = {str(number): number for number in range(len(container))}
    if name not in numbers:
        allowed = f"0 to {len(container) - 1}" if container else "the list is empty"
        raise ScenarioError(Problem(option, f"{place} has no item {name}", allowed))
    return numbers[name]
