"""What the KV bytes are made of.

`synthetic`: pages of a memfd that go out by sendfile and are dropped by the receiving kernel; for volume.
`verified`: bytes that differ from chunk to chunk and are checked at the far end.
"""

from __future__ import annotations

import os
import random
import struct
from functools import lru_cache

PAGES_BYTES = 64 << 20
_STAMP = struct.Struct(">QII")


@lru_cache(maxsize=1)
def synthetic_pages() -> int:
    """A memfd of PAGES_BYTES to send from."""
    pages = os.memfd_create("kv")
    os.ftruncate(pages, PAGES_BYTES)
    return pages


@lru_cache(maxsize=1)
def _noise() -> memoryview:
    return memoryview(random.Random(0).randbytes(PAGES_BYTES))


def verified_bytes(transfer: int, layer: int, chunk: int, size_bytes: int) -> list[memoryview]:
    """The content of one chunk in pieces: a stamp of its own, then noise from a place of its own.

    A chunk shorter than the stamp is a part of it.
    """
    noise = _noise()
    pieces = [memoryview(_STAMP.pack(transfer, layer, chunk))[:size_bytes]]
    rest = size_bytes - len(pieces[0])
    start = (transfer * 2_654_435_761 + layer * 40_503 + chunk * 97) * 64 % PAGES_BYTES
    while rest:
        pieces.append(noise[start : start + rest])
        rest -= len(pieces[-1])
        start = 0
    return pieces
