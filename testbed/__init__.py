"""A wind tunnel for cross-datacenter LLM serving: real Linux TCP over an emulated WAN, in virtual time."""

import os
import signal
import sys
from types import FrameType


def _ends_quietly() -> None:
    """Let Ctrl-C end a command that still loads its modules as it does later: a word, and exit code 2.

    Python says `-m` for the program's name as long as it looks for the module; a library changes no signals,
    nor do the programs that only a kernel runs, and that have not `run_command` to take over.
    """
    command = sys.argv[:1] == ["-m"] or (sys.argv[:1] and sys.argv[0].rpartition("/")[2] == "testbed")
    other = any(word.startswith("testbed.kernel.") or word.endswith(".inside") for word in sys.orig_argv)
    if command and not other and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(2)  # there is nothing yet to put away


_ends_quietly()
