"""What the present kernel is asked before a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testbed.errors import KernelError
from testbed.kernel import Needs, host


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


def test_where_no_namespace_can_be_made_no_module_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root in a container: one problem, and nobody is sent to modprobe."""
    (tmp_path / "unshare").write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setattr(host, "PATH", f"{tmp_path}:{host.PATH}")
    (problem,) = host._missing_qdiscs()
    assert problem.found == "no network namespace can be made: unshare failed: Operation not permitted"
    assert "modprobe" not in str(problem)


def test_a_run_that_could_not_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said last, where there is nothing else to tell by."""

    def supervise(_argv: Sequence[str], *, on_line: Callable[[str], None], **_others: object) -> int:
        on_line("there is no such thing")
        return 1

    monkeypatch.setattr(host, "supervise", supervise)
    needs, said = Needs(1 << 30, "real", 1, 60), list[str]()
    with pytest.raises(KernelError, match=r"\(status 1\); its last words: there is no such thing"):
        host.Host().execute(tmp_path, needs, said.append)
    assert said == ["there is no such thing"]
    (tmp_path / "outcome.json").write_text("{}")
    host.Host().execute(tmp_path, needs, said.append)
