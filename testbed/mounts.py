"""The file systems of a container beside its root, as OCI's runtime-spec 1.0 writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def bind(source: Path, target: str, *options: str) -> dict[str, Any]:
    """A directory or a file of this machine."""
    return {"destination": target, "source": str(source), "type": "bind", "options": ["rbind", *options]}


def memory(target: str, mode: str, *options: str) -> dict[str, Any]:
    """An empty directory in memory."""
    return {
        "destination": target,
        "source": "tmpfs",
        "type": "tmpfs",
        "options": ["nosuid", f"mode={mode}", *options],
    }


def usual() -> list[dict[str, Any]]:
    """What every program expects: /proc, /sys, /dev, and places for what nobody keeps."""
    return [
        {"destination": "/proc", "source": "proc", "type": "proc"},
        {"destination": "/sys", "source": "sysfs", "type": "sysfs", "options": ["ro", "nosuid", "noexec"]},
        memory("/dev", "755"),
        memory("/dev/shm", "1777", "nodev"),  # noqa: S108 - in the container
        memory("/tmp", "1777", "nodev"),  # noqa: S108 - in the container
        memory("/run", "755", "nodev"),
    ]
