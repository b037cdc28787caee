"""Which YAML files are scenarios, told without reading them as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.sweep.file import is_sweep_file
from testbed.testing.recognize import LARGEST_BYTES, is_scenario

ROOT = Path(__file__).parents[2]


def test_every_scenario_of_ours_is_one() -> None:
    """Wherever it lies below scenarios/, and no sweep file is."""
    files = list((ROOT / "scenarios").rglob("*.yaml"))
    sweeps = [path for path in files if is_sweep_file(path)]
    assert sweeps
    assert [path for path in files if not is_scenario(path)] == sweeps


def test_a_broken_scenario_is_one_still() -> None:
    """It must fail as a test, not vanish, unless it has not even the keys of one."""
    broken = (ROOT / "tests/bad_scenarios").glob("*.yaml")
    without_keys = {"alias_bomb", "not_a_mapping", "only_comments", "tags", "too_deep"}
    assert {path.stem for path in broken if not is_scenario(path)} == without_keys


@pytest.mark.parametrize(
    "text",
    [
        "sweep: {grid: {}}\nname: x\nlink: {}\nduration: 1s\n",
        "name: ci\non: push\njobs: {}\n",
        "name: somebody\nlink: https://example.org\n",
        "services:\n  web: {name: x, link: y, duration: z}\n",
        "- name: x\n  link: {}\n  duration: 1s\n",
        "names: x\nlinks: {}\nduration: 1s\n",
        "text: |\n  name: x\n  link: y\n  duration: 1s\n",
        "",
    ],
)
def test_other_yaml_is_none(tmp_path: Path, text: str) -> None:
    """Sweeps, workflows, lists, and keys that lie deeper."""
    path = tmp_path / "other.yaml"
    path.write_text(text, encoding="utf-8")
    assert not is_scenario(path)


def test_names_that_are_no_yaml_and_files_that_are_too_large_are_none(tmp_path: Path) -> None:
    """No scenario may be that large, so nobody reads such a file."""
    text = "name: x\nlink: {}\nduration: 1s\n"
    for name, content in (("x.txt", text), ("x.yaml", text + "#" * LARGEST_BYTES)):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert not is_scenario(tmp_path / name)
    assert not is_scenario(tmp_path / "absent.yaml")


def test_syntax_errors_quotes_and_a_byte_order_mark_hide_nothing(tmp_path: Path) -> None:
    """Keys are seen whatever the rest of the file is like."""
    path = tmp_path / "x.yml"
    path.write_bytes(b"\xef\xbb\xbf\"name\": x\r\nlink: {{{\r\n'duration' :\r\n  1s\r\n")
    assert is_scenario(path)
