"""What a kernel's release says of its netem."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from testbed.shaping.segmentation import netem_takes_seeds


@pytest.mark.parametrize(
    ("release", "seeds"),
    [
        ("6.1.0-57-amd64", False),
        ("6.5.13", False),
        ("6.6-rc1", True),
        ("6.12.38-testbed", True),
        ("7.0.0", True),
    ],
)
def test_netem_takes_seeds_since_linux_6_6(
    release: str, seeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one is neither given a seed nor asked for it."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    assert netem_takes_seeds() is seeds
