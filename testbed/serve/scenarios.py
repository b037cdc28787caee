"""The scenario files below one directory: what they are called, what they say, whether a text would run."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.scenario.source import MAX_FILE_BYTES, read_source
from testbed.serve.looking import Question
from testbed.serve.summaries import DRAFTS
from testbed.testing.recognize import is_scenario

MOST_DRAFTS: Final = 10_000
COPIED_BYTES: Final = 1 << 20
ODD: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""In a file's name: no path of the API can have it."""
UNNAMED: Final = "text.yaml"
"""What a text is called that replaces no file."""


@dataclass(frozen=True)
class Scenario:
    """One file. `path` is relative to the directory of scenarios and names it."""

    path: str
    name: str
    """What its runs are called; empty when the file does not say it."""
    question: str
    control: bool
    sha256: str


class Scenarios:
    """A directory of scenarios, read again where a file has changed."""

    def __init__(self, root: Path, runs: Path) -> None:
        self.root = root
        self._runs = runs
        self._drafts = runs / DRAFTS
        self._known: dict[str, tuple[int, int, Scenario]] = {}
        self._lock = threading.Lock()

    def known(self) -> list[Scenario]:
        """All of them, in order of their paths; links are not followed, and runs are none."""
        with self._lock:
            found = {}
            for path in _yaml_files(self.root, self._runs):
                name = path.relative_to(self.root).as_posix()
                with suppress(OSError):
                    status = path.stat()
                    known = self._known.get(name)
                    if known is None or known[:2] != (status.st_mtime_ns, status.st_size):
                        if not is_scenario(path):
                            continue
                        known = (status.st_mtime_ns, status.st_size, _read(path, name))
                    found[name] = known
            self._known = found
            return [one for _, _, one in found.values()]

    def find(self, path: str) -> Path | None:
        """The file with this name; None for whatever is not in the list."""
        return self.root / path if any(one.path == path for one in self.known()) else None

    def question(
        self, text: str, path: Path | None, *, seed: int | None, scale: float | None, overrides: list[str]
    ) -> Question:
        """What to ask of a text; `path` is the file that it replaces."""
        place = path or self.root / UNNAMED
        return Question(
            text=text.encode("utf-8", "surrogatepass"),
            shown=place.relative_to(self.root).as_posix(),
            directory=str(place.parent),
            seed=seed,
            scale=scale,
            overrides=overrides,
        )

    def draft(self, text: str, path: Path | None) -> Path:
        """Write a text where it can be run from, beside what the file that it replaces stands beside.

        Files are copied, as those of a scheduler or a program have to lie below the scenario; large ones and
        directories are linked. No scenario is ever written. Raises ScenarioError when it cannot be written.
        """
        original = path or self.root / UNNAMED
        directory = None
        try:
            for number in range(1, MOST_DRAFTS):
                with suppress(FileExistsError):
                    wanted = self._drafts / f"{original.stem}-{number}"
                    wanted.mkdir(parents=True)
                    directory = wanted
                    break
            else:
                raise ScenarioError(Problem(str(self._drafts), "is full", next_step="remove old drafts"))
            for beside in original.parent.iterdir():
                target = os.path.realpath(beside)  # where a link leads round in circles, too
                if beside.name == original.name or target == os.path.realpath(self._runs):
                    continue
                if beside.is_file() and beside.stat().st_size <= COPIED_BYTES:
                    shutil.copy2(beside, directory)
                else:
                    (directory / beside.name).symlink_to(target)
            draft = directory / original.name
            draft.write_text(text, encoding="utf-8")
        except OSError as error:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
            raise ScenarioError(Problem(str(self._drafts), f"cannot be written: {error}")) from None
        return draft


def text_of(path: Path) -> str:
    """The text of a scenario file; raises ScenarioError when it cannot be read as text."""
    text = path.read_bytes()[: MAX_FILE_BYTES + 1]
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ScenarioError(Problem(path.name, "is not UTF-8", "a text file in UTF-8")) from None


def line_of(problem: Problem, shown: str) -> int | None:
    """The line of the text that a problem is about, from 1."""
    line = problem.where.removeprefix(f"{shown}:").split(":")[0]
    return int(line) if problem.where.startswith(f"{shown}:") and line.isdecimal() else None


def _yaml_files(root: Path, without: Path) -> Iterator[Path]:
    """All below a directory, but for one that may lie there: each run has a copy of its scenario."""
    left_out = without.resolve()
    for directory, below, files in os.walk(root):
        here = Path(directory).resolve()
        plain = (name for name in below if not name.startswith(".") and not ODD.search(name))
        below[:] = sorted(name for name in plain if here / name != left_out)
        for name in sorted(files):
            path = Path(directory) / name
            if name.endswith((".yaml", ".yml")) and not ODD.search(name) and _is_plain(path):
                yield path


def _is_plain(path: Path) -> bool:
    """A file itself: no link, and no pipe, which would be waited for."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _read(path: Path, name: str) -> Scenario:
    """What the file says of itself; a broken one is listed all the same."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    data: object = None
    with suppress(ScenarioError):
        data = read_source(path).data
    values = data if isinstance(data, dict) else {}
    return Scenario(
        path=name,
        name=str(values.get("name", "")),
        question=str(values.get("question", "")),
        control=values.get("control") is True,
        sha256=digest,
    )
