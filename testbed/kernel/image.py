"""The project as the guest sees it: a frozen copy of the packages with byte code that is never stale.

A copy, because the guest mounts it at a fixed path (the place of the checkout cannot reach a result),
because an edit during a run must not change the run, and because byte code beside it makes imports in
the guest ten times cheaper. Byte code comes from a cache keyed by what the source says, so nothing is
compiled twice and nothing stale can be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import py_compile
import shutil
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("testbed", "agents", "topologies")
GUEST_PROJECT = Path("/opt/testbed")


def guest_site_packages() -> str:
    """Where the installed packages lie, relative to the image."""
    return f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def write(image: Path, cache: Path) -> None:
    """Fill the directory `image` with the project and an empty virtual environment for its packages."""
    for package in PACKAGES:
        if (PROJECT / package).is_dir():
            shutil.copytree(PROJECT / package, image / package, ignore=shutil.ignore_patterns("__pycache__"))
    for source in sorted(image.rglob("*.py")):
        _compile(source, image, cache / "bytecode")
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


def _compile(source: Path, image: Path, cache: Path) -> None:
    """Put byte code beside `source`; a file that does not compile is left for the guest to complain about."""
    name = source.relative_to(image)
    key = hashlib.sha256(
        b"\0".join((importlib.util.MAGIC_NUMBER, str(name).encode(), source.read_bytes()))
    ).hexdigest()
    cached = cache / f"{key}.pyc"
    target = Path(importlib.util.cache_from_source(str(source)))
    target.parent.mkdir(exist_ok=True)
    try:
        shutil.copyfile(cached, target)
    except OSError:
        with contextlib.suppress(py_compile.PyCompileError):
            py_compile.compile(
                str(source),
                cfile=str(target),
                dfile=str(GUEST_PROJECT / name),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            _keep(target, cached)


def _keep(target: Path, cached: Path) -> None:
    """Copy into the cache in one step; a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        draft = cached.with_suffix(f".{os.getpid()}")
        shutil.copyfile(target, draft)
        draft.replace(cached)
