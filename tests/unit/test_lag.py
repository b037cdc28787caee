"""When a run in real time was too slow to be trusted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.lag import INTERVAL_NS, LEAST_NS, SHARE, Lag, allowed_ns
from tests.unit.link_plans import planned

PROJECT = Path(__file__).resolve().parents[2]
MS = 1_000_000


def finding(allowed_ms: int, *spans_ms: float) -> str:
    lag = Lag(allowed_ms * MS, lambda _said: None)
    for span_ms in spans_ms:
        lag.add(round(span_ms * MS))
    return lag.finding()


@given(st.integers(5, 100), st.lists(st.floats(10, 15), max_size=50))
def test_waits_as_long_as_allowed_are_nothing_to_speak_of(allowed_ms: int, spans_ms: list[float]) -> None:
    """Up to the bound nothing is counted, however often."""
    assert finding(allowed_ms, *spans_ms) == ""


def test_a_hundredth_of_the_time_may_be_late() -> None:
    """One second of a hundred may pass in waits beyond the bound, and not much more."""
    punctual = [10.0] * 9900  # 99 s
    assert finding(100, *punctual, *[10 + 100 + 9.0] * 100) == ""
    said = finding(100, *punctual, *[10 + 100 + 20.0] * 100)
    assert said.startswith(
        "this machine was too slow: for 1.8% of the time programs went on more than 100 ms"
    )
    assert "at worst 120 ms; allowed are 1% and 5000 ms" in said


def test_one_wait_may_be_too_long_by_itself() -> None:
    """A stall of fifty times the bound counts, even in a run so long that it is no hundredth of it."""
    assert "at worst 600 ms" in finding(10, *[10.0] * 100_000, 610.0)
    assert finding(10, *[10.0] * 100_000, 500.0) == ""
    assert SHARE == 0.01


def test_the_bound_is_the_link_s_or_the_samples() -> None:
    """The shortest round trip of the run, or the sample where that is shorter, but never below 5 ms."""
    delays = ("link.a_to_b.delay=20ms", "link.b_to_a.delay=10ms")
    assert allowed_ns(planned(*delays, "sample=100ms")) == 30 * MS
    assert allowed_ns(planned(*delays, "sample=20ms")) == 20 * MS
    assert allowed_ns(planned("link.a_to_b.delay=1ms", "link.b_to_a.delay=1ms")) == LEAST_NS


def test_nothing_measured_is_no_finding() -> None:
    """A run that ended before the first look has other reasons to be doubted."""
    assert finding(10) == ""


def test_a_stall_at_the_very_end_counts() -> None:
    """What held up the run's last moments held up its last measurements."""
    said: list[str] = []

    async def run() -> None:
        watching = asyncio.create_task(Lag(10 * MS, said.append).watch(time.monotonic_ns()))
        await asyncio.sleep(0.05)
        time.sleep(0.6)  # noqa: ASYNC251 - the machine, which stops all of it
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
    assert len(said) == 1


HOGGED = """
import asyncio, os, sys, time
from testbed.telemetry.lag import Lag
os.sched_setaffinity(0, {int(sys.argv[1])})
said = []
async def main():
    watching = asyncio.create_task(Lag(5_000_000, said.append).watch(time.monotonic_ns()))
    await asyncio.sleep(0.1)
    print("watching", flush=True)
    await asyncio.sleep(0.8)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
asyncio.run(main())
print(said)
"""
HOG = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
end = time.monotonic() + 0.4
while time.monotonic() < end:
    pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a processor for itself")
def test_a_hogged_processor_is_noticed() -> None:
    """While another program has the processor for 0.4 s, timers come that late, and the finding says so."""
    processor = str(min(os.sched_getaffinity(0)))
    with subprocess.Popen(
        [sys.executable, "-c", HOGGED, processor], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "watching\n"
        hog = subprocess.run(
            [sys.executable, "-c", HOG, processor], capture_output=True, text=True, check=False
        )
        said = watching.stdout.read()
    if "PermissionError" in hog.stderr:
        pytest.skip("this machine lends its processors to nobody alone")
    assert "this machine was too slow" in said, said


def test_the_watch_speaks_when_it_is_cancelled() -> None:
    """A loop that stands still for 0.3 s, as by a machine that is busy elsewhere, is told at the end."""
    said: list[str] = []

    async def main() -> None:
        watching = asyncio.create_task(Lag(LEAST_NS, said.append).watch(time.monotonic_ns()))
        await asyncio.sleep(2 * INTERVAL_NS / 1e9)
        time.sleep(0.3)  # noqa: ASYNC251 - nobody else in this loop goes on
        await asyncio.sleep(2 * INTERVAL_NS / 1e9)
        assert said == []
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
    assert len(said) == 1
