"""What this machine lacks to run a kernel, in the words of every provider."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from testbed.errors import Problem


def missing(where: str, steps: Mapping[str, str], path: str | None = None) -> list[Problem]:
    """One problem for each program that is not in the path; `steps`: programs, and what to do about each."""
    return [
        Problem(where, f"the program {program} is missing", next_step=step)
        for program, step in steps.items()
        if shutil.which(program, path=path) is None
    ]
