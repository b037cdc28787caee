"""What the KV bytes are made of: pages of a memfd, which go out by sendfile and so are never copied again.

`synthetic`: zeros, dropped by the receiving kernel; for volume.
`verified`: bytes that differ from chunk to chunk and are checked at the far end.
`tensors`: what the producer handed over; checked and kept at the far end.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import weakref
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


class Kept(Pages):
    """The bytes of one transfer, from the producer. Their memory goes with the last reference to them: that
    of the transfer, or that of a lane which is in the middle of a chunk when the transfer ends.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        weakref.finalize(self, os.close, self.descriptor)

    def write(self, start: int, data: memoryview) -> None:
        """Copy bytes in."""
        while data:
            written = os.pwrite(self.descriptor, data, start)
            start, data = start + written, data[written:]

    def damaged(self, start: int) -> bytes:
        """A copy of one byte with one bit turned over."""
        (byte,) = os.pread(self.descriptor, 1, start)
        return bytes([byte ^ 1])


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
