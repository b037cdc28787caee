"""A transfer as its receiver sees it, and the memory for what is kept of it."""

from __future__ import annotations

import mmap
import time
from itertools import accumulate

import msgspec

from agents import config
from agents.transport import frames
from agents.transport.frames import Header


def memory(size_bytes: int) -> memoryview:
    """Fresh memory, taken page by page as it is written to; OSError when there cannot be so much."""
    try:
        pages = mmap.mmap(-1, max(1, size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OverflowError as error:
        raise OSError(str(error)) from error
    return memoryview(pages)[:size_bytes]


class Entry(msgspec.Struct, frozen=True):
    """A chunk that is here."""

    size_bytes: int
    checksum: int
    """As its header says."""
    offset: int


class Arrival(msgspec.Struct):
    """A transfer as the receiver sees it. All times are CLOCK_MONOTONIC."""

    number: int
    size_bytes: int = 0
    """As announced; 0: nothing ever came of it."""
    chunks: int = 0
    received_bytes: int = 0
    received_chunks: int = 0
    checksum_errors: int = 0
    """Damaged copies of chunks that were refused."""
    damaged_chunks: int = 0
    """Chunks that were taken although they were damaged (`fail_open`)."""
    moved_ns: int = 0
    """When something new last came of it."""
    complete_ns: int = 0
    granted: bool = False
    sender: int = 0
    """By which number the lanes are known that it comes by."""
    returned: int = 0
    """How often anything had been given back to the pool when it last asked for room."""
    entries: dict[int, Entry] = msgspec.field(default_factory=dict)
    """The chunks that are here, by number."""
    damaged: dict[int, int] = msgspec.field(default_factory=dict)
    """How many damaged copies came of a chunk."""
    sealed: int | None = None
    """The digest of its seal, once that is here."""
    payload: config.Payload = "synthetic"
    data: memoryview | None = None
    """With `tensors`, from when it is granted to when it is released or dropped: all of its bytes, zero where
    none have come yet.
    """

    def announced(self, header: Header) -> bool:
        """Whether a chunk may be one of those that were announced."""
        return (
            (header.transfer_bytes, header.chunks, header.payload)
            == (self.size_bytes, self.chunks, self.payload)
            and header.chunk < self.chunks
            and header.offset + header.size_bytes <= self.size_bytes
        )

    def take(self, header: Header, data: memoryview | None) -> None:
        """Count a chunk that was not here yet, and copy what is to be kept of it."""
        if self.data is not None:
            assert data is not None
            self.data[header.offset : header.offset + header.size_bytes] = data
        self.entries[header.chunk] = Entry(header.size_bytes, header.checksum, header.offset)
        self.received_chunks += 1
        self.received_bytes += header.size_bytes
        self.moved_ns = time.monotonic_ns()

    def agrees(self) -> bool:
        """Whether all chunks together are what the seal says, and lie end to end from first to last."""
        entries = [self.entries[chunk] for chunk in range(self.chunks)]
        ends = accumulate((one.size_bytes for one in entries), initial=0)
        end_to_end = list(ends) == [*(one.offset for one in entries), self.size_bytes]
        summed = ((number, one.size_bytes, one.checksum) for number, one in enumerate(entries))
        return end_to_end and frames.digest(summed) == self.sealed
