"""The KV wire format: a fixed header, with a chunk's bytes behind it or none, and fixed answers to it.

header (64 bytes, big-endian)                         answer (32 bytes, big-endian)
  4  magic "KVC1"                                       4  magic "KVA1"
  1  kind: hello, offer, chunk, seal, drop              1  kind: granted, got, bad, complete, refused, gone
  1  payload: 0 synthetic, 1 verified, 2 tensors        1  code: why refused or gone
  2  zero                                               2  zero
  8  transfer; of a hello: who sends                    8  transfer
  8  size of the whole transfer, bytes                  4  chunk
  4  layer; of a hello: which of its lanes              4  zero
  4  chunk within the transfer                          8  xxh3-64 of the 24 bytes before
  4  chunks of the transfer
  4  size of this chunk, bytes
  8  xxh3-64 of the chunk (0 when synthetic);
     of a seal: the digest over all chunks
  8  where the chunk begins within the transfer, bytes
  8  xxh3-64 of the 56 bytes before

hello      begins a connection; an earlier one of the same sender's lane is over
offer      -> granted, when the receiver has room -> chunks, over any lane -> got, or bad: once more
seal       how many chunks, bytes, and their digest, before or behind the last chunks
           -> complete, when all is there
drop       the sender gives the transfer up -> gone

Everything may come again after a broken connection: the answer is the same, and nothing counts twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from agents.config import Payload

HELLO, OFFER, CHUNK, SEAL, DROP = range(1, 6)
GRANTED, GOT, BAD, COMPLETE, REFUSED, GONE, WAITING = range(1, 8)
UNKNOWN, GIVEN_UP = 1, 2
"""Codes of gone."""
DAMAGED, MISMATCH, TOO_LARGE = 1, 2, 3
"""Codes of refused."""

PAYLOADS: tuple[Payload, ...] = ("synthetic", "verified", "tensors")
"""By their number in a header."""

_HEADER = struct.Struct(">4sBB2xQQIIIIQQ")
_SUM = struct.Struct(">Q")
_ACK = struct.Struct(">4sBB2xQI4x")
_ENTRY = struct.Struct(">IIQ")
HEADER_BYTES = _HEADER.size + _SUM.size
ACK_BYTES = _ACK.size + _SUM.size


class FrameError(Exception):
    """What came in is not a frame, or it was damaged."""


class Header(msgspec.Struct, frozen=True):
    """What stands before a chunk, or for itself."""

    kind: int
    payload: Payload
    """Of the transfer it belongs to."""
    transfer: int
    transfer_bytes: int
    layer: int
    chunk: int
    chunks: int
    size_bytes: int
    checksum: int
    offset: int = 0
    """Of a chunk: where it begins within the transfer, in bytes."""

    def pack(self) -> bytes:
        """The header as it goes over the wire."""
        body = _HEADER.pack(
            b"KVC1",
            self.kind,
            PAYLOADS.index(self.payload),
            self.transfer,
            self.transfer_bytes,
            self.layer,
            self.chunk,
            self.chunks,
            self.size_bytes,
            self.checksum,
            self.offset,
        )
        return body + _SUM.pack(xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Header:
        """Read a header of HEADER_BYTES; FrameError when it was damaged or says nothing that is known."""
        body = bytes(data[: _HEADER.size])
        if xxh3_64_intdigest(body) != _SUM.unpack_from(data, _HEADER.size)[0]:
            raise FrameError("damaged header")
        magic, kind, payload, *rest = _HEADER.unpack(body)
        if magic != b"KVC1":
            raise FrameError(f"magic {magic!r}")
        if not HELLO <= kind <= DROP:
            raise FrameError(f"kind {kind}")
        if payload >= len(PAYLOADS):
            raise FrameError(f"payload {payload}")
        return cls(kind, PAYLOADS[payload], *rest)


class Ack(msgspec.Struct, frozen=True):
    """The receiver's word on a chunk, or on a whole transfer."""

    kind: int
    transfer: int
    chunk: int = 0
    code: int = 0

    def pack(self) -> bytes:
        """The answer as it goes over the wire."""
        body = _ACK.pack(b"KVA1", self.kind, self.code, self.transfer, self.chunk)
        return body + _SUM.pack(xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, data: bytes) -> Ack:
        """Read ACK_BYTES; FrameError when they were damaged or say nothing that is known."""
        body = data[: _ACK.size]
        if xxh3_64_intdigest(body) != _SUM.unpack_from(data, _ACK.size)[0]:
            raise FrameError("damaged answer")
        magic, kind, code, transfer, chunk = _ACK.unpack(body)
        if magic != b"KVA1" or not GRANTED <= kind <= WAITING:
            raise FrameError(f"answer {kind} with magic {magic!r}")
        return cls(kind, transfer, chunk, code)


def digest(chunks: Iterable[tuple[int, int, int]]) -> int:
    """The digest of a seal: xxh3-64 over number, size in bytes and checksum of all chunks, by number."""
    total = xxh3_64()
    for chunk in chunks:
        total.update(_ENTRY.pack(*chunk))
    return total.intdigest()
