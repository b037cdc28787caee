"""In the guest: measure what DIRECTORY/wanted.json asks for, with the environment that agents have there.

Beside it come measured.jsonl, and ended.json when it is over. The console hears of each time that was taken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from agents.config import COMPUTE_ENVIRONMENT
from agents.measurements import Decode, Line, Prefill

WANTED: Final = "wanted.json"
MEASURED: Final = "measured.jsonl"
ENDED: Final = "ended.json"
SAMPLE: Final = "@sample"
LINES: Final = msgspec.json.Decoder(Line)


class Ended(msgspec.Struct, frozen=True):
    """How the measuring program ended."""

    exit_code: int
    said: str


def main() -> None:
    """Run the program, and keep what it prints."""
    directory = Path(sys.argv[-1])
    command = [sys.executable, "-m", "agents", "measure", str(directory / WANTED)]
    said = directory / "stderr"
    with (
        (directory / MEASURED).open("wb") as measured,
        said.open("wb") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **COMPUTE_ENVIRONMENT}
        ) as program,
    ):
        assert program.stdout is not None
        for line in program.stdout:
            measured.write(line)
            if isinstance(LINES.decode(line), Prefill | Decode):
                print(SAMPLE, flush=True)
    ended = Ended(program.returncode, said.read_text(encoding="utf-8", errors="replace"))
    (directory / ENDED).write_bytes(msgspec.json.encode(ended))


if __name__ == "__main__":
    main()
