"""Kernel settings a run needs, computed from its bandwidth-delay product."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from testbed import namespaces
from testbed.errors import Problem, ShapingError

PAGE_BYTES = 4096
DEFAULT_RECEIVE_BYTES = 128 << 20
"""Initial receive buffer: above the receivers' low-water marks, which otherwise clamp the window."""
DEFAULT_SEND_BYTES = 64 << 20
"""Initial send buffer: a whole group of layers, so that one system call hands it over."""


OF_KERNEL = (
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_mem",
    "net.core.netdev_max_backlog",
)
"""What a run sets for the whole kernel, not for one of its namespaces."""


def _write(name: str, value: str) -> None:
    """Set one and read it back; ShapingError when the kernel has something else."""
    file = os.open(f"/proc/sys/{name.replace('.', '/')}", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(file, value.encode())
        found = os.pread(file, PAGE_BYTES, 0).decode().split()
    finally:
        os.close(file)
    if found != value.split():
        raise ShapingError(Problem(f"sysctl {name}", f"kernel says {' '.join(found)!r}", value))


def for_namespace(name: str, window_bytes: int, *, forward: bool, ecn: bool) -> None:
    """TCP buffers up to `window_bytes`, nothing remembered, no IPv6; `ecn`: ask for it, else only accept."""
    receive = min(DEFAULT_RECEIVE_BYTES, window_bytes)
    settings = {
        "net.ipv4.tcp_rmem": f"4096 {receive} {window_bytes}",
        "net.ipv4.tcp_wmem": f"4096 {min(DEFAULT_SEND_BYTES, window_bytes)} {window_bytes}",
        "net.ipv4.tcp_no_metrics_save": "1",
        "net.ipv4.tcp_ecn": "1" if ecn else "2",
        "net.ipv4.ip_forward": str(int(forward)),
    }
    with namespaces.entered(name):
        if Path("/proc/sys/net/ipv6").exists():  # our own kernel is built without
            settings |= {f"net.ipv6.conf.{which}.disable_ipv6": "1" for which in ("all", "default")}
        for setting, value in settings.items():
            _write(setting, value)


@contextmanager
def for_kernel(window_bytes: int, connections: int) -> Iterator[None]:
    """Memory and backlog for this many full windows, every congestion control; put back at the end.

    On a kernel that is shared with other runs the process around each of them sees to that, as it may have to
    stay so for others.
    """
    pages = max(window_bytes * max(4, connections // 8) // PAGE_BYTES, 1 << 18)
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii")
    settings = {
        "net.ipv4.tcp_allowed_congestion_control": available,
        "net.ipv4.tcp_mem": f"{pages} {pages + pages // 2} {2 * pages}",
        "net.core.netdev_max_backlog": "1000000",
    }
    assert settings.keys() == set(OF_KERNEL)
    before = of_kernel()
    try:
        for name, value in settings.items():
            _write(name, value)
        yield
    finally:
        if namespaces.LABEL_VARIABLE not in os.environ:
            put_back(before)


def of_kernel() -> dict[str, str]:
    """The settings of the whole kernel, as they are now."""
    return {
        name: Path("/proc/sys", *name.split(".")).read_text(encoding="ascii").strip() for name in OF_KERNEL
    }


def put_back(before: Mapping[str, str]) -> None:
    """Set what `of_kernel` has found; what cannot be set keeps nothing else from it, and is raised then."""
    failed: list[Exception] = []
    for name in OF_KERNEL:
        try:
            _write(name, before[name])
        except (OSError, ShapingError) as error:  # such as a congestion control whose module has gone
            failed.append(error)
    if failed:
        raise failed[0]
