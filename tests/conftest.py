"""The order in which files of tests are handed to workers, one file at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

GUESTS = frozenset({"e2e", "kernel"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that boot guests take longest and come first, so that no worker is left with one at the end.

    Runs in real time are the last of them: what the other workers do beside them is then small.
    """
    turns: dict[Path, int] = {}
    for item in items:
        turns[item.path] = min(_turn(item), turns.get(item.path, 2))
    items.sort(key=lambda item: turns[item.path])


def _turn(item: pytest.Item) -> int:
    marks = {mark.name for mark in item.iter_markers()}
    if not marks & GUESTS:
        return 2
    return 1 if "real_time" in marks else 0
