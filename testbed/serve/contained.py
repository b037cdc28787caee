"""Files of a run directory that may leave it: an allow-list, and no way out of the directory."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", re.ASCII)
"""Of a run directory, or of a file in it: never hidden, never a path."""
MEDIA: Final = {
    ".parquet": "application/vnd.apache.parquet",
    ".pcap": "application/vnd.tcpdump.pcap",
    ".json": "application/json",
    ".xml": "application/xml",
    ".html": "text/html; charset=utf-8",
    ".yaml": "application/yaml",
    ".txt": "text/plain; charset=utf-8",
}
FILES: Final = ("report.html", "junit.xml", "verdict.json", "manifest.json", "plan.json", "scenario.yaml")
FOLDERS: Final = {"record": (".parquet",), "pcap": (".pcap", ".json", ".txt")}
"""With what their files may end in."""


def run_directory(runs: Path, name: str) -> Path | None:
    """The directory of this run, if `name` is one name and the directory itself lies in `runs`: no link."""
    path = runs / name
    if NAME.fullmatch(name) is None or path.is_symlink() or not path.is_dir():
        return None
    return path


def listed(directory: Path) -> Iterator[tuple[str, int]]:
    """What can be had of a run: (name within the directory, size in bytes), in order."""
    wanted = [*FILES]
    for folder, suffixes in FOLDERS.items():
        # A run may be removed, or made again from its journal, at any moment.
        with suppress(OSError):
            if not (directory / folder).is_symlink():
                names = sorted(path.name for path in (directory / folder).iterdir())
                wanted += [f"{folder}/{name}" for name in names if name.endswith(suffixes)]
    for name in wanted:
        path = find(directory, name)
        size = None if path is None else _size(path)
        if size is not None:
            yield name, size


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def find(directory: Path, wanted: str) -> Path | None:
    """The file, if it may be had; None for all that is not on the list, not a file, or not within."""
    folder, _, name = wanted.rpartition("/")
    allowed = name.endswith(FOLDERS.get(folder, ())) if folder else wanted in FILES
    path = directory / folder / name
    if not allowed or NAME.fullmatch(name) is None:
        return None
    try:
        plain = stat.S_ISREG(path.lstat().st_mode)
        inside = path.resolve(strict=True).is_relative_to(directory.resolve(strict=True))
    except OSError:
        return None
    return path if plain and inside else None
