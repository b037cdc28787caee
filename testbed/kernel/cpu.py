"""One processor for one guest.

A guest and its kernel are two processes of this machine that take turns at every system call. On one
processor a turn is a context switch, 15 us; across two it is a wake-up of a sleeping processor, 120 us.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved() -> Iterator[int]:
    """A processor that no other guest of this machine has, if there is one; else any.

    The reservation is an abstract socket name, which goes with the process however that ends.
    """
    allowed = sorted(os.sched_getaffinity(0), reverse=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        for processor in allowed:
            try:
                claim.bind(f"\0testbed-processor-{processor}")
            except OSError:
                continue
            yield processor
            return
        yield allowed[os.getpid() % len(allowed)]
