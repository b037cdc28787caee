"""Runs in a guest: `guest_reference.py CALLS PAGES RUN_DIR` makes system calls, then touches pages.

Says `@begin`, `@called`, `@touched`.
"""

from __future__ import annotations

import mmap
import os
import sys


def main() -> None:
    """The price of each is in the wall time between the lines."""
    calls, pages = int(sys.argv[1]), int(sys.argv[2])
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    print("@begin", flush=True)
    for _ in range(calls):
        os.getppid()
    print("@called", flush=True)
    for page in range(pages):
        memory[page * mmap.PAGESIZE] = 1
    print("@touched", flush=True)


if __name__ == "__main__":
    main()
