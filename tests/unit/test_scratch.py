"""Temporary directories go with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from testbed.kernel import scratch as module
from testbed.kernel.scratch import NAME, abandoned, scratch

PROJECT = Path(__file__).resolve().parents[2]
OWNER = """
import sys, time
from testbed.kernel.scratch import scratch
with scratch("run", *sys.argv[1:]) as paths:
    (paths[0] / "inner").mkdir()
    print("made", flush=True)
    time.sleep(60)
"""


def gone(path: Path, patience_s: float = 10) -> bool:
    deadline = time.monotonic() + patience_s
    while list(path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not list(path.iterdir())


def test_it_is_there_in_the_block_and_not_afterwards(tmp_path: Path) -> None:
    """One name in every place, closed to others; all are gone at the end, whatever lies in them."""
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    with scratch("run", *places) as paths:
        assert [path.parent for path in paths] == places
        assert len({path.name for path in paths}) == 1
        assert NAME.fullmatch(paths[0].name)
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o700]
        (paths[0] / "deep/er").mkdir(parents=True)
    assert [list(place.iterdir()) for place in places] == [[], []]


def test_the_same_place_twice_is_one_directory(tmp_path: Path) -> None:
    """Where two uses fall together there is one directory for both."""
    with scratch("run", tmp_path, str(tmp_path)) as paths:
        assert len(paths) == 1


def test_a_relative_place_is_where_the_owner_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with TMPDIR=., although the shell that keeps it works in another directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", ".")
    with scratch("run") as (path,):
        assert path.parent == tmp_path
        assert path.is_dir()
    assert gone(tmp_path)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The message is that of the system, and what was made already goes again."""
    with pytest.raises(OSError, match="No such file or directory"), scratch("run", tmp_path, tmp_path / "no"):
        pass
    assert gone(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_with_an_owner_that_is_killed(how: signal.Signals, tmp_path: Path) -> None:
    """No code of the owner's runs any more, and still nothing stays."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "made\n"
        owner.send_signal(how)
    assert gone(tmp_path)


def test_only_what_nobody_holds_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of ours without an owner; not one with an owner, and never what only looks like ours."""
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    name = "testbed-run-" + "0" * 32
    for foreign in ("testbed-mine", "testbed-run-1234", f"{name}0", f"my-{name}"):
        (tmp_path / foreign).mkdir(mode=0o700)
    (tmp_path / name.replace("0", "1")).mkdir(mode=0o755)
    (tmp_path / name.replace("0", "2")).write_text("a file")
    (tmp_path / name.replace("0", "3")).symlink_to("testbed-mine")
    (tmp_path / name).mkdir(mode=0o700)
    with scratch("run", tmp_path):
        assert [path.name for path in abandoned([tmp_path])] == [name]


def test_a_fresh_one_is_left_alone(tmp_path: Path) -> None:
    """Its owner may be about to take it."""
    (tmp_path / ("testbed-run-" + "0" * 32)).mkdir(mode=0o700)
    assert list(abandoned([tmp_path])) == []


def test_places_that_are_not_there_are_no_trouble(tmp_path: Path) -> None:
    """Where there is no such place, nothing lies there."""
    assert list(abandoned([tmp_path / "no", os.devnull])) == []
