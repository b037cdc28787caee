"""Network namespaces of this process's making, kept as bind mounts that only its mount namespace sees.

`private_mounts` is called once, first: whatever is mounted afterwards vanishes with the process, so a
killed run leaves no namespace behind and two runs on one kernel never see each other's names.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NETNS_DIR = Path("/run/netns")
LABEL_VARIABLE, PID_VARIABLE = "TESTBED_LABEL", "TESTBED_PID"
"""In the environment of a run on a kernel that it shares: its label, and its process as others see it."""

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000  # include/uapi/linux/sched.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8  # include/uapi/linux/mount.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 0x2  # include/linux/fs.h
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def label() -> str:
    """What containers and control groups of this run are called after."""
    return os.environ.get(LABEL_VARIABLE) or f"testbed-{os.getpid()}"


def private_mounts(*places: Path) -> None:
    """Give this process a mount namespace of its own, with an empty /run/netns, and more empty `places`."""
    _unshare_mounts()
    for place in (NETNS_DIR, *places):
        place.mkdir(parents=True, exist_ok=True)
        _check(_libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, None), f"mount {place}")


def private_processes() -> None:
    """The next child of this process is the first in a pid namespace; with it, all the others there end."""
    _check(_libc.unshare(_CLONE_NEWPID), "unshare(CLONE_NEWPID)")


def own_proc(*hidden: Path) -> None:
    """Give this process a /proc that shows its pid namespace, and take the mounts `hidden` from its sight."""
    _unshare_mounts()
    for place in hidden:
        _check(_libc.umount2(os.fsencode(place), _MNT_DETACH), f"umount {place}")
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc.mount(b"proc", b"/proc", b"proc", flags, None), "mount /proc")


def _unshare_mounts() -> None:
    _check(_libc.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "make / private")


def create(name: str) -> Path:
    """Make the network namespace `name`; returns its path."""
    path = NETNS_DIR / name
    path.touch()
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare(CLONE_NEWNET)")
        _check(
            _libc.mount(b"/proc/thread-self/ns/net", os.fsencode(path), None, _MS_BIND, None), f"bind {path}"
        )
    finally:
        _check(_libc.setns(home, _CLONE_NEWNET), "setns")
        os.close(home)
    return path


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Run the block inside `name`; sockets opened in it stay there for good."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(NETNS_DIR / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(target, _CLONE_NEWNET), f"setns({name})")
        yield
    finally:
        _check(_libc.setns(home, _CLONE_NEWNET), "setns")
        os.close(target)
        os.close(home)
