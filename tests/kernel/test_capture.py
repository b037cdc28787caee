"""tcpdump in the guest: what its files say against what the kernel's TCP says of itself.

`guest_capture.py` does the transfers, in two boots of the same seed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from testbed.capture import pcap
from testbed.capture.summary import File
from testbed.capture.tcpdump import PATH
from testbed.kernel import Needs
from testbed.kernel.uml import Uml

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
    pytest.mark.skipif(shutil.which("tcpdump", path=PATH) is None, reason="no tcpdump: make setup"),
]

SIZE_BYTES, FLOWS = 80_000_000, 4
WAN, AT_B = "lossy/edge-a-wan.pcap", "lossy/tenant-b-eth0.pcap"


def boot(directory: Path) -> Path:
    """Let a guest make its captures."""
    directory.mkdir()
    for script in sorted(Path(__file__).parent.glob("guest_*.py")):
        shutil.copy(script, directory)
    said: list[str] = []
    needs = Needs(memory_bytes=3 << 30, clock="virtual", seed=1, wall_limit_s=120)
    Uml(payload=("/run/testbed/run/guest_capture.py",)).execute(directory, needs, said.append)
    assert (directory / "results.json").is_file(), "\n".join(said)
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boot(tmp_path_factory.mktemp("capture") / "run")


@pytest.fixture(scope="module")
def found(run: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results


@pytest.fixture(scope="module")
def wan(run: Path) -> File:
    return pcap.read(run / WAN, 0)


def test_every_byte_of_a_transfer_is_captured(wan: File, found: dict[str, Any]) -> None:
    """Payload seen behind the rate stage is the transfer and what TCP says it sent again, to the byte."""
    assert (wan.complete, len(wan.flows), found["lossy"]["distrusted"]) == (True, FLOWS, [])
    again = sum(flow.there.retransmitted_bytes for flow in wan.flows)
    payload = sum(flow.there.payload_bytes for flow in wan.flows)
    assert found["lossy"]["queue_drops"] == 0
    assert again == found["lossy"]["retrans_bytes"] > 0
    assert payload == SIZE_BYTES + again
    assert sum(flow.late_bytes for flow in wan.flows) == 0


def test_what_was_lost_on_the_way_is_late_at_the_receiver(run: Path, wan: File) -> None:
    """There the transfer is whole, too, and what came after younger bytes is what was sent again before."""
    at_b = pcap.read(run / AT_B, 0)
    sides = [flow.there if flow.sink.startswith("10.2.0.200") else flow.back for flow in at_b.flows]
    assert sum(side.payload_bytes - side.retransmitted_bytes for side in sides) == SIZE_BYTES
    late, again = sum(side.late_bytes for side in sides), sum(side.retransmitted_bytes for side in sides)
    assert late > 0
    assert late + again <= sum(flow.retransmitted_bytes for flow in wan.flows)


def test_round_trips_are_those_of_the_link(wan: File, found: dict[str, Any]) -> None:
    """Both delays, 10 ms: the handshake's as its own socket saw it, the data's at least that, to 50 us."""
    handshakes = [flow.handshake_s for flow in wan.flows]
    assert min(one for one in handshakes if one) == pytest.approx(
        found["lossy"]["handshake_ns"] / 1e9, abs=50e-6
    )
    for flow in wan.flows:
        assert flow.there.rtt is not None
        assert flow.there.rtt.min_s == pytest.approx(0.01, abs=50e-6)
    assert sum(flow.there.rtt.samples for flow in wan.flows if flow.there.rtt) > 100


def test_a_filter_leaves_the_rest_out(run: Path) -> None:
    """Only what goes to the receiver is in the file that asks for just that."""
    at_b = pcap.read(run / AT_B, 0)
    assert at_b.packets > 1000
    assert at_b.others == {}
    assert {flow.source for flow in at_b.flows if flow.back.packets} == set()


def test_tcpdump_and_the_file_agree(run: Path, found: dict[str, Any]) -> None:
    """Each capture has a line when it listens and one at its end, with the number of packets in its file."""
    kinds = [(line["kind"], line["device"]) for line in found["lossy"]["lines"]]
    devices = ["edge-a-wan", "tenant-b-eth0"]
    assert kinds == [(kind, device) for kind in ("capture", "captured") for device in devices]
    for name, line in zip((WAN, AT_B), found["lossy"]["lines"][2:], strict=True):
        assert (line["packets"], line["dropped_packets"]) == (pcap.read(run / name, 0).packets, 0)


def test_a_refused_filter_ends_the_run(found: dict[str, Any]) -> None:
    """With tcpdump's words and the filter as written."""
    (problem,) = found["refused"]["problems"]
    assert "syntax error" in problem
    assert "'tcp portt 7000'" in problem
    assert "edge-a-wan" in problem


def test_an_incomplete_capture_is_not_to_be_trusted(found: dict[str, Any]) -> None:
    """Packets that the kernel had to drop are counted and said; so is a tcpdump that died."""
    starved, killed = found["troubled"]["starved"], found["troubled"]["killed"]
    (reason,) = starved["distrusted"]
    dropped = starved["lines"][-1]["dropped_packets"]
    assert dropped > 0
    assert reason == f"capture of edge-a-wan lost {dropped} packets"
    (reason,) = killed["distrusted"]
    assert reason.startswith("capture of edge-a-wan: tcpdump ended early")


def test_the_same_seed_gives_the_same_files(run: Path, tmp_path: Path) -> None:
    """A second boot writes the same bytes, timestamps included."""
    again = boot(tmp_path / "run")
    for name in (WAN, AT_B):
        one, other = (hashlib.sha256((place / name).read_bytes()).hexdigest() for place in (run, again))
        assert one == other
