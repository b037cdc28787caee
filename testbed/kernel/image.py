"""The project as the guest sees it: a frozen copy of the packages with byte code that is never stale.

A copy, because the guest mounts it at a fixed path (the place of the checkout cannot reach a result),
because an edit during a run must not change the run, and because byte code beside it makes imports in
the guest ten times cheaper. It is kept under the hash of all that is in it: creating its 300 files takes
almost as long as booting, reading the sources 5 ms. Byte code has a cache of its own, so that after an edit
only what was edited is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import py_compile
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from testbed.kernel import drafts

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("testbed", "agents", "topologies")
GUEST_PROJECT = Path("/opt/testbed")
KINDS = {
    "images": re.compile(r"[0-9a-f]{16}"),
    "bytecode": re.compile(r"[0-9a-f]{64}\.(pyc|[0-9]+)"),
    "probes": re.compile(r"[0-9a-f]{64}\.(json|[0-9]+)"),
}
"""What is kept in the cache beside the kernels, and by which names it is known for ours."""
KEPT_S = 86_400
"""So long after its last use: far longer than any run."""


def guest_site_packages() -> str:
    """Where the installed packages lie, relative to the image."""
    return f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def provide(cache: Path, scratch: Path) -> Path:
    """Where the image of the project as it is now lies: in `cache`, or in `scratch` if nothing can be kept.

    Nobody writes to an image once it is there under its name: guests mount it read-only.
    """
    files = _files()
    interpreter = os.path.realpath(sys.executable)
    described = repr((importlib.util.MAGIC_NUMBER, sys.version_info[:2], interpreter, files))
    place = cache.resolve() / "images" / hashlib.sha256(described.encode()).hexdigest()[:16]
    try:
        if not place.is_dir():
            _keep_image(place, files, cache)
        os.utime(place)  # in use; somebody else's may be gone tomorrow, and may be closed to us
    except OSError:
        place = scratch / "image"
        _write(place, files, cache)
    return place


def _files() -> dict[str, bytes]:
    """What every file of the packages contains, by its path in the image, in the order of the paths."""
    files = {}
    for package in PACKAGES:
        for place, directories, names in os.walk(PROJECT / package):
            directories[:] = sorted(name for name in directories if name != "__pycache__")
            for name in sorted(names):
                path = Path(place, name)
                files[str(path.relative_to(PROJECT))] = path.read_bytes()
    return files


def _keep_image(place: Path, files: Mapping[str, bytes], cache: Path) -> None:
    """Make an image that is whole as soon as it has its name; another run may make the same meanwhile."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with drafts.draft("draft", place.parent) as draft:
        unfinished = draft / place.name
        _write(unfinished, files, cache)
        try:
            unfinished.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    for kind, name in KINDS.items():
        _clear(cache / kind, name)


def _clear(directory: Path, name: re.Pattern[str]) -> None:
    """Remove what has not been used for a day; nothing is ever seen half removed under its own name."""
    with contextlib.suppress(OSError), drafts.draft("draft", directory) as bin_:
        ours = [one for one in directory.iterdir() if name.fullmatch(one.name)]
        for old in [*ours, *drafts.found("draft", directory)]:
            if old.stat().st_mtime < time.time() - KEPT_S:
                old.rename(bin_ / old.name)


def _write(image: Path, files: Mapping[str, bytes], cache: Path) -> None:
    """Fill the directory `image` with the project and an empty virtual environment for its packages."""
    for name, content in files.items():
        copy = image / name
        (copy.parent / "__pycache__").mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        if copy.suffix == ".py":
            _compile(copy, content, image, cache / "bytecode")
    _write_venv(image)


def _write_venv(image: Path) -> None:
    """A virtual environment by hand: an interpreter and an empty directory to mount the packages on."""
    interpreter = Path(os.path.realpath(sys.executable))
    (image / guest_site_packages()).mkdir(parents=True)
    (image / ".venv/bin").mkdir()
    (image / ".venv/bin/python").symlink_to(interpreter)
    (image / ".venv/pyvenv.cfg").write_text(
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )


def _compile(source: Path, content: bytes, image: Path, cache: Path) -> None:
    """Put byte code beside `source`; a file that does not compile is left for the guest to complain about."""
    name = source.relative_to(image)
    key = hashlib.sha256(b"\0".join((importlib.util.MAGIC_NUMBER, str(name).encode(), content))).hexdigest()
    cached = cache / f"{key}.pyc"
    target = Path(importlib.util.cache_from_source(str(source)))
    try:
        target.write_bytes(cached.read_bytes())
        used(cached)
    except OSError:
        with contextlib.suppress(py_compile.PyCompileError):
            py_compile.compile(
                str(source),
                cfile=str(target),
                dfile=str(GUEST_PROJECT / name),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            keep(cached, target.read_bytes())


def used(cached: Path) -> None:
    """Keep it for another day, if it is ours."""
    with contextlib.suppress(OSError):
        os.utime(cached)


def keep(cached: Path, content: bytes) -> None:
    """Put a file into its cache in one step; a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        draft = cached.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(cached)
