"""The KV wire format: what is packed is unpacked, and damage is seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from agents.transport import frames
from agents.transport.frames import ACK_BYTES, HEADER_BYTES, Ack, FrameError, Header

U8, U32, U64 = st.integers(0, 2**8 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.integers(frames.HELLO, frames.DROP),
    payload=st.sampled_from(frames.PAYLOADS),
    transfer=U64,
    transfer_bytes=U64,
    layer=U32,
    chunk=U32,
    chunks=U32,
    size_bytes=U32,
    checksum=U64,
    offset=U64,
)
ACKS = st.builds(Ack, kind=st.integers(frames.GRANTED, frames.GONE), transfer=U64, chunk=U32, code=U8)


@given(HEADERS)
def test_a_header_survives_the_wire(header: Header) -> None:
    """Every header has 64 bytes, and comes back from them as it was."""
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 64
    assert Header.unpack(packed) == header
    assert Header.unpack(bytearray(packed)) == Header.unpack(memoryview(packed)) == header


@given(ACKS)
def test_an_answer_survives_the_wire(ack: Ack) -> None:
    """Every answer has 32 bytes, and comes back from them as it was."""
    packed = ack.pack()
    assert len(packed) == ACK_BYTES == 32
    assert Ack.unpack(packed) == ack


@given(HEADERS | ACKS, st.data())
def test_any_flipped_bit_is_refused(frame: Header | Ack, data: st.DataObject) -> None:
    """No frame with one bit changed is taken for a frame."""
    damaged = bytearray(frame.pack())
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        type(frame).unpack(bytes(damaged))


@pytest.mark.parametrize("kind", [0, frames.DROP + 1])
def test_a_kind_that_nobody_knows_is_refused(kind: int) -> None:
    """A frame or an answer of another kind is none, however well it was summed up."""
    with pytest.raises(FrameError, match=f"kind {kind}"):
        Header.unpack(Header(kind, "synthetic", 1, 1, 0, 0, 1, 1, 0).pack())
    with pytest.raises(FrameError, match=f"answer {2 * kind}"):
        Ack.unpack(Ack(2 * kind, 1).pack())


def test_a_payload_that_nobody_knows_is_refused() -> None:
    """A header of a payload with another number is none, however well it was summed up."""
    body = bytearray(Header(frames.CHUNK, "tensors", 1, 1, 0, 0, 1, 1, 0).pack()[:-8])
    body[5] += 1
    with pytest.raises(FrameError, match="payload 3"):
        Header.unpack(bytes(body) + xxh3_64_intdigest(body).to_bytes(8, "big"))


@pytest.mark.parametrize(("form", "size_bytes"), [(Header, HEADER_BYTES), (Ack, ACK_BYTES)])
def test_what_has_no_magic_is_refused(form: type[Header | Ack], size_bytes: int) -> None:
    """Bytes without the magic are no frame, though their sum be right."""
    body = bytes(size_bytes - 8)
    with pytest.raises(FrameError, match="magic"):
        form.unpack(body + xxh3_64_intdigest(body).to_bytes(8, "big"))


def test_the_digest_of_a_seal_sees_order_sizes_and_sums() -> None:
    """Two transfers whose chunks differ in anything have different digests."""
    chunks = [(0, 10, 5), (1, 10, 6)]
    others = [[], chunks[:1], [(0, 10, 6), (1, 10, 5)], [(0, 9, 5), (1, 11, 6)], [(1, 10, 5), (0, 10, 6)]]
    assert len({frames.digest(one) for one in [chunks, *others]}) == 6
