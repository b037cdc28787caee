"""The machine under the benchmarks: what it is, how busy it is, what a guest took of it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Conditions
from testbed.kernel import digest
from testbed.kernel.build import find_kernel

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 0.5
LOOP_TURNS = 3_000_000
COPY_BYTES, COPIES = 256 << 20, 8
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, Any]:
    """Machine and versions, as they stand in results.json."""
    kernel = find_kernel()
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_at_start": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "commit": _git("rev-parse", "HEAD"),
            "changed_files": len(
                _git("status", "--porcelain", "--", "testbed", "agents", "topologies").splitlines()
            ),
            "uml_sha256": digest.of_file(kernel) if kernel else "",
            "python": platform.python_version(),
        },
    }


def conditions() -> Conditions:
    """Watch the machine while this process sleeps, then see how fast it is."""
    load = os.getloadavg()[0]
    before = _busy_s()
    time.sleep(LOOK_S)
    busy = (_busy_s() - before) / LOOK_S
    return Conditions(round(load, 2), round(busy, 2), round(loop_turns_per_s() / 1e6, 2))


def loop_turns_per_s() -> float:
    """How often Python turns in an empty loop; takes a tenth of a second."""
    begun_s = time.perf_counter()
    for _ in range(LOOP_TURNS):
        pass
    return LOOP_TURNS / (time.perf_counter() - begun_s)


def copied_gb_per_s() -> float:
    """How fast memory beyond all caches is copied, one processor, read and written bytes counted once."""
    source, sink = bytearray(COPY_BYTES), memoryview(bytearray(COPY_BYTES))
    sink[:] = source
    begun_s = time.perf_counter()
    for _ in range(COPIES):
        sink[:] = source
    return COPIES * COPY_BYTES / 1e9 / (time.perf_counter() - begun_s)


def _busy_s() -> float:
    """Processor seconds since boot that went to anybody, and those the hypervisor gave to others."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) * TICK_S


@dataclass(frozen=True)
class ProcessorTime:
    """Processor seconds of a process and of the guest that it has started."""

    host_s: float
    """The process itself: plan before the guest, verdict and report after it."""
    kernel_s: float
    """The guest's kernel."""
    programs_s: float
    """The programs in the guest."""

    def since(self, before: ProcessorTime) -> ProcessorTime:
        """What came to it in between."""
        return ProcessorTime(
            self.host_s - before.host_s,
            self.kernel_s - before.kernel_s,
            self.programs_s - before.programs_s,
        )

    def guest_s(self) -> float:
        """The guest alone."""
        return self.kernel_s + self.programs_s

    def total_s(self) -> float:
        """All of it."""
        return self.host_s + self.kernel_s + self.programs_s


def processor_time(pid: int) -> ProcessorTime:
    """So far; a guest is the child that leads a session of its own, its programs are children of that.

    A guest that has ended counts as the process's own time.
    """
    found = [_Stat.read(path) for path in Path("/proc").glob("[0-9]*/stat")]
    (own,) = [one for one in found if one.pid == pid] or [_Stat()]
    leaders = {one.pid for one in found if one.parent == pid and one.pid == one.session}
    kernel = [one for one in found if one.pid in leaders]
    programs = [one for one in found if one.session in leaders and one.pid not in leaders]
    return ProcessorTime(
        (own.ticks + own.children_ticks) * TICK_S,
        sum(one.ticks for one in kernel) * TICK_S,
        sum(one.children_ticks for one in kernel) * TICK_S + sum(one.ticks for one in programs) * TICK_S,
    )


@dataclass(frozen=True)
class _Stat:
    """Of /proc/PID/stat, proc(5): utime and stime, and those of children that have been waited for."""

    pid: int = 0
    parent: int = 0
    session: int = 0
    ticks: int = 0
    children_ticks: int = 0

    @classmethod
    def read(cls, path: Path) -> _Stat:
        """Zeros when the process has just gone."""
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return cls()
        ticks = [int(field) for field in fields[11:15]]
        return cls(int(path.parent.name), int(fields[1]), int(fields[3]), sum(ticks[:2]), sum(ticks[2:]))


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    git = ["git", "--no-optional-locks"]
    ended = subprocess.run([*git, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.strip()
