"""The history of runs: an index of the run directories in SQLite, for lists, searches and trends.

The directories are the truth. The file can be deleted at any time; it is made again from them, and kept up
with them a little at a time: what has not changed is not read again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from testbed.serve import contained
from testbed.serve.main_metrics import Measured
from testbed.serve.summaries import Summary, summarize
from testbed.verdict import CHECKS

FILE: Final = "history.sqlite"
VERSION: Final = 3
BATCH: Final = 200
"""Runs that are written at once, so that readers see a long rebuild grow."""
SCHEMA: Final = """
CREATE TABLE runs (
  directory TEXT PRIMARY KEY, name TEXT NOT NULL, question TEXT NOT NULL, seed INTEGER NOT NULL,
  scale REAL NOT NULL, state TEXT NOT NULL, note TEXT NOT NULL, started_s REAL NOT NULL,
  duration_s REAL NOT NULL, virtual_s REAL, wall_s REAL, digest TEXT NOT NULL, scenario_sha256 TEXT NOT NULL,
  clock TEXT NOT NULL, kernel TEXT NOT NULL, changed TEXT NOT NULL, judged_ns INTEGER NOT NULL,
  measured INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX newest ON runs (started_s DESC, directory);
CREATE INDEX of_scenario ON runs (name, started_s DESC);
CREATE INDEX unmeasured ON runs (measured, started_s DESC);
CREATE TABLE metrics (
  directory TEXT NOT NULL, name TEXT NOT NULL, value REAL,
  unit TEXT NOT NULL, expected INTEGER NOT NULL, PRIMARY KEY (directory, name)
) WITHOUT ROWID;
"""
COLUMNS: Final = (
    "directory, name, question, seed, scale, state, note, started_s, duration_s, virtual_s, wall_s, digest, "
    "scenario_sha256, clock, kernel, changed"
)
KNOWN: Final = "directory, state, judged_ns"
"""What tells whether a run has to be read again."""
SEARCHED: Final = ("name", "directory", "question", "note", "digest", "seed", "changed")


log = logging.getLogger(__name__)


class Page(NamedTuple):
    """Some rows of a list, as dicts, and how many there are in all."""

    rows: list[dict[str, Any]]
    total: int


class History:
    """The index of one directory of runs; safe to use from many threads."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.path = runs / FILE
        self._local = threading.local()
        self._writing = threading.Lock()
        self._keeping = threading.Lock()
        self._connections: dict[threading.Thread, sqlite3.Connection] = {}
        self._make()

    def close(self) -> None:
        """Close the connections of all threads, none of which may use it any more."""
        with self._keeping:
            for connection in self._connections.values():
                connection.close()

    def refresh(self) -> int:
        """Take in what has changed in the directories; returns how many runs had."""
        with self._writing:
            known = {row["directory"]: row for row in self._all(f"SELECT {KNOWN} FROM runs")}  # noqa: S608
            present: set[str] = set()
            changed: list[tuple[Summary, int]] = []
            many = 0
            for directory in self._directories():
                present.add(directory)
                found = self._changed(directory, known.get(directory))
                if found is None:
                    continue
                changed.append(found)
                if len(changed) == BATCH:
                    self._put(changed)
                    many, changed = many + len(changed), []
            self._put(changed)
            self._drop(known.keys() - present)
            return many + len(changed)

    def put(self, directory: str) -> None:
        """Take in one run now, if it is not what was taken in before."""
        # First without the lock: whoever asks about a run that has ended does not wait for a long rebuild.
        if self._changed(directory, self._known(directory)) is not None:
            with self._writing:
                found = self._changed(directory, self._known(directory))
                if found is not None:
                    self._put([found])

    def page(
        self, *, query: str = "", name: str = "", state: str = "", limit: int = 50, offset: int = 0
    ) -> Page:
        """Runs, newest first; `query` is looked for in all texts of a run, `name` is the scenario's."""
        where, values = _where(query, name, state)
        (total,) = self._one(f"SELECT count(*) FROM runs {where}", values)  # noqa: S608 - of constants
        rows = self._all(
            f"SELECT {COLUMNS} FROM runs {where} "  # noqa: S608 - of constants
            "ORDER BY started_s DESC, directory LIMIT ? OFFSET ?",
            [*values, limit, offset],
        )
        return Page([dict(row) for row in rows], total)

    def get(self, directory: str) -> dict[str, Any] | None:
        """One run; None when there is none."""
        rows = self._all(f"SELECT {COLUMNS} FROM runs WHERE directory = ?", [directory])  # noqa: S608
        return dict(rows[0]) if rows else None

    def metrics_of(self, directory: str) -> list[dict[str, Any]]:
        """What was measured in a run: its expectations first."""
        rows = self._all(
            "SELECT name, value, unit, expected FROM metrics WHERE directory = ? "
            "ORDER BY expected DESC, name",
            [directory],
        )
        return [dict(row) for row in rows]

    def last_of_each(self) -> dict[str, dict[str, Any]]:
        """The newest run of every scenario that has been judged, by the scenario's name."""
        rows = self._all(
            f"SELECT {COLUMNS}, max(started_s) FROM runs WHERE state <> 'RUNNING' GROUP BY name"  # noqa: S608
        )
        return {row["name"]: dict(row) for row in rows}

    def running(self) -> list[str]:
        """Directories of runs that were under way at the last look."""
        rows = self._all("SELECT directory FROM runs WHERE state = 'RUNNING' ORDER BY started_s DESC")
        return [row["directory"] for row in rows]

    def counts(self) -> dict[str, int]:
        """How many runs there are in each state."""
        return {
            row["state"]: row["many"]
            for row in self._all("SELECT state, count(*) AS many FROM runs GROUP BY state")
        }

    def trend(self, name: str, metric: str, limit: int) -> list[dict[str, Any]]:
        """A metric over the newest `limit` judged runs of a scenario, oldest first."""
        rows = self._all(
            "SELECT runs.directory, seed, scale, changed, state, started_s, value FROM runs "
            "JOIN metrics USING (directory) WHERE runs.name = ? AND metrics.name = ? "
            "ORDER BY started_s DESC, runs.directory LIMIT ?",
            [name, metric, limit],
        )
        return [dict(row) for row in reversed(rows)]

    def metric_names(self, name: str) -> list[dict[str, Any]]:
        """What can be followed over a scenario's runs: expectations, then checks of every run, others."""
        rows = self._all(
            "SELECT metrics.name, unit, max(expected) AS expected, count(value) AS runs FROM metrics "
            "JOIN runs USING (directory) WHERE runs.name = ? GROUP BY metrics.name, unit "
            "ORDER BY 3 DESC, 1",
            [name],
        )
        found = [dict(row) for row in rows]
        return sorted(found, key=lambda row: (-row["expected"], row["name"] in CHECKS))

    def unmeasured(self) -> str | None:
        """The newest judged run whose main metrics are not here yet."""
        rows = self._all("SELECT directory FROM runs WHERE measured = 0 ORDER BY started_s DESC LIMIT 1")
        return str(rows[0]["directory"]) if rows else None

    def put_measured(self, directory: str, found: Sequence[Measured]) -> None:
        """Note the main metrics of a run; without any it is not asked about again."""
        rows = [(directory, one.name, one.value, one.unit) for one in found]
        with self._writing, self._connection() as database:
            database.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, 0)", rows)
            database.execute("UPDATE runs SET measured = 1 WHERE directory = ?", [directory])

    def _make(self) -> None:
        """Make the file anew unless it is there and usable; one server, and one thread, at a time."""
        self.runs.mkdir(parents=True, exist_ok=True)  # somebody may have cleared all runs away
        directory = os.open(self.runs, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            if self._usable():
                return
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            with closing(sqlite3.connect(self.path)) as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        finally:
            os.close(directory)

    def _usable(self) -> bool:
        """Whether the file is one of this version."""
        if not self.path.exists():
            return False
        try:
            with closing(sqlite3.connect(self.path)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                database.execute("SELECT count(*) FROM runs").fetchone()
        except sqlite3.DatabaseError:
            return False
        return bool(version == VERSION)

    def _directories(self) -> Iterable[str]:
        with os.scandir(self.runs) as entries:
            for entry in entries:
                if contained.NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    yield entry.name

    def _known(self, directory: str) -> sqlite3.Row | None:
        rows = self._all(f"SELECT {KNOWN} FROM runs WHERE directory = ?", [directory])  # noqa: S608
        return rows[0] if rows else None

    def _changed(self, directory: str, known: sqlite3.Row | None) -> tuple[Summary, int] | None:
        """What to take in of a run, and when it was judged; None where that is `known`, or cannot be read."""
        judged_ns = self._judged_ns(directory)
        if known is not None and judged_ns and known["judged_ns"] == judged_ns:
            return None
        summary = self._summary(directory)
        if summary is None or (known is not None and not judged_ns and known["state"] == summary.state):
            return None
        # A verdict that was seen half written is looked at again, whatever time its file keeps.
        return summary, 0 if summary.state == "RUNNING" else judged_ns

    def _summary(self, directory: str) -> Summary | None:
        """None of a run that cannot be read, for whatever reason: others are not to suffer from it."""
        try:
            return summarize(self.runs / directory)
        except Exception:
            log.exception("%s cannot be read", directory)
            return None

    def _judged_ns(self, directory: str) -> int:
        """When the verdict was written; 0 when there is none."""
        try:
            return os.lstat(self.runs / directory / "verdict.json").st_mtime_ns
        except OSError:
            return 0

    def _put(self, summaries: Sequence[tuple[Summary, int]]) -> None:
        with self._connection() as database:
            for one, judged_ns in summaries:
                database.execute("DELETE FROM metrics WHERE directory = ?", [one.directory])
                values = [getattr(one, column) for column in COLUMNS.split(", ")]
                marks = ", ".join("?" * (len(values) + 2))
                # A run without a verdict has no record to measure.
                measured = 0 if judged_ns else 1
                database.execute(
                    f"INSERT OR REPLACE INTO runs VALUES ({marks})",  # noqa: S608 - question marks
                    [*values, judged_ns, measured],
                )
                database.executemany(
                    "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, 1)",
                    [(one.directory, result.name, result.measured, result.unit) for result in one.results],
                )

    def _drop(self, gone: Iterable[str]) -> None:
        with self._connection() as database:
            database.executemany("DELETE FROM metrics WHERE directory = ?", [(name,) for name in gone])
            database.executemany("DELETE FROM runs WHERE directory = ?", [(name,) for name in gone])

    def _connection(self) -> sqlite3.Connection:
        """This thread's own; as a context it commits, or takes back. To the file that lies there now."""
        if self._stamp() is None:
            self._make()
        if not hasattr(self._local, "connection") or self._local.stamp != self._stamp():
            self._leave()
            self._local.stamp = self._stamp()
            connection = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False)
            self._local.connection = connection
            self._keep(connection)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = NORMAL")
        found: sqlite3.Connection = self._local.connection
        return found

    def _leave(self) -> None:
        """Close this thread's connection, if there is one."""
        if hasattr(self._local, "connection"):
            with self._keeping:
                self._connections.pop(threading.current_thread(), None)
            self._local.connection.close()
            del self._local.connection

    def _keep(self, connection: sqlite3.Connection) -> None:
        """Note whose it is, and close those of threads that have ended: a server's come and go."""
        with self._keeping:
            for thread in [one for one in self._connections if not one.is_alive()]:
                self._connections.pop(thread).close()
            self._connections[threading.current_thread()] = connection

    def _stamp(self) -> tuple[int, int] | None:
        """Which file it is; None when there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _all(self, question: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        try:
            return self._connection().execute(question, values).fetchall()
        except sqlite3.DatabaseError:
            # Somebody may have damaged it, or deleted it this moment: the directories are the truth.
            self._leave()
            self._make()
            return self._connection().execute(question, values).fetchall()

    def _one(self, question: str, values: Sequence[object]) -> sqlite3.Row:
        return self._all(question, values)[0]


def _where(query: str, name: str, state: str) -> tuple[str, list[object]]:
    """A WHERE clause of constants and marks, and the values for these."""
    clauses: list[str] = []
    values: list[object] = []
    for word in query.split():
        escaped = "".join(f"\\{letter}" if letter in "\\%_" else letter for letter in word)
        clauses.append(f"({' OR '.join(f'{column} LIKE ? ESCAPE {_BACKSLASH}' for column in SEARCHED)})")
        values += [f"%{escaped}%"] * len(SEARCHED)
    for column, wanted in (("name", name), ("state", state)):
        if wanted:
            clauses.append(f"{column} = ?")
            values.append(wanted)
    return (f"WHERE {' AND '.join(clauses)}" if clauses else ""), values


_BACKSLASH: Final = "'\\'"
