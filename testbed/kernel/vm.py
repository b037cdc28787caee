"""A virtual machine with a stock Debian kernel, under QEMU: real time, and that kernel's own qdiscs.

`scripts/vm build` makes its disk. A run starts the kernel directly, with a first program of ours in place
of systemd (vm_init.sh); whatever the guest writes to its disk is gone with it. Where KVM does not work, QEMU
emulates the processor, ten times slower or more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from testbed.errors import KernelError, MachineError, Problem
from testbed.kernel import Clock, Needs, digest, image, lacking
from testbed.kernel.build import cache_dir, places
from testbed.kernel.scratch import scratch
from testbed.kernel.supervise import OutlivedError, supervise, tied
from testbed.rundir import RunDir

Accelerator = Literal["kvm", "tcg"]

WHERE = "--kernel vm"
QEMU = "qemu-system-x86_64"
PACKAGES = {QEMU: "qemu-system-x86", "setpriv": "util-linux", "prlimit": "util-linux"}
"""Programs a run calls here, and the Debian packages they come in."""
RECIPE = Path(__file__).with_name("vm_recipe")
BUILDER = image.PROJECT / "scripts/vm"
"""Makes the image. Not there where the project is installed: the image has a checkout's packages."""
DISK, KERNEL, INITRD, RELEASE = FILES = ("disk.img", "vmlinuz", "initrd", "release")
"""What an image consists of; `release` has the kernel's name."""
GUEST_SITE = "/opt/venv/lib/python{}.{}/site-packages"
"""Where the recipe puts the Python packages."""
GUEST_PYTHON = "/usr/bin/python{}.{}"
"""Debian's, by which the guest starts the frozen copy of the project, as it is started here."""
GUEST_BOOT = "/usr/local/sbin/testbed-vm"
UP = "vm: up"
MOST_PROCESSORS = 8
KVM_PATIENCE_S = 30.0
"""A boot under KVM takes a few seconds, or it hangs."""
PROBE_MEMORY_BYTES = 512 << 20
BOOT_PATIENCE_S: Mapping[Accelerator, float] = {"kvm": 60.0, "tcg": 600.0}
"""Wall time that a run may take beyond its watchdog's: the boot, and agents that start slowly."""


@dataclass
class _Console:
    """What the guest's console has told so far."""

    on_line: Callable[[str], None]
    set_up: bool = True
    switched_off: bool = False
    last: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Take note of one line and hand it on, unless it is part of the guest's farewell."""
        if line == "vm: could not be set up":
            self.set_up = False
        if line == "vm: off":
            self.switched_off = True
        if self.switched_off:
            return
        self.last = [*self.last[-4:], line]
        self.on_line(line)


