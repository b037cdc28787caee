"""What containers are given."""

from __future__ import annotations

from pathlib import Path

from testbed.containers import gpus


def test_only_devices_with_a_driver_are_given(tmp_path: Path) -> None:
    """A GPU's node counts where it can be opened, as only a kernel with its driver does."""
    assert gpus(tmp_path) == []
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidiactl").symlink_to("/dev/no_such_device")
    (tmp_path / "null").symlink_to("/dev/null")
    assert gpus(tmp_path) == [tmp_path / "nvidia0"]
