"""What the KV bytes are made of: pages of a memfd, which go out by sendfile and so are never copied.

`synthetic`: zeros, dropped by the receiving kernel; for volume.
`verified`: bytes that differ from chunk to chunk and are checked at the far end.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Iterator
from functools import lru_cache

from xxhash import xxh3_64

PAGES_BYTES = 64 << 20
NOISE_BYTES = 8 << 20
"""Small enough to be made in no time and to stay in a processor's cache."""
_STEP_BYTES = 64 << 10
_STAMP = struct.Struct(">QQ")


class Pages:
    """A memfd to send from, over and over."""

    def __init__(self, size_bytes: int) -> None:
        self.descriptor = os.memfd_create("kv")
        os.ftruncate(self.descriptor, size_bytes)
        self.size_bytes = size_bytes

    def ranges(self, start: int, size_bytes: int) -> Iterator[tuple[int, int]]:
        """Where so many bytes lie that begin at `start` and go on at the beginning behind the end."""
        while size_bytes:
            size = min(size_bytes, self.size_bytes - start)
            yield start, size
            start, size_bytes = 0, size_bytes - size


@lru_cache(maxsize=1)
def zeros() -> Pages:
    """For synthetic chunks."""
    return Pages(PAGES_BYTES)


def synthetic_pages() -> int:
    """The memfd of PAGES_BYTES that synthetic chunks are sent from."""
    return zeros().descriptor


class _Noise(Pages):
    """Random bytes, the same in each process; `view` reads the pages that are sent."""

    def __init__(self) -> None:
        super().__init__(NOISE_BYTES)
        dice = random.Random(0)
        for _ in range(0, NOISE_BYTES, _STEP_BYTES):
            os.write(self.descriptor, dice.randbytes(_STEP_BYTES))
        self.view = memoryview(mmap.mmap(self.descriptor, NOISE_BYTES, prot=mmap.PROT_READ))


@lru_cache(maxsize=1)
def noise() -> _Noise:
    """For verified chunks, behind their stamps."""
    return _Noise()


def verified(transfer: int, chunk: int, size_bytes: int) -> tuple[bytes, int, int]:
    """One chunk: a stamp of its own, where the noise behind it begins, and the checksum of both together.

    The same whenever it is sent. A chunk shorter than the stamp is a part of it.
    """
    stamp = _STAMP.pack(transfer, chunk)[:size_bytes]
    start = (transfer * 2_654_435_761 + chunk * 97) * 64 % NOISE_BYTES
    digest = xxh3_64(stamp)
    for place, size in noise().ranges(start, size_bytes - len(stamp)):
        digest.update(noise().view[place : place + size])
    return stamp, start, digest.intdigest()