class Vm:
    """Runs the payload (Python arguments, the run directory is added) in a VM of its own."""

    name = "vm"

    def __init__(self, *, payload: Sequence[str] = ("-m", "testbed.inside")) -> None:
        self._payload = tuple(payload)

    def probe(self, clock: Clock) -> list[Problem]:
        """Everything this machine lacks to boot the VM; empty when it can."""
        problems = []
        if clock == "virtual":
            problems.append(
                Problem(
                    WHERE,
                    "a stock kernel has no virtual clock",
                    next_step="use --clock real, or --kernel uml, which has one",
                )
            )
        more = "or scripts/vm build, which says all that is missing"
        steps = {one: f"apt-get install {package}, {more}" for one, package in PACKAGES.items()}
        problems += lacking.missing(WHERE, steps)
        here, there = os.path.realpath(sys.executable), GUEST_PYTHON.format(*sys.version_info[:2])
        if here != there:
            problems.append(
                Problem(
                    WHERE, f"the guest has no {here}", there, f"{there} -m venv --clear .venv; make setup"
                )
            )
        if find_image() is None:
            looked = ", ".join(str(place / "vm" / image_name()) for place in places())
            problems.append(
                Problem(
                    WHERE,
                    f"no image that this user can read: {looked}",
                    next_step="scripts/vm build"
                    if BUILDER.is_file()
                    else "run this in a checkout of the project, which has scripts/vm; or use --kernel uml",
                )
            )
        return problems

    def execute(self, run_dir: Path, needs: Needs, on_line: Callable[[str], None]) -> None:
        """Boot the VM, run the payload in it, return when it has switched itself off.

        `on_line` sees the console as it comes; `console.log` keeps it. Raises MachineError when there
        is no image, KernelError when the guest dies or hangs.
        """
        disk = find_image()
        if disk is None:
            raise MachineError(*self.probe(needs.clock))
        accelerator = working_accelerator(disk)
        console = _Console(on_line)
        wall_limit_s = needs.wall_limit_s + BOOT_PATIENCE_S[accelerator]
        with scratch("run") as (place,):
            project = image.provide(cache_dir(), place)
            shares = {"start": self._prepare(place), "project": project, "run": run_dir.resolve()}
            _note(run_dir, disk, project, accelerator)
            on_line("@stage booting a virtual machine")
            try:
                status = supervise(
                    command(disk, accelerator, needs.memory_bytes, shares),
                    cwd=place,
                    env=_environment(place),
                    log=RunDir(run_dir).console,
                    wall_limit_s=wall_limit_s,
                    grace_s=0,
                    on_line=console.read,
                )
            except OutlivedError:
                raise KernelError(_outlived_problem(wall_limit_s, accelerator)) from None
        _judge(status, console, RunDir(run_dir).console)

    def _prepare(self, place: Path) -> Path:
        """Write the guest's first program; returns the directory it lies in."""
        start = place / "start"
        start.mkdir()
        settings = {
            "SITE": GUEST_SITE.format(*sys.version_info[:2]),
            "SITE_TARGET": image.guest_site_packages(),
        }
        (start / "init").write_text(
            "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
            + f"set -- {shlex.join(self._payload)}\n"
            + Path(__file__).with_name("vm_init.sh").read_text(encoding="utf-8"),
            encoding="utf-8",
        )
        return start


