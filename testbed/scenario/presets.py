"""Directions of real links by name; presets.yaml has their values and sources."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from testbed.scenario.source import parse_source

TEXT = files("testbed.scenario") / "presets.yaml"


@cache
def presets() -> dict[str, dict[str, Any]]:
    """By name: the keys of a direction, as a scenario would write them. Read for who names one."""
    read: dict[str, dict[str, Any]] = parse_source("presets.yaml", TEXT.read_bytes()).data
    return read
