"""Boots a guest for each group of checks, once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from testbed.kernel import Needs
from testbed.kernel.uml import Uml

Results = dict[str, Any]
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """What `guest_fields.py` found for a group of checks."""

    @cache
    def measure(group: str) -> Results:
        run_dir = tmp_path_factory.mktemp("fields") / "run"
        run_dir.mkdir()
        for script in (*HERE.glob("guest_*.py"), HERE.parent / "kernel" / "guest_bench.py"):
            shutil.copy(script, run_dir)
        said: list[str] = []
        needs = Needs(memory_bytes=3 << 30, clock="virtual", seed=1, wall_limit_s=150)
        kernel = Uml(payload=("/run/testbed/run/guest_fields.py", group))
        kernel.execute(run_dir, needs, said.append)
        results = run_dir / "results.json"
        assert results.is_file(), "\n".join(said)
        found: Results = json.loads(results.read_text(encoding="utf-8"))
        return found

    return measure


@pytest.fixture(scope="session")
def delay(measured: Callable[[str], Results]) -> Results:
    return measured("delay")


@pytest.fixture(scope="session")
def rate(measured: Callable[[str], Results]) -> Results:
    return measured("rate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here that asks for a guest is a kernel test, and none without a kernel to boot."""
    lacks = bool(Uml().probe("virtual"))
    for item in items:
        if HERE in item.path.parents and {"delay", "rate"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kernel)
            if lacks:
                item.add_marker(pytest.mark.skip(reason="no UML kernel: make setup"))
