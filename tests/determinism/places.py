"""Two places to run the same thing: here, and where all that may differ between two runs does differ."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.judge import differences
from testbed.kernel.build import find_kernel
from testbed.kernel.image import PACKAGES
from testbed.rundir import RunDir

PROJECT = Path(__file__).resolve().parents[2]
SCENARIO = Path(__file__).with_name("everything.yaml")
NOBODY = 65_534
UNLIKE = """
umask 077
ulimit -S -s 1024
ulimit -S -n 100
exec 7</dev/null 8</dev/null 9</dev/null
if [ "$(id -u)" = 0 ]; then
	for place in $HIDDEN; do
		mount -n -t tmpfs tmpfs $place
		mkdir $place/mount $place/other
	done
fi
exec "$@"
"""
"""Of a shell: other rights, limits, open files and, for root, other directories on the machine."""
HIDDEN = ("/run", "/home", "/srv", "/mnt")


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    code: int
    output: str
    path: Path


def copy(place: Path) -> Path:
    """A checkout like this one, without version control, and with this one's installed packages."""
    place.mkdir(parents=True)
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    (place / ".venv").symlink_to(Path(sys.prefix))
    return place


def cache(place: Path) -> Path:
    """A cache with nothing but the kernel in it."""
    kernel = find_kernel()
    assert kernel is not None
    place.mkdir(parents=True)
    (place / kernel.parent.name).symlink_to(kernel.parent)
    return place


def here(checkout: Path, caches: Path, out: Path) -> Ended:
    """Run in the ordinary way."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(out.parent), "TESTBED_CACHE": str(caches)}
    return _run([], checkout, out, cwd=checkout, environment=environment)


def there(checkout: Path, caches: Path, out: Path) -> Ended:
    """Run with the other processor busy, another environment, terminal, user, umask, limits, place of work.

    Users and the directories of the machine can only differ when root asks.
    """
    temporary = out / "a/directory/for/temporary/files/with/a/long/name"
    temporary.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "TESTBED_CACHE": str(caches),
        "TMPDIR": str(temporary),
        "TERM": "xterm-256color",
        "LANG": "de_DE.UTF-8",
        "TZ": "Asia/Tokyo",
        "PYTHONHASHSEED": "77",
        "MUCH": "x" * 20_000,
        "HIDDEN": " ".join(_dispensable(checkout, caches, out)),
    }
    other = ["sh", "-euc", UNLIKE, "sh"]
    if os.geteuid() == 0:
        other = ["unshare", "--mount", *other]
        if _anybody_reads(checkout) and _anybody_reads(Path(sys.prefix)):
            for place in (out, *out.rglob("*"), caches):
                os.chown(place, NOBODY, NOBODY)
            other += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with _busy():
        return _run(other, checkout, out, cwd=Path("/"), environment=environment)


def apart(one: Ended, two: Ended) -> list[str]:
    """Where two runs part; a run that did not pass is a difference, too."""
    runs = (("first", one), ("second", two))
    bad = [f"the {name} run ends with {run.code}" for name, run in runs if run.code]
    return bad or differences(RunDir(one.path), RunDir(two.path))


def _run(other: list[str], checkout: Path, out: Path, *, cwd: Path, environment: dict[str, str]) -> Ended:
    python = checkout / ".venv/bin/python"
    command = [str(python), "-m", "testbed.run", str(SCENARIO), "--out", str(out), "--no-report", "--quiet"]
    ended = subprocess.run(
        [*other, *command],
        cwd=cwd,
        env=environment,
        input="not for the guest\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, (out / "latest").resolve())


def _dispensable(checkout: Path, caches: Path, out: Path) -> list[str]:
    """The directories to hide in which nothing lies that the run itself is made of."""
    kernel = find_kernel()
    assert kernel is not None
    needed = [
        place.resolve() for place in (Path(sys.prefix), Path(sys.executable), kernel, checkout, caches, out)
    ]
    return [hidden for hidden in HIDDEN if not any(place.is_relative_to(hidden) for place in needed)]


def _anybody_reads(path: Path) -> bool:
    return all(place.stat().st_mode & 0o005 == 0o005 for place in (path, *path.resolve().parents))


@contextmanager
def _busy() -> Iterator[None]:
    """A process that never rests."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()
