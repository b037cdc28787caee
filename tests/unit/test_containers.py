"""What containers are given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.containers import CONTAINER_SHARED, Containers, Recipe, gpus


def test_only_devices_with_a_driver_are_given(tmp_path: Path) -> None:
    """A GPU's node counts where it can be opened, as only a kernel with its driver does."""
    assert gpus(tmp_path) == []
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidiactl").symlink_to("/dev/no_such_device")
    (tmp_path / "null").symlink_to("/dev/null")
    assert gpus(tmp_path) == [tmp_path / "nvidia0"]


def test_only_who_shares_something_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory for each name, in memory of a limited size, and nothing of the kind for anybody else."""
    mounted: list[list[str]] = []
    monkeypatch.setattr("testbed.containers.subprocess.run", lambda command, **_: mounted.append(command))
    monkeypatch.setattr("testbed.containers.gpus", list)
    containers = Containers(tmp_path / "work", tmp_path, shared_bytes=1 << 20)
    assert mounted[1][:4] == ["mount", "-t", "tmpfs", "-o"]
    assert mounted[1][4].startswith("size=1048576,")
    shared: dict[str, list[str]] = {}
    for name, shares in (("a1", "one"), ("a2", "one"), ("b1", "two"), ("router", "")):
        recipe = Recipe(name, "prefill", name, 1, b"", shares)
        specification = json.loads(json.dumps(containers._specification(recipe)))
        found = [one for one in specification["mounts"] if one["destination"] == CONTAINER_SHARED]
        shared[name] = [one["source"] for one in found]
        assert all("rw" in one["options"] for one in found)
    assert shared == {
        "a1": [str(tmp_path / "work/shared/one")],
        "a2": [str(tmp_path / "work/shared/one")],
        "b1": [str(tmp_path / "work/shared/two")],
        "router": [],
    }
    mounted.clear()
    Containers(tmp_path / "other", tmp_path)
    assert [command[1] for command in mounted] == ["--bind"]
