"""Each run takes place once in a session of tests, whoever asks for it, in whichever of its processes."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import Problem, ScenarioError
from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted, run_all
from testbed.verdict import Verdict


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the session's command line says of every run."""

    out: Path
    session: str
    """The same in all processes of one session of tests, and in no other."""
    kernel: str = "auto"
    scale: float | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """For `python -m testbed.run`."""
        scale = () if self.scale is None else ("--scale", f"{self.scale!r}")
        return ("--kernel", self.kernel, *scale)


class _Note(msgspec.Struct, frozen=True):
    """What became of a run, for the other processes of the session."""

    session: str
    directory: str | None
    exit_code: int
    said: str


class Runs:
    """The runs of a session; each has a directory of its own below `options.out`, named after what it is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ended: dict[str, Ended] = {}

    def of(self, scenario: Path, overrides: tuple[str, ...] = (), seed: int | None = None) -> Ended:
        """What became of this run, which takes place now unless it has already.

        Raises:
            ScenarioError: `--testbed-out` is no directory that can be written.
        """
        name = self._name(scenario, overrides, seed)
        if name not in self._ended:
            wanted = Wanted(name, near(scenario), overrides, seed, options=self._options.arguments)
            try:
                self._ended[name] = self._once(wanted)
            except OSError as error:
                problem = Problem(f"--testbed-out {self._options.out}", f"{error}", "a writable directory")
                raise ScenarioError(problem) from None
        return self._ended[name]

    def _name(self, scenario: Path, overrides: tuple[str, ...], seed: int | None) -> str:
        text = scenario.read_bytes() if scenario.is_file() else b""
        asked = repr((str(scenario.resolve()), overrides, seed, self._options.arguments)).encode()
        return f"{scenario.stem}-{hashlib.sha256(text + asked).hexdigest()[:8]}"

    def _once(self, wanted: Wanted) -> Ended:
        place = self._options.out / wanted.name
        place.mkdir(parents=True, exist_ok=True)
        with (place / "session.json").open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another process may be about to run the same
            file.seek(0)
            with suppress(msgspec.DecodeError):
                note = msgspec.json.decode(file.read(), type=_Note)
                if note.session == self._options.session:
                    return _from_note(note, wanted)
            with closing(run_all([wanted], near(self._options.out), 1)) as runs:
                ended = next(runs)
            directory = None if ended.directory is None else str(ended.directory)
            note = _Note(self._options.session, directory, ended.exit_code, ended.said)
            file.truncate(0)
            file.write(msgspec.json.encode(note))
        return ended


def near(path: Path) -> Path:
    """As somebody in the present directory would write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def override(path: str, value: Any) -> str:
    """`--set PATH=VALUE`: texts as on the command line, everything else as JSON, which YAML reads."""
    return f"{path}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"


def overrides_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """All of them, in the order given, in which they are applied."""
    return tuple(override(path, value) for path, value in values.items())


def _from_note(note: _Note, wanted: Wanted) -> Ended:
    directory = None if note.directory is None else Path(note.directory)
    verdict = None
    if directory is not None:
        with suppress(OSError, msgspec.DecodeError):
            verdict = Verdict.read(RunDir(directory).verdict)
    return Ended(wanted, directory, verdict, note.exit_code, note.said)
