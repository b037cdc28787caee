"""The KV wire format: what is packed is unpacked, and damage is seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.transport.frames import ACK_BYTES, HEADER_BYTES, Ack, FrameError, Header

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    verified=st.booleans(),
    transfer=U64,
    transfer_bytes=U64,
    layer=U32,
    chunk=U32,
    chunks=U32,
    size_bytes=U32,
    checksum=U64,
)
ACKS = st.builds(Ack, status=U32, transfer=U64, size_bytes=U64)


@given(HEADERS)
def test_a_header_survives_the_wire(header: Header) -> None:
    """Every header has 64 bytes, and comes back from them as it was."""
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 64
    assert Header.unpack(packed) == header
    assert Header.unpack(bytearray(packed)) == Header.unpack(memoryview(packed)) == header


@given(HEADERS, st.integers(0, 8 * HEADER_BYTES - 1))
def test_any_flipped_bit_is_refused(header: Header, bit: int) -> None:
    """No header with one bit changed is taken for a header."""
    damaged = bytearray(header.pack())
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        Header.unpack(damaged)


@given(ACKS)
def test_an_acknowledgement_survives_the_wire(ack: Ack) -> None:
    """Every acknowledgement has 24 bytes, and comes back from them as it was."""
    packed = ack.pack()
    assert len(packed) == ACK_BYTES == 24
    assert Ack.unpack(packed) == ack


@given(st.binary(min_size=ACK_BYTES, max_size=ACK_BYTES).filter(lambda data: data[:4] != b"KVA1"))
def test_what_is_no_acknowledgement_is_refused(data: bytes) -> None:
    """Bytes without the magic are no acknowledgement."""
    with pytest.raises(FrameError):
        Ack.unpack(data)
