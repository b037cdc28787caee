"""The journal of a guest, copied to its host as it grows."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from testbed.kernel.mirror import copy
from tests.e2e.commands import PROJECT, until


def test_what_has_grown_is_appended_and_what_has_shrunk_is_written_anew(tmp_path: Path) -> None:
    """Directories and files that come later, too; what only the copy has stays."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "below").mkdir(parents=True)
    target.mkdir()
    (target / "other").write_text("stays")
    for text in ("one\n", "one\ntwo\n", "one\ntwo\n", "3\n", ""):
        (source / "a").write_text(text)
        (source / "below/b").write_text(text)
        copy(source, target)
        assert (target / "a").read_text() == (target / "below/b").read_text() == text
    assert (target / "other").read_text() == "stays"


def test_it_follows_files_that_grow(tmp_path: Path) -> None:
    """Line after line, and all that there is once more when it is told to end; nothing is written again."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    command = [sys.executable, "-m", "testbed.kernel.mirror", source, target]
    with subprocess.Popen(command, cwd=PROJECT) as process, (source / "a").open("wb", buffering=0) as file:
        file.write(b"first\n")
        until(lambda: (target / "a").exists() and (target / "a").read_bytes() == b"first\n")
        file.write(b"second\n")
        until(lambda: (target / "a").read_bytes() == b"first\nsecond\n")
        (target / "a").write_bytes(b"FIRST\nsecond\n")
        file.write(b"last\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert (target / "a").read_bytes() == b"FIRST\nsecond\nlast\n"
