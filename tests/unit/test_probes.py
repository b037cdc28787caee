"""Probes: valid packets by scapy's own reckoning, and what taps make of them, wrong bits and all."""

from __future__ import annotations

import msgspec
import pytest
from scapy.layers.inet import IP, UDP

from testbed import probe_templates, probes
from testbed.plan import Slot
from testbed.probes import Seen, numbered, told
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan

ETHERNET = bytes(range(12)) + b"\x08\x00"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run = RunDir(tmp_path_factory.mktemp("run"))
    probe_templates.write(run, make_plan(requests=0))
    made = msgspec.json.decode(run.probes.read_bytes(), type=dict[str, bytes])
    there, back = IP(made["a_to_b"]), IP(made["b_to_a"])
    assert (there.src, there.dst) == (back.dst, back.src) == ("10.1.0.200", "10.2.0.200")
    assert there[UDP].dport == probes.PORT
    return made["a_to_b"]


@pytest.mark.parametrize("size", [72, 73, 1400, 1401, 9000])
@pytest.mark.parametrize(("number", "sent_ns"), [(0, 0), (1999, 12_345_678_901_234), (2**32 - 1, 2**63)])
def test_a_numbered_probe_has_right_checksums(template: bytes, number: int, sent_ns: int, size: int) -> None:
    """Lengths and both checksums are those that scapy computes for the same packet."""
    packet = numbered(template, number, sent_ns, size)
    fresh = IP(packet)
    for layer in (fresh, fresh[UDP]):
        del layer.chksum, layer.len
    assert bytes(fresh) == packet
    assert len(packet) == size


def frame(packet: bytes, flipped_bit: int | None = None, hops: int = 0) -> bytes:
    """The packet in its Ethernet frame after so many hops, one bit turned over."""
    passed = IP(packet)
    passed.ttl -= hops
    del passed.chksum
    whole = bytearray(ETHERNET + bytes(passed))
    if flipped_bit is not None:
        whole[flipped_bit // 8] ^= 1 << flipped_bit % 8
    return bytes(whole)


def test_taps_tell_when_and_what(template: bytes) -> None:
    """Each number with the moments at which it left and arrived; the lost, the doubled and foreign frames."""
    sent = [numbered(template, number, number) for number in range(4)]
    near = [Seen(True, 1000 + number, frame(packet, hops=1)) for number, packet in enumerate(sent[:3])]
    far = [
        Seen(False, t_ns, frame(sent[number], hops=2)) for t_ns, number in ((1500, 0), (1600, 2), (1700, 2))
    ]
    far.insert(1, Seen(False, 1550, ETHERNET + bytes(100)))
    found = told(sent, near, far, offset_ns=900)
    assert found == {
        "left_ns": [100, 101, 102, None],
        "arrived": [(0, 600, True), (2, 700, True), (2, 800, True)],
    }


def test_every_bit_counts(template: bytes) -> None:
    """Whichever bit of a frame is turned over, the probe is recognised and found not to be intact."""
    sent = [numbered(template, number, 10**12 + number) for number in range(3)]
    good = [frame(packet, hops=2) for packet in sent]
    for bit in range(8 * len(good[0])):
        far = [Seen(False, t_ns, one) for t_ns, one in enumerate([good[0], frame(sent[1], bit, 2), good[2]])]
        assert told(sent, [], far, 0)["arrived"] == [(0, 0, True), (1, 1, False), (2, 2, True)], bit


def test_probes_do_not_wait_for_each_other() -> None:
    """They are farther apart than jitter and slots can move them, and take a tenth of a slow link."""
    plan = make_plan(requests=0)
    assert probes.interval_ns(plan) == pytest.approx(1_400_000, rel=0.01)
    slow = msgspec.structs.replace(plan.link["a_to_b"], rate_bps=100_000, jitter_ns=0)
    of_a_tenth = msgspec.structs.replace(plan, link={"a_to_b": slow, "b_to_a": slow})
    assert probes.interval_ns(of_a_tenth) == 86 * 8 * 10 * 10_000
    slotted = msgspec.structs.replace(
        slow, rate_bps=10**9, delay_ns=5_000_000, slot=Slot(min_ns=1, max_ns=9_000_000)
    )
    with_slots = msgspec.structs.replace(plan, link={"a_to_b": slotted, "b_to_a": slotted})
    assert probes.interval_ns(with_slots) == 15_000_000


def test_large_probes_lie_on_both_sides_of_a_limit() -> None:
    """Just fitting and a byte larger, for each limit, as far as the link's own MTU allows."""
    plan = make_plan(requests=0)
    state = msgspec.structs.replace(plan.link["a_to_b"], path_mtu_bytes=9000, black_hole_bytes=1400)
    plan = msgspec.structs.replace(plan, link={**plan.link, "a_to_b": state})
    assert probes.large_sizes(plan, "a_to_b") == [1400, 1401, 9000]
    assert probes.large_sizes(plan, "b_to_a") == []
