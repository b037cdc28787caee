"""Keeping the network of a run on the host's kernel up after its end, for people and for other tools.

Inside, the run waits as long as a file is there, and says by which process its namespaces are reached.
Outside, whoever started the run lets go with Enter, with Ctrl-C, or by leaving Mininet's prompt, where Ctrl-C
first ends the command that goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Final, Literal

from testbed.errors import Problem, ScenarioError
from testbed.namespaces import NETNS_DIR, PID_VARIABLE
from testbed.plan import Plan
from testbed.rundir import RunDir

How = Literal["hold", "cli"]
WORD: Final = "@held"
LOOK_S: Final = 0.1


async def held(run: RunDir) -> None:
    """Inside: wait until nobody holds the network any more."""
    if run.hold.exists():
        print("@stage holding the network", flush=True)
        print(f"{WORD} {os.environ.get(PID_VARIABLE, os.getpid())}", flush=True)
    while run.hold.exists():  # noqa: ASYNC110 - it is another process that removes it
        await asyncio.sleep(LOOK_S)


def require(how: How | None, kernel: str) -> None:
    """ScenarioError where there is no network to hold, or nobody to hold it."""
    if how is None:
        return
    if kernel != "host":
        found = f"the network of kernel {kernel} is inside of it, where no other program comes"
        raise ScenarioError(Problem(f"--{how}", found, "--kernel host", "--kernel host, as root"))
    if how == "cli" and not sys.stdin.isatty():
        raise ScenarioError(Problem("--cli", "the input is no terminal", next_step="--hold"))


class Holding:
    """Outside: hears that the network is held, and lets go of it when it is told to."""

    def __init__(self, how: How, run: RunDir, plan: Plan, say: Callable[[str], None]) -> None:
        self._how, self._run, self._plan, self._say = how, run, plan, say
        self._before = signal.getsignal(signal.SIGINT)
        self._interrupt: Callable[[], bool] = lambda: False
        run.hold.touch()

    def hear(self, line: str) -> bool:
        """Take a line of the run's output; whether it was for this. Called by the main thread."""
        word, _, pid = line.partition(" ")
        if word != WORD:
            return False
        signal.signal(signal.SIGINT, self._hear_ctrl_c)
        place = f"/proc/{pid}/root{NETNS_DIR}"
        self._say(f"the network is up; its hosts are in {place}. A shell in one of them:")
        self._say(f"  nsenter --net={place}/a1 bash")
        prompt = self._prompt if self._how == "cli" else self._wait
        Thread(target=prompt, args=(Path(place),), daemon=True).start()
        return True

    def close(self) -> None:
        """The run is over, however; called by the main thread."""
        self._let_go()
        signal.signal(signal.SIGINT, self._before)

    def _wait(self, _place: Path) -> None:
        self._say("Enter or Ctrl-C ends it.")
        if sys.stdin.readline():
            self._let_go()

    def _prompt(self, place: Path) -> None:
        from testbed.prompt import prompt  # noqa: PLC0415 - Mininet takes its time to load

        try:
            prompt(self._plan.topology, self._plan.topology_params, place, ready=self._take)
        finally:
            self._let_go()

    def _hear_ctrl_c(self, _number: int, _frame: FrameType | None) -> None:
        if not self._interrupt():
            self._let_go()

    def _take(self, interrupt: Callable[[], bool]) -> None:
        self._interrupt = interrupt

    def _let_go(self) -> None:
        self._run.hold.unlink(missing_ok=True)
