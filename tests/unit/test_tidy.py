"""The project stays small enough to read: file and function sizes, names, nothing that nobody uses."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agents", "testbed", "topologies")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 70
VAGUE = {"util", "utils", "helper", "helpers", "common", "manager"}
ENTRY_POINTS = {
    "testbed.inside",  # the guest runs it
    "testbed.record.inside",  # and this
    "testbed.kernel.mirror",  # the VM's first program starts it
    "agents.client",  # containers run these
    "agents.instance",
    "agents.reference",
    "agents.measure",  # testbed.record starts it
    "agents.policies.http_openapi",  # writes docs/scheduler-openapi.json
    "agents.router",
}
PLUGINS = {"testbed.pytest_plugin"}  # pytest loads these


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Every name that a file imports, modules and what may be modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=relative)
def test_no_file_is_too_long(path: Path) -> None:
    """A file is read in one sitting."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_function_is_too_long(path: Path) -> None:
    """A function is seen at once."""
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert long == {}


def test_no_module_has_a_vague_name() -> None:
    """A module is named after what it does."""
    assert [relative(path) for path in [*SOURCES, *TESTS] if VAGUE & set(module_name(path).split("."))] == []


def test_every_module_is_used() -> None:
    """Whatever is no entry point is imported by some other module, tests not counted."""
    used = {name for path in SOURCES for name in imported(path) - {module_name(path)}}
    unused = {
        module_name(path)
        for path in SOURCES
        if path.name not in ("__init__.py", "__main__.py") and module_name(path) not in used
    }
    runnable = {
        module_name(path) for path in SOURCES if "\ndef main() -> None:" in path.read_text(encoding="utf-8")
    }
    assert unused - runnable == PLUGINS
    assert unused <= ENTRY_POINTS | PLUGINS


def test_every_test_says_what_it_promises() -> None:
    """The docstring of a test is one sentence of contract."""
    silent = [
        f"{relative(path)}: {node.name}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []
