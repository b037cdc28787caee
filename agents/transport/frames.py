"""The KV wire format: a fixed header before each chunk, a fixed acknowledgement behind each transfer.

header (64 bytes, big-endian)             acknowledgement (24 bytes, big-endian)
  4  magic "KVC1"                           4  magic "KVA1"
  1  payload mode: 0 synthetic, 1 verified  4  status: 0 complete, 1 refused (wrong checksum)
  3  zero                                   8  transfer id
  8  transfer id                            8  size of the KV, bytes
  8  size of the whole transfer, bytes
  4  layer
  4  chunk within the transfer
  4  chunks of the transfer
  4  size of this chunk, bytes
  8  xxh3-64 of the chunk (verified payload; 0 when synthetic)
  8  zero
  8  xxh3-64 of the 56 bytes before
"""

from __future__ import annotations

import struct

import msgspec
from xxhash import xxh3_64_intdigest

_HEADER = struct.Struct(">4sB3xQQIIIIQ8x")
_SUM = struct.Struct(">Q")
_ACK = struct.Struct(">4sIQQ")
HEADER_BYTES = _HEADER.size + _SUM.size
ACK_BYTES = _ACK.size
COMPLETE, REFUSED = 0, 1


class FrameError(Exception):
    """What came in is not a frame, or its header was damaged."""


class Header(msgspec.Struct, frozen=True):
    """What stands before a chunk."""

    verified: bool
    transfer: int
    transfer_bytes: int
    layer: int
    chunk: int
    chunks: int
    size_bytes: int
    checksum: int

    def pack(self) -> bytes:
        """The header as it goes over the wire."""
        body = _HEADER.pack(
            b"KVC1",
            self.verified,
            self.transfer,
            self.transfer_bytes,
            self.layer,
            self.chunk,
            self.chunks,
            self.size_bytes,
            self.checksum,
        )
        return body + _SUM.pack(xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Header:
        """Read a header of HEADER_BYTES; FrameError when magic or checksum are wrong."""
        body = bytes(data[: _HEADER.size])
        if xxh3_64_intdigest(body) != _SUM.unpack_from(data, _HEADER.size)[0]:
            raise FrameError("damaged header")
        magic, verified, *rest = _HEADER.unpack(body)
        if magic != b"KVC1":
            raise FrameError(f"magic {magic!r}")
        return cls(bool(verified), *rest)


class Ack(msgspec.Struct, frozen=True):
    """The receiver's word on a whole transfer."""

    status: int
    transfer: int
    size_bytes: int

    def pack(self) -> bytes:
        """The acknowledgement as it goes over the wire."""
        return _ACK.pack(b"KVA1", self.status, self.transfer, self.size_bytes)

    @classmethod
    def unpack(cls, data: bytes) -> Ack:
        """Read ACK_BYTES; FrameError when the magic is wrong."""
        magic, *rest = _ACK.unpack(data)
        if magic != b"KVA1":
            raise FrameError(f"magic {magic!r}")
        return cls(*rest)
