"""User-Mode Linux: a kernel that runs as an ordinary process, with a clock of its own.

With `time-travel=inf-cpu` the guest's clock moves only while everything in it sleeps. Nothing of the
host that can differ between two runs reaches the guest: environment, terminal, limits, process ids,
entropy, addresses, the wall clock, the place of the checkout and of the run directory
(docs/determinism.md).
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import KernelError, MachineError, Problem
from testbed.kernel import Clock, Needs, digest, image, lacking
from testbed.kernel.build import PACKAGE_STEP, cache_dir, find_kernel, places
from testbed.kernel.cpu import reserved
from testbed.kernel.scratch import scratch
from testbed.kernel.supervise import OutlivedError, supervise
from testbed.rundir import RunDir

WHERE = "--kernel uml"
PROGRAMS = ("setpriv", "prlimit", "setarch", "taskset", "pivot_root", "ip", "stty")
"""What a run calls here."""
BOOT_NS = 1_735_689_600_000_000_000
"""Every guest boots on 1 January 2025, 00:00 UTC."""
MIN_MEMORY_BYTES = 1 << 30
MIN_OPEN_FILES = 1024
"""Runs with few agents have 350 open, each kind of program with its libraries counted once."""
POWER_OFF_NOISE = ("sysrq: Power Off", "reboot: Power down")


@dataclass
class _Console:
    """What the guest's console has told about its end so far."""

    on_line: Callable[[str], None]
    powered_off: bool = False
    set_up: bool = True
    waited_for_ever: bool = False
    out_of_memory: bool = False
    panic: str = ""
    last: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Take note of one line and hand it on, unless it is the kernel's farewell."""
        if line.endswith("reboot: Power down"):
            self.powered_off = True
        if line == "guest: could not be set up":
            self.set_up = False
        if line == "guest: waits for ever" or "going to sleep forever" in line:
            self.waited_for_ever = True
        if "] Out of memory: Killed process" in line or "System is deadlocked on memory" in line:
            self.out_of_memory = True
        if "Kernel panic - not syncing" in line:
            self.panic = line
        if line.endswith(POWER_OFF_NOISE):
            return
        self.last = [*self.last[-4:], line]
        self.on_line(line)


class Uml:
    """Runs the payload (Python arguments, the run directory is added) in a guest of its own."""

    name = "uml"

    def __init__(self, *, payload: Sequence[str] = ("-m", "testbed.inside")) -> None:
        self._payload = tuple(payload)

    def probe(self, clock: Clock) -> list[Problem]:  # noqa: ARG002 - both clocks need the same
        """Everything this machine lacks to boot a guest; empty when it can."""
        problems = []
        if find_kernel() is None:
            looked = ", ".join(str(place) for place in places())
            problems.append(
                Problem(
                    WHERE,
                    f"no kernel that this user can run in {looked}",
                    next_step="make setup, or without a checkout: testbed kernel build",
                )
            )
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        problems += lacking.missing(WHERE, dict.fromkeys(PROGRAMS, PACKAGE_STEP), path)
        if most_open_files() < MIN_OPEN_FILES:
            problems.append(
                Problem(
                    WHERE,
                    f"this user may have {most_open_files()} files open (ulimit -Hn)",
                    allowed=f"{MIN_OPEN_FILES} or more",
                    next_step="raise that limit: /etc/security/limits.conf, or the container's",
                )
            )
        if _memory_place(MIN_MEMORY_BYTES) is None:
            problems.append(_no_memory_problem(MIN_MEMORY_BYTES))
        return problems

    def execute(self, run_dir: Path, needs: Needs, on_line: Callable[[str], None]) -> None:
        """Boot a guest, run the payload in it, return when the guest has switched itself off.

        `on_line` sees the console as it comes; `console.log` keeps it. Raises MachineError when there
        is no kernel or no room for the guest's memory, KernelError when the guest dies or hangs.
        """
        kernel = find_kernel()
        memory = _memory_place(needs.memory_bytes)
        if kernel is None:
            raise MachineError(*self.probe(needs.clock))
        if memory is None:
            raise MachineError(_no_memory_problem(needs.memory_bytes))
        console = _Console(on_line)
        with (
            scratch("run", _scratch_place(), memory) as (place, *more),
            reserved() as processor,
        ):
            project = image.provide(cache_dir(), place)
            self._prepare(place, run_dir, project)
            fixed = fixed_addresses()
            _note(run_dir, kernel, project, fixed=fixed)
            start = [*_same_everywhere(fixed=fixed), "taskset", "-c", str(processor)]
            try:
                status = supervise(
                    [*start, str(kernel), *_boot_arguments(needs)],
                    cwd=place,
                    env={"PATH": "/usr/bin:/bin", "HOME": str(place), "TMPDIR": str([place, *more][-1])},
                    log=RunDir(run_dir).console,
                    wall_limit_s=needs.wall_limit_s,
                    grace_s=0,
                    on_line=console.read,
                )
            except OutlivedError:
                raise KernelError(_outlived_problem(needs.wall_limit_s)) from None
        _judge(status, console, needs, RunDir(run_dir).console)

    def _prepare(self, place: Path, run_dir: Path, project: Path) -> None:
        """Write the guest's first program, which finds everything else."""
        settings = {
            "RUN_DIR": str(run_dir.resolve()),
            "IMAGE": str(project),
            "SITE": sysconfig.get_path("purelib"),
            "SITE_TARGET": image.guest_site_packages(),
        }
        (place / "init").write_text(
            "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
            + f"set -- {shlex.join(self._payload)}\n"
            + Path(__file__).with_name("init.sh").read_text(encoding="utf-8"),
            encoding="utf-8",
        )


