"""The order in which files of tests are handed to workers, and that none leaves garbage to the next."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

GUESTS = frozenset({"e2e", "kernel"})


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file's event loops leave is collected behind it, not in the middle of whatever comes next.

    Whoever complains while it is collected has its traceback formatted, for which Python 3.11 parses source;
    when that falls into another parse, such as one of Hypothesis's, the other one dies of a SystemError
    ("AST constructor recursion depth mismatch").
    """
    yield
    if hasattr(request.module, "asyncio"):
        gc.collect()


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
