"""What the present kernel is asked before a run."""

from __future__ import annotations

import os

import pytest

from testbed.kernel import host


def test_programs_are_looked_for_where_a_run_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user's path lacks the places of tc and ethtool, which are there all the same."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = [problem.found for problem in host.Host().probe("real")]
    monkeypatch.setenv("PATH", "/nowhere")
    assert [problem.found for problem in host.Host().probe("real")] == found
    assert "you are not root" in found
    monkeypatch.setattr(host, "PATH", "/nowhere")
    said = [str(problem) for problem in host.Host().probe("real")]
    for program, package in host.PACKAGES.items():
        assert any(f"program {program} is missing" in line and f"install {package} " in line for line in said)
