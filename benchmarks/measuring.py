"""What all benchmarks share: how much to measure, and taking samples one after the other."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Reading
from benchmarks.machine import ProcessorTime, conditions, processor_time
from benchmarks.scenario_runs import BenchmarkError
from testbed.errors import TestbedError
from testbed.kernel import Needs
from testbed.kernel.uml import Uml

Say = Callable[[str], None]
GUEST = Path("/run/testbed/run")


@dataclass(frozen=True)
class Effort:
    """`quick`: the smallest sizes that still run everything; its figures say little."""

    repeats: int
    quick: bool
    say: Say

    def samples(self, name: str, measure: Callable[[], Mapping[str, float]]) -> list[Reading]:
        """Measure again and again, and say what came out."""
        readings = []
        for number in range(1, self.repeats + 1):
            before = conditions()
            values = measure()
            readings.append(Reading(values, before))
            shown = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
            self.say(f"{name} {number}/{self.repeats}: {shown}")
        return readings


@dataclass(frozen=True)
class Line:
    """A line of a guest, when it came (seconds since the boot began) and what the guest had cost by then."""

    text: str
    wall_s: float
    spent: ProcessorTime


def guest_lines(
    script: Path, *arguments: str, memory_bytes: int = 4 << 30, wall_limit_s: float = 600
) -> list[Line]:
    """Boot a guest that runs `script`; all that it says. BenchmarkError when it does not end well."""
    lines: list[Line] = []
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        shutil.copy(script, place)

        def hear(text: str) -> None:
            lines.append(Line(text, time.monotonic() - begun_s, processor_time(os.getpid())))

        needs = Needs(memory_bytes, "virtual", seed=1, wall_limit_s=wall_limit_s)
        try:
            Uml(payload=(str(GUEST / script.name), *arguments)).execute(Path(place), needs, hear)
        except TestbedError as error:
            raise BenchmarkError(f"{script.name}: {error}; it said {[one.text for one in lines]}") from None
    return lines
