"""Remove what crashed runs left behind: `python -m testbed.clean`, `--dry-run` to see it first.

Everything a run makes bears a name or a label of this project and is held by the process that made it. What
is listed here has such a name and no owner any more; nothing else is touched, and no run that goes on. A
name alone does not make control groups ours, whose processes would be killed: a run's note names them.
Network namespaces and interfaces need no cleaning: they have no name outside of their run, and go with it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from testbed.command import run_command
from testbed.errors import RunError
from testbed.kernel import drafts, enclosed, groups, image, scratch
from testbed.kernel.build import cache_dir, is_building, places

app = typer.Typer(add_completion=False)
DRAFT_S: Final = 3600.0
"""A draft in the cache takes seconds."""
GONE_S: Final = 5.0
MOUNTS: Final = Path("/proc/self/mountinfo")
ESCAPED: Final = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True)
class Left:
    """One thing that nobody owns any more."""

    what: str
    """For people: its kind and its name."""
    remove: Callable[[], bool]
    """Whether it is gone afterwards; OSError when it may not be removed."""
    of_root: bool = False
    """Nobody else can remove it."""


@app.command()
def clean(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List only, remove nothing.")] = False,
) -> None:
    """Remove what crashed runs left behind. Exit code: 0 nothing is left, 2 something cannot be removed."""
    stays = False
    found = False
    for one in left():
        found = True
        what = one.what.encode(errors="backslashreplace").decode()
        why = "it is root's" if one.of_root and os.geteuid() else "" if dry_run else _removed(one)
        if why:
            stays = True
            print(f"could not remove {what}: {why}", file=sys.stderr)
        else:
            print(f"would remove {what}" if dry_run else f"removed {what}")
    for label in unclaimed():
        found = True
        print(f"left alone: control groups {label}, which no run has noted")
    if not found:
        print("nothing is left of any run")
    raise typer.Exit(RunError.exit_code if stays else 0)


def _removed(one: Left) -> str:
    """Why it is still there; empty when it is gone."""
    try:
        return "" if one.remove() else "it is still there"
    except OSError as error:
        return error.strerror or str(error)


def left() -> Iterator[Left]:
    """Everything, in the order in which it can be removed."""
    for pid, directory in guests():
        yield Left(f"process {pid}, a guest of a run that has ended ({directory})", partial(_kill, pid))
    for note in enclosed.left():
        what = f"run {note.stem} on this kernel: groups, containers, settings"
        yield Left(what, partial(enclosed.restore, note), of_root=True)
    for path in [*scratch.abandoned(), *unfinished()]:
        for mount in mounted_below(path):
            yield Left(f"mount {mount}", partial(_unmount, mount))
        yield Left(f"directory {path}", partial(_remove, path))
    for path in unfinished_disks():
        yield Left(f"directory {path}", partial(_remove, path), of_root=True)
    if _is_there(enclosed.WORK) and not enclosed.notes():
        yield Left(f"directory {enclosed.WORK}", _remove_work, of_root=True)


def unclaimed() -> list[str]:
    """Control groups with a name like a run's, although no run says so: it has its note before its groups."""
    seen = groups.labels()
    noted = {note.stem for note in enclosed.notes()}
    return [label for label in seen if label not in noted and groups.of_label(label)]


def guests() -> Iterator[tuple[int, Path]]:
    """Processes of User-Mode Linux that work in a directory of ours which its owner has let go."""
    caches = [place.resolve() for place in places()]
    for process in Path("/proc").glob("[1-9]*"):
        try:
            program, directory = (process / "exe").readlink(), (process / "cwd").readlink()
        except OSError:
            continue
        ours = any(program.is_relative_to(cache) for cache in caches) and program.name.startswith("linux")
        name = directory.name.removesuffix(" (deleted)")
        alone = name != directory.name or scratch.is_abandoned(directory)
        if ours and scratch.NAME.fullmatch(name) and alone:
            yield int(process.name), directory


def unfinished() -> Iterator[Path]:
    """Images and builds in this user's own cache that nobody works at any more."""
    place = cache_dir().resolve()
    if not is_building(place):
        yield from drafts.found("kernel-build", place)
    for kind in image.KINDS:
        for path in drafts.found("draft", place / kind):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > DRAFT_S:
                    yield path


def unfinished_disks() -> list[Path]:
    """What killed builds of the VM's disk left in this user's own cache, gigabytes each."""
    place = cache_dir().resolve() / "vm"
    return [] if drafts.is_locked(place) else drafts.found("vm-build", place)


def mounted_below(path: Path) -> list[Path]:
    """The deepest first. Kernel: Documentation/filesystems/proc.rst; blanks are octal numbers there."""
    names = [line.split(b" ")[4] for line in MOUNTS.read_bytes().split(b"\n") if line]
    points = [Path(os.fsdecode(ESCAPED.sub(lambda one: bytes([int(one[1], 8)]), name))) for name in names]
    return sorted((one for one in points if one.is_relative_to(path)), reverse=True)


def _is_there(directory: Path) -> bool:
    """As far as this user can see."""
    try:
        return directory.is_dir()
    except OSError:  # root may have closed what it lies in to others
        return False


def _kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + GONE_S
    while Path("/proc", str(pid), "cwd").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not Path("/proc", str(pid), "cwd").exists()


def _unmount(point: Path) -> bool:
    return subprocess.run(["umount", str(point)], check=False, capture_output=True).returncode == 0


def _remove(directory: Path) -> bool:
    """Never with something mounted in it, which would be emptied."""
    if not mounted_below(directory):
        shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _remove_work() -> bool:
    """A run that ended by itself has removed it."""
    with suppress(OSError):
        enclosed.WORK.rmdir()
        enclosed.NOTES.rmdir()
    return not enclosed.WORK.exists()


if __name__ == "__main__":
    sys.exit(run_command(app))
