"""Keeps the history up with the run directories, in a thread of its own, as long as somebody looks at it."""

from __future__ import annotations

import logging
import threading
from typing import Final

from polars.exceptions import PanicException

from testbed.serve import main_metrics
from testbed.serve.history import History

EVERY_S: Final = 2.0
"""At most so often the directories are looked at."""
FIRST_LOOK_S: Final = 2.0
"""A long rebuild is seen to grow, rather than waited for."""
PAUSE_S: Final = 0.05
"""Between two runs whose metrics are computed, so that requests come first."""
log = logging.getLogger(__name__)


class Indexer:
    """Call `touch` for everything that is asked of the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name="indexer", daemon=True)

    def start(self) -> None:
        self._asked.set()
        self._thread.start()

    def touch(self) -> None:
        """Look at the directories soon; waits a moment for the first look of all."""
        self._asked.set()
        self._ready.wait(FIRST_LOOK_S)

    def close(self) -> None:
        self._closed.set()
        self._asked.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.is_set():
            self._asked.wait()
            self._asked.clear()
            if self._closed.is_set():
                return
            try:
                self._history.refresh()
                self._ready.set()
                self._measure()
            except Exception:
                # A full disk, a runs directory that is gone: the next look may find it mended.
                log.exception("the history could not be brought up to date")
                self._ready.set()
            self._closed.wait(EVERY_S)

    def _measure(self) -> None:
        """Compute metrics of runs that have none yet, newest first, until somebody looks again or it ends."""
        while not self._stopped() and (directory := self._history.unmeasured()) is not None:
            try:
                found = main_metrics.of_run(self._history.runs / directory)
            except (Exception, PanicException):  # a record may be damaged in ways nobody has thought of
                log.exception("no metrics of %s", directory)
                found = []
            self._history.put_measured(directory, found)
            self._closed.wait(PAUSE_S)

    def _stopped(self) -> bool:
        return self._asked.is_set() or self._closed.is_set()
