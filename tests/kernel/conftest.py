"""Tests of what runs leave on this machine are not to see what others do on it."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import namespaces


@pytest.fixture(scope="module")
def whole_machine() -> Iterator[None]:
    """Of all who ask for this, one at a time changes control groups, settings and notes of runs."""
    directory = os.open("/sys", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


@pytest.fixture(scope="module")
def own_mounts() -> Iterator[None]:
    """What others mount, or name by a mount, meanwhile is not seen here."""
    if os.geteuid() != 0:
        yield
        return
    home, place = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY), Path.cwd()
    namespaces.private_mounts()
    try:
        yield
    finally:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(home, 0) == 0, os.strerror(ctypes.get_errno())
        os.close(home)
        os.chdir(place)
