"""Directions of real links by name; presets.yaml has their values and sources."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from testbed.scenario.source import parse_source

PRESETS: Final[dict[str, dict[str, Any]]] = parse_source(
    "presets.yaml", (files("testbed.scenario") / "presets.yaml").read_bytes()
).data
"""By name: the keys of a direction, as a scenario would write them."""