def image_name() -> str:
    """The name of the image that this checkout wants: a digest of all that it is made of."""
    parts = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(RECIPE.iterdir())]
    parts.append(repr(sys.version_info[:2]).encode())
    setup, lock = image.PROJECT / "scripts/setup", image.PROJECT / "requirements.lock"
    if setup.is_file() and lock.is_file():
        parts += [
            lock.read_bytes(),
            subprocess.run([setup, "packages"], capture_output=True, check=True).stdout,
        ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def find_image() -> Path | None:
    """The directory with this checkout's image, if it is whole and this user can read it."""
    name = image_name()
    for place in places():
        directory = place / "vm" / name
        if all(os.access(directory / file, os.R_OK) for file in FILES):
            return directory
    return None


def command(
    disk: Path,
    accelerator: Accelerator,
    memory_bytes: int,
    shares: Mapping[str, Path],
    *,
    kernel_arguments: Sequence[str] = (),
) -> list[str]:
    """The argument list that boots the image `disk` with its console on stdin and stdout.

    `shares`: directories of this machine by the tag with which the guest mounts them (9p); only `run` is
    writable.
    """
    arguments = [
        "console=ttyS0",
        "root=/dev/vda1",
        "rw",
        f"init={GUEST_BOOT}",
        "quiet",
        "panic=-1",
        "mitigations=off",  # nobody to be kept out, and they cost most where the processor is emulated
        "tsc=reliable",  # else a guest that was held up takes a clock that costs ten times as much
        "sysctl.kernel.hung_task_timeout_secs=0",  # a clock that leaps makes whoever waits look hung
        *kernel_arguments,
    ]
    start = [QEMU, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-machine", "pc"]
    start += [*_processors(accelerator), "-cpu", "max", "-m", f"{memory_bytes >> 20}M"]
    start += ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
    start += ["-kernel", str(disk / KERNEL), "-initrd", str(disk / INITRD), "-append", " ".join(arguments)]
    start += ["-drive", f"if=virtio,format=raw,snapshot=on,file={_escaped(disk / DISK)}"]
    for tag, directory in shares.items():
        mode = "" if tag == "run" else ",readonly=on"
        start += ["-fsdev", f"local,id={tag},security_model=none{mode},path={_escaped(directory)}"]
        start += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return start


def _processors(accelerator: Accelerator) -> list[str]:
    """Emulated: one that executes an instruction per nanosecond of its own clock, however long that takes.

    Where it has nothing to execute its clock leaps to the next timer. So the guest is never late because this
    machine is slow or busy: its time stretches instead.
    """
    if accelerator == "kvm":
        return ["-accel", "kvm", "-smp", str(min(len(os.sched_getaffinity(0)), MOST_PROCESSORS))]
    return ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-rtc", "base=utc,clock=vm"]


def working_accelerator(disk: Path) -> Accelerator:
    """KVM if the image boots with it; else the emulation.

    A KVM that starts guests and then hangs is no rarity where this machine is itself a guest, so it is
    tried, once per boot of this machine.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    tried = cache_dir() / "vm" / f"kvm-{disk.name}-{_boot_id()}"
    try:
        return "kvm" if tried.read_text(encoding="ascii") == "works" else "tcg"
    except OSError:
        works = _boots(disk)
        image.keep(tried, b"works" if works else b"hangs")
        return "kvm" if works else "tcg"


def shell() -> int:
    """A root shell in a VM on this terminal; returns the exit code."""
    problems, disk = Vm().probe("real"), find_image()
    if problems or disk is None:
        print(MachineError(*problems), file=sys.stderr)
        return MachineError.exit_code
    argv = command(
        disk,
        working_accelerator(disk),
        2 << 30,
        {"project": image.PROJECT},
        kernel_arguments=["testbed.shell"],
    )
    return subprocess.run([*tied("KILL"), *argv], check=False).returncode


def _boots(disk: Path) -> bool:
    """Whether a guest under KVM comes so far that its first program speaks."""
    said: list[str] = []
    with scratch("run") as (place,):
        try:
            supervise(
                command(disk, "kvm", PROBE_MEMORY_BYTES, {}),
                cwd=place,
                env=_environment(place),
                log=place / "console.log",
                wall_limit_s=KVM_PATIENCE_S,
                grace_s=0,
                on_line=said.append,
            )
        except OutlivedError:
            return False
    return UP in said


def _environment(place: Path) -> dict[str, str]:
    """QEMU's: what it writes beside the disk has a name for a moment, in `place`, which goes with the run."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(place), "TMPDIR": str(place)}


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _escaped(path: Path) -> str:
    """A path as a value among QEMU's options, where a comma ends a value."""
    return str(path).replace(",", ",,")


def _note(run_dir: Path, disk: Path, project: Path, accelerator: Accelerator) -> None:
    """Keep what this guest is made of: both can be another one by the time it has ended."""
    made_of = {
        "kernel_name": (disk / RELEASE).read_text(encoding="utf-8").strip(),
        "kernel_sha256": digest.of_file(disk / KERNEL),
        "project_sha256": digest.of_project(project),
        "accelerator": accelerator,
        "vm_image": disk.name,
    }
    RunDir(run_dir).guest.write_text(json.dumps(made_of), encoding="utf-8")


def _judge(status: int, console: _Console, log: Path) -> None:
    """Raise KernelError unless the guest ran its payload and switched itself off in good order."""
    if console.set_up and console.switched_off:
        return
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    what = "the VM died" if console.set_up else "the VM could not be set up"
    last = " | ".join(console.last) or "nothing"
    raise KernelError(Problem(WHERE, f"{what} ({how}); its last words: {last}", next_step=f"see {log}"))


def _outlived_problem(wall_limit_s: float, accelerator: Accelerator) -> Problem:
    slow = "" if accelerator == "kvm" else ": there is no KVM that works, so the processor is emulated"
    return Problem(
        WHERE,
        f"the run took more than {wall_limit_s:g} s of wall time and was ended{slow}",
        next_step="ask for less: a shorter run, fewer instances, a smaller scale; or use --kernel uml",
    )


if __name__ == "__main__":
    sys.exit(shell())