def fixed_addresses() -> bool:
    """Whether this user may switch address randomization off; Docker's default profile forbids it."""
    return subprocess.run(["setarch", "-R", "true"], check=False, capture_output=True).returncode == 0


def most_open_files() -> int:
    """How many files this user's processes may have open at most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def _same_everywhere(*, fixed: bool) -> list[str]:
    """What the kernel must be started through to have the same memory and files on each boot.

    Where the host puts its heap decides how much memory the guest has left, and that when TCP
    acknowledges. Each of the host's files that the guest has looked at, the kernel has open.
    """
    start = ["prlimit", f"--nofile={most_open_files()}:"]
    return [*start, "setarch", "-R"] if fixed else start


def _note(run_dir: Path, kernel: Path, project: Path, *, fixed: bool) -> None:
    """Keep what this guest is made of: both can be another one by the time it has ended."""
    made_of = {
        "kernel_name": kernel.parent.name,
        "kernel_sha256": digest.of_file(kernel),
        "project_sha256": digest.of_project(project),
        "fixed_addresses": fixed,
    }
    RunDir(run_dir).guest.write_text(json.dumps(made_of), encoding="utf-8")


def _boot_arguments(needs: Needs) -> list[str]:
    """The kernel's command line; the kernel stirs it into its random numbers, so no path may be in it.

    The first program is found through the kernel process's own working directory, by way of the host's
    /proc, which the guest sees until it mounts its own.
    """
    arguments = [
        "root=none",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "console=tty0",
        "init=/bin/sh",
        f"mem={needs.memory_bytes >> 20}M",
        "quiet",
        "con=null",
        "con0=null,fd:1",
        "norandmaps",
        "thash_entries=4096",  # each dump of TCP sockets walks the whole table
        f"rng-seed={needs.seed % 2**64}",
        "uml_dir=./",
        "umid=guest",
    ]
    if needs.clock == "virtual":
        arguments += ["time-travel=inf-cpu", f"time-travel-start={BOOT_NS}"]
    return [*arguments, "--", "/proc/self/cwd/init"]


def _judge(status: int, console: _Console, needs: Needs, log: Path) -> None:
    """Raise KernelError unless the guest ran its payload and switched itself off in good order."""
    if console.out_of_memory:
        raise KernelError(
            Problem(
                WHERE,
                f"the guest ran out of its {needs.memory_bytes >> 20} MiB of memory",
                next_step=f"give the guest more memory, or run less in it; see {log}",
            )
        )
    if console.waited_for_ever:
        raise KernelError(
            Problem(
                WHERE,
                "everything in the guest waits for ever: a week of its clock went by and the run did not end",
                next_step=f"look for a wait without a timeout in the last lines of {log}",
            )
        )
    if not console.set_up or not console.powered_off:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        what = "the guest died" if console.set_up else "the guest could not be set up"
        last = console.panic or " | ".join(console.last) or "nothing"
        raise KernelError(Problem(WHERE, f"{what} ({how}); its last words: {last}", next_step=f"see {log}"))


def _outlived_problem(wall_limit_s: float) -> Problem:
    return Problem(
        WHERE,
        f"the run took more than {wall_limit_s:g} s of wall time and was ended",
        next_step="look for a busy loop, or ask for less: a shorter run, fewer requests, a smaller scale",
    )


def _no_memory_problem(memory_bytes: int) -> Problem:
    return Problem(
        WHERE,
        f"no place for the guest's memory file of {memory_bytes >> 20} MiB",
        allowed="a writable directory, mounted without noexec, with that much room: /dev/shm, $TMPDIR, /tmp",
        next_step="set TMPDIR to a directory with more room, or mount -o remount,size=16G /dev/shm",
    )


def _memory_place(memory_bytes: int) -> Path | None:
    """The first directory that can hold the guest's memory: a sparse file that UML maps executable."""
    for name in ("/dev/shm", os.environ.get("TMPDIR"), "/tmp", "/var/tmp"):  # noqa: S108 - candidates
        if not name or not os.access(name, os.W_OK | os.X_OK):
            continue
        place = os.statvfs(name)
        if place.f_bavail * place.f_frsize >= memory_bytes and not place.f_flag & os.ST_NOEXEC:
            return Path(name)
    return None


def _scratch_place() -> str:
    """The usual place for temporary files, but not below /dev, where the guest has its own devices."""
    place = tempfile.gettempdir()
    return "/var/tmp" if Path(place).is_relative_to("/dev") else place  # noqa: S108 - kept apart by mkdtemp
