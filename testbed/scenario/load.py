"""From a file (and `--set` options) to a checked Scenario; every problem with its place, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from testbed import units
from testbed.errors import Problem, ScenarioError
from testbed.scenario.model import Scenario
from testbed.scenario.overrides import apply_overrides
from testbed.scenario.quantities import Section, did_you_mean
from testbed.scenario.source import Data, KeyPath, Source, read_source

Checked = TypeVar("Checked", bound=Section)


@dataclass(frozen=True)
class Loaded:
    """A scenario together with the file it came from, for messages of later checks."""

    scenario: Scenario
    source: Source


def load(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read and validate a scenario; raises ScenarioError. Does not depend on the environment."""
    return validate(apply_overrides(read_source(path), overrides))


def validate(source: Source) -> Loaded:
    """Check plain data against the model."""
    if not isinstance(source.data, dict):
        found = f"{units.shown(source.data)} instead of a scenario"
        raise ScenarioError(Problem(source.where(()), found, "a mapping with name, question, duration, ..."))
    return Loaded(checked(source, Scenario), source)


def checked(source: Source, model: type[Checked]) -> Checked:
    """The data of `source` as `model`; raises ScenarioError with every problem, in the order of the file."""
    sections: dict[int, type[Section]] = {}
    try:
        return model.model_validate(source.data, context=sections)
    except ValidationError as error:
        problems = {_problem(source, sections, details) for details in error.errors(include_url=False)}
        raise ScenarioError(*sorted(problems, key=lambda problem: _reading_order(source, problem))) from None


def _reading_order(source: Source, problem: Problem) -> tuple[int, str]:
    line = problem.where.removeprefix(f"{source.file}:").split(":")[0]
    return (int(line) if line.isdecimal() else 0, problem.where)


def _problem(source: Source, sections: dict[int, type[Section]], details: ErrorDetails) -> Problem:
    path, around = _path_in_data(source.data, details["loc"], missing=details["type"] == "missing")
    where = source.where(path)
    context: dict[str, Any] = details.get("ctx", {})
    value = units.shown(details["input"])
    allowed = hint = ""
    match details["type"]:
        case "refused":
            found = context.get("found", details["msg"])
            allowed, hint = context["allowed"], context.get("next_step", "")
        case "missing":
            found = "is missing"
        case "extra_forbidden":
            known = sections[id(around)].yaml_keys()
            found = f"unknown key {path[-1]}"
            allowed, hint = ", ".join(known), did_you_mean(str(path[-1]), known)
        case "literal_error" | "union_tag_invalid":
            written = context.get("tag", details["input"])
            found = f"unknown value {units.shown(written)}"
            allowed = str(context.get("expected") or context.get("expected_tags")).replace("'", "")
            hint = did_you_mean(str(written), allowed.replace(" or ", ", ").split(", "))
        case "union_tag_not_found":
            found = f"{context['discriminator'].strip(chr(39))} is missing"
        case "string_pattern_mismatch":
            found, allowed = f"{value} is no name", "a-z, 0-9, _ and -, beginning with a letter"
        case kind if kind in _SHAPES:
            found = f"{value} instead of {_SHAPES[kind]}"
        case _:
            found = f"{value} is not allowed here"
            allowed = details["msg"].removeprefix("Input should be ").removeprefix("Value should have ")
            allowed = _with_units(allowed, context, details["input"])
    return Problem(where, found, allowed, hint)


def _with_units(allowed: str, context: dict[str, Any], written: object) -> str:
    """Bounds of a quantity in its own units, not in those in which it is kept."""
    bounds = [context[key] for key in ("le", "lt", "ge", "gt") if isinstance(context.get(key), int)]
    for parse, format_ in (
        (units.parse_duration_ns, units.format_duration_ns),
        (units.parse_size_bytes, units.format_size_bytes),
        (units.parse_rate_bps, units.format_rate_bps),
    ):
        try:
            parse(written)
        except units.UnitError:
            continue
        for bound in bounds:
            allowed = allowed.replace(str(bound), format_(bound))
    return allowed


_SHAPES = {
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


def _path_in_data(data: Data, location: tuple[int | str, ...], *, missing: bool) -> tuple[KeyPath, Data]:
    """The part of pydantic's location that exists in the file (it adds the tags of unions), and the
    mapping or list that holds its last key, which itself may be `missing`.
    """
    path: list[int | str] = []
    around = data
    for position, part in enumerate(location):
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if inside:
            around, data = data, data[part]
        elif not missing or position < len(location) - 1:
            continue
        path.append(part)
    return tuple(path), around
