"""Settings of the whole kernel, with a kernel that refuses one."""

from __future__ import annotations

import errno

import pytest

from testbed import sysctl


def test_what_cannot_be_put_back_keeps_nothing_else_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the module of a congestion control has gone; that one is told in the end."""
    written: dict[str, str] = {}
    refused = sysctl.OF_KERNEL[0]

    def write(name: str, value: str) -> None:
        if name == refused:
            raise OSError(errno.ENOENT, "no such congestion control")
        written[name] = value

    monkeypatch.setattr(sysctl, "_write", write)
    before = {name: f"{name} before" for name in sysctl.OF_KERNEL}
    with pytest.raises(OSError, match="no such congestion control"):
        sysctl.put_back(before)
    assert written == {name: before[name] for name in sysctl.OF_KERNEL[1:]}
