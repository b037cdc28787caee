"""Starts an agent: `python -m agents ROLE CONFIG`."""

import sys

_UNUSED = ("ssl", "typing_extensions")
"""asyncio and msgspec load these where they can, do without where not, and start a seventh faster then."""

sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type] # None: cannot be imported

import asyncio  # noqa: E402, F401
import importlib  # noqa: E402

import msgspec  # noqa: E402, F401

for name in _UNUSED:
    del sys.modules[name]

PROGRAMS = {"prefill": "instance", "decode": "instance"}
"""Roles whose program has another name: the same one serves both."""
importlib.import_module(f"agents.{PROGRAMS.get(sys.argv[1], sys.argv[1])}").main()
