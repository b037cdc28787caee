"""Path MTU, black holes, and where super-packets are cut."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from testbed.plan import LinkState, Loss, Queue, Slot
from testbed.shaping import segmentation

Results = dict[str, Any]
FRAME_BYTES = 1514


def test_super_packets_are_cut_just_where_it_matters(rate: Results) -> None:
    """Before the rate stage for fq_codel, before the delay stage for copies and holes, else nowhere."""
    states = {one["name"]: one for one in rate["cuts"]["states"]}
    for kind in ("tcp", "udp"):
        for name in ("nothing", "nothing again"):
            assert states[name][kind]["edge"] > 10 * FRAME_BYTES
            assert states[name][kind]["wan"] > 10 * FRAME_BYTES
        assert states["fq_codel"][kind] == {"edge": FRAME_BYTES, "wan": FRAME_BYTES}
        for name in ("duplicate", "black_hole"):
            assert states[name][kind]["edge"] > 10 * FRAME_BYTES
            assert states[name][kind]["wan"] == FRAME_BYTES


@pytest.mark.parametrize(
    ("more", "before_rate", "before_delay"),
    [
        ({}, False, False),
        ({"jitter_ns": 1}, False, False),
        ({"loss": Loss(model="periodic", every_packets=9)}, False, True),
        ({"reorder": 1e-9}, False, True),
        ({"duplicate": 1e-9}, False, True),
        ({"corrupt": 1e-9}, False, True),
        ({"slot": Slot(min_ns=1, max_ns=2)}, False, True),
        ({"black_hole_bytes": 1400}, False, True),
        ({"path_mtu_bytes": 1400}, False, False),
        ({"queue": Queue(kind="codel")}, True, False),
        ({"queue": Queue(kind="red")}, True, False),
    ],
)
def test_offload_decides_about_cutting(more: dict[str, Any], before_rate: bool, before_delay: bool) -> None:
    """`auto` cuts where it must, `off` everywhere, `on` nowhere."""
    state = LinkState(rate_bps=8, buffer_bytes=1, delay_ns=1, **more)
    assert segmentation.cut_before_rate_stage(state, "auto") == before_rate
    assert segmentation.cut_before_delay_stage(state, "auto") == before_delay
    for where in (segmentation.cut_before_rate_stage, segmentation.cut_before_delay_stage):
        assert where(state, "off")
        assert not where(state, "on")


@pytest.mark.parametrize(("release", "cut"), [("6.12.1-testbed", False), ("6.12.1-generic", True)])
def test_loss_cuts_on_a_stock_kernel(release: str, cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our netem loses single packets of a super-packet; any other must see single packets."""
    monkeypatch.setattr(segmentation.os, "uname", lambda: type("Name", (), {"release": release}))
    state = LinkState(rate_bps=8, buffer_bytes=1, delay_ns=1, loss=Loss(model="random", ratio=0.1))
    assert segmentation.cut_before_delay_stage(state, "auto") == cut


def test_a_transfer_finds_the_path_mtu(rate: Results) -> None:
    """Packets shrink to the path MTU and grow again at once, the transfer completes; one way only."""
    for one in rate["path_mtus"]["transfers"]:
        mtu = one["mtu"] or 1500
        assert one["largest"] == mtu
        assert one["packets"] >= 2_000_000 / (mtu - 52)
        assert one["small_arrives"]
        assert one["back_arrives"]


def test_the_path_answers_and_the_black_hole_does_not(rate: Results) -> None:
    """Whoever sends too large a datagram is told by the one, and never hears from the other."""
    assert rate["path_mtu_errors"] == {"path_mtu": errno.EMSGSIZE, "black_hole": 0}


def test_a_black_hole_swallows_what_is_too_large(rate: Results) -> None:
    """An IP packet of the limit passes, one byte more vanishes; without a limit both pass; one way only."""
    for probe in rate["black_holes"]["probes"]:
        assert probe["arrives"] == [True, probe["limit"] is None]
        assert probe["back_arrives"]
