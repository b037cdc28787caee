"""What became of runs as a table in Markdown, for the page that a CI service shows beside a build.

GitHub Actions, Gitea and Forgejo name a file in GITHUB_STEP_SUMMARY; what is appended to it is shown. Nothing
of the environment is written, only what verdicts say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.markdown import escaped, table
from testbed.verdict import Verdict

VARIABLE: Final = "GITHUB_STEP_SUMMARY"


def of_run(name: str, verdict: Verdict, directory: Path) -> str:
    """A heading with the verdict, a row for each expectation, reasons not to trust it, where the run lies."""
    rows = [(result.status, result.name, result.sentence) for result in verdict.results]
    parts = [f"### {verdict.status}: {escaped(name)}, {escaped(verdict.note)}\n"]
    parts += [table(("status", "expectation", "finding"), rows)] if rows else []
    parts += (
        ["".join(f"- not trusted: {escaped(reason)}\n" for reason in verdict.trust)] if verdict.trust else []
    )
    return "\n".join([*parts, f"{escaped(str(directory))}\n\n"])


def append(text: str, places: Sequence[Path]) -> None:
    """Append to each of these files; what cannot be written is said, and changes no verdict."""
    for place in places:
        try:
            with place.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            print(f"warning: no summary in {place}: {error.strerror}", file=sys.stderr)


def asked_for() -> list[Path]:
    """The file that the CI service names, if there is one."""
    return [Path(named)] if (named := os.environ.get(VARIABLE)) else []
