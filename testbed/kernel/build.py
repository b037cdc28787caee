"""Build the UML kernel once per machine: `python -m testbed.kernel.build` prints where it lies.

The kernel's directory is named after the recipe and the kernel source, so a changed recipe or a newer
source package gives a new kernel beside the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import MachineError, Problem
from testbed.kernel import drafts, lacking
from testbed.kernel.supervise import OutlivedError, supervise

WHERE = "kernel build"
RECIPE = Path(__file__).with_name("recipe")
SOURCES = Path("/usr/src")
SERIES = (6, 12)
"""The kernel that the recipe's patches were made for: Debian 12 and 13 both have it."""
PROGRAMS = ("make", "gcc", "flex", "bison", "bc", "patch", "tar", "xz")
ROOM_BYTES = 1 << 30
PACKAGE_STEP = "make setup, or without a checkout install this system's package of it"
WALL_LIMIT_S = 7200
REPORT_S = 2.0
SHARED_CACHE = Path("/var/cache/testbed")
LOCK = "kernel-build.lock"


def cache_dir() -> Path:
    """Where this user keeps what is built once: $TESTBED_CACHE, or what is customary.

    Root builds for everybody, in /var/cache. It is absolute, as kernels are started elsewhere.
    """
    if chosen := os.environ.get("TESTBED_CACHE"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SHARED_CACHE
    if customary := os.environ.get("XDG_CACHE_HOME"):
        return Path(customary).absolute() / "testbed"
    return Path.home() / ".cache/testbed"


def places() -> list[Path]:
    """Where a kernel may lie: in $TESTBED_CACHE if set, else with this user, root, or the user of sudo."""
    if os.environ.get("TESTBED_CACHE"):
        return [cache_dir()]
    found = [cache_dir(), SHARED_CACHE]
    if user := os.environ.get("SUDO_USER"):
        with contextlib.suppress(KeyError):
            found.append(Path(pwd.getpwnam(user).pw_dir) / ".cache/testbed")
    return list(dict.fromkeys(found))


def find_kernel() -> Path | None:
    """The kernel of the present recipe and the newest kernel source, if this user can run it.

    Where the source package was taken away after the build, any source's kernel will do.
    """
    source = _newest_source()
    name = _name(source) if source else f"kernel-{_recipe_hash()}-*"
    kernels = []
    for place in places():
        with contextlib.suppress(OSError):
            kernels += [kernel for kernel in place.glob(f"{name}/linux") if os.access(kernel, os.X_OK)]
    return max(kernels, key=lambda kernel: kernel.stat().st_mtime, default=None)


def build() -> Path:
    """The kernel's path, built first when it is not there.

    Two builds at a time wait for each other; one that is killed leaves nothing that looks like a kernel.
    Raises MachineError when something needed is missing or the build fails.
    """
    if kernel := find_kernel():
        return kernel
    source = _newest_source()
    cache = cache_dir()
    problems = _problems(source, cache)
    if problems or source is None:
        raise MachineError(*problems)
    with _locked(cache):
        if kernel := find_kernel():
            return kernel
        for leftover in drafts.found("kernel-build", cache.resolve()):
            shutil.rmtree(leftover, ignore_errors=True)
        return _run_recipe(source, cache)


def _run_recipe(source: Path, cache: Path) -> Path:
    kernel = cache / _name(source) / "linux"
    kernel.parent.mkdir(exist_ok=True)
    log = cache / "kernel-build.log"
    log.unlink(missing_ok=True)
    progress = _Progress()
    with drafts.draft("kernel-build", cache) as work:
        try:
            supervise(
                [str(RECIPE / "build.sh"), str(source), str(work), str(kernel)],
                cwd=work,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                log=log,
                wall_limit_s=WALL_LIMIT_S,
                grace_s=0,
                on_line=progress.read,
            )
        except OutlivedError:
            raise MachineError(
                Problem(WHERE, f"not done after {WALL_LIMIT_S} s", next_step=f"see {log}")
            ) from None
    if not kernel.exists():
        last = "\n        ".join(progress.last)
        raise MachineError(
            Problem(WHERE, f"it failed with these last lines:\n        {last}", next_step=f"see {log}")
        )
    return kernel


class _Progress:
    """Says on stderr what the build does, so that a step which hangs can be named."""

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=10)
        self._start_s = self._said_s = time.monotonic()
        self._files = 0

    def read(self, line: str) -> None:
        """Take note of one line of the build's output."""
        self.last.append(line)
        compiled = re.fullmatch(r"\s+(?:CC|AS|HOSTCC|LD|AR)\s+(\S+)", line)
        if line.startswith("STEP "):
            self._say(line.removeprefix("STEP "))
        elif compiled:
            self._files += 1
            if time.monotonic() - self._said_s >= REPORT_S:
                self._say(f"{self._files} files, now {compiled[1]}")

    def _say(self, what: str) -> None:
        self._said_s = time.monotonic()
        print(f"kernel build: {self._said_s - self._start_s:4.0f} s: {what}", file=sys.stderr, flush=True)


def _problems(source: Path | None, cache: Path) -> list[Problem]:
    """Everything that is missing for a build."""
    problems = lacking.missing(WHERE, dict.fromkeys(PROGRAMS, PACKAGE_STEP))
    if source is None:
        problems.append(
            Problem(
                WHERE,
                f"no kernel source under {SOURCES}",
                allowed="the package linux-source-6.12",
                next_step=PACKAGE_STEP,
            )
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        room = shutil.disk_usage(cache).free
    except OSError as error:
        problems.append(Problem(str(cache), error.strerror or "unusable", next_step="set TESTBED_CACHE"))
    else:
        if room < ROOM_BYTES:
            problems.append(
                Problem(
                    str(cache),
                    f"{room >> 20} MiB free",
                    allowed=f"{ROOM_BYTES >> 20} MiB or more",
                    next_step="make room, or set TESTBED_CACHE to a directory with more",
                )
            )
    return problems


def _newest_source() -> Path | None:
    """The newest tarball of the series: linux-source-6.12.tar.xz or linux-source-6.12.0/..."""
    found = {
        tuple(int(part) for part in match[1].split(".")): path
        for path in sorted([*SOURCES.glob("*.tar.*"), *SOURCES.glob("linux-source-*/*.tar.*")])
        if (match := re.fullmatch(r"linux-source-(\d+(?:\.\d+)+)\.tar\.\w+", path.name)) and path.is_file()
    }
    found = {version: path for version, path in found.items() if version[:2] == SERIES}
    return found[max(found)] if found else None


def _name(source: Path) -> str:
    """The package's files keep their size and time of making, so these stand for its version."""
    status = source.stat()
    identity = f"{source.name} {status.st_size} {int(status.st_mtime)}"
    return f"kernel-{_recipe_hash()}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _recipe_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(RECIPE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def is_building(cache: Path) -> bool:
    """Whether somebody builds a kernel there now."""
    return drafts.is_locked(cache / LOCK)


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One build at a time; the lock goes with the process that holds it."""
    with (cache / LOCK).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("kernel build: another one is going on, waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build if needed and print the path."""
    try:
        print(build())
    except MachineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
