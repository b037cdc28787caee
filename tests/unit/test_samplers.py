"""Samples on their grid, and what they leave out because it cannot have changed."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from testbed.journal import Journal
from testbed.plan import Direction
from testbed.shaping import netlink
from testbed.telemetry import link
from testbed.telemetry.link import LinkCounters
from testbed.telemetry.qdisc import Stats
from testbed.telemetry.samplers import every
from testbed.telemetry.watch import own_left_out
from tests.unit.jumping_loop import JumpingLoop

WAN: dict[Direction, tuple[tuple[str, str], tuple[str, str]]] = {
    "a_to_b": (("edge-a", "out-a"), ("wan", "to-b")),
    "b_to_a": (("edge-b", "out-b"), ("wan", "to-a")),
}
MS = 1_000_000


class Network:
    """Stands in for the kernel: counters of qdiscs and devices, and how often they were read."""

    def __init__(self) -> None:
        self.sent, self.backlog, self.passed, self.readings = 0, 0, 0, 0

    def qdiscs(self, node: str, places: Sequence[tuple[str, int]]) -> object:
        network = self

        class Node:
            def read(self) -> list[Stats | None]:
                network.readings += 1
                stats = Stats(network.sent, 0, 0, network.backlog if node == "edge-a" else 0, 0, 0, 0)
                return [stats for _ in places]

        return Node()

    def devices(self, _: str) -> object:
        network = self

        class Edge:
            def counted(self) -> bytes:
                return b"%d" % network.passed

        return Edge()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(link, "Qdiscs", made.qdiscs)
    monkeypatch.setattr(link, "Devices", made.devices)
    return made


def test_an_idle_link_is_not_read_again(network: Network) -> None:
    """Once two readings were the same and nothing waits, until something passes an edge router."""
    counters = LinkCounters(WAN)
    for readings in (3, 6, 9, 9, 9):  # the third one begins with a look at the devices
        first = counters.read()
        assert network.readings == readings
    later = counters.read()
    assert later["a_to_b"].t_ns > first["a_to_b"].t_ns
    network.sent, network.passed = 500, 1
    assert counters.read()["b_to_a"].tx_bytes == 500
    network.sent, network.passed = 900, 2
    assert counters.read()["a_to_b"].tx_bytes == 900


def test_a_link_with_a_queue_is_not_idle(network: Network) -> None:
    """What waits may leave, or be dropped, without anything coming in."""
    network.backlog = 1
    counters = LinkCounters(WAN)
    for number in range(1, 6):
        counters.read()
        assert network.readings == 3 * number


def test_samples_keep_to_their_grid_until_one_fails() -> None:
    """However long a sample takes; the error of a sample is that of the task."""
    times: list[float] = []

    def sample() -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 4:
            raise ValueError("the fourth")

    with asyncio.Runner(loop_factory=JumpingLoop) as runner, pytest.raises(ValueError, match="the fourth"):
        runner.run(every(100 * MS, sample))
    assert len(times) == 4


def test_lines_of_a_moment_are_written_at_once(tmp_path: Path) -> None:
    """In their order, and also when the block ends badly; outside it, each as it comes."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)

    def kinds() -> list[str]:
        return [msgspec.json.decode(line)["kind"] for line in path.read_bytes().splitlines()]

    def break_off() -> None:
        with journal.together():
            journal.note("one", time.monotonic_ns())
            journal.note("two", time.monotonic_ns())
            assert kinds() == []
            raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        break_off()
    assert kinds() == ["one", "two"]
    journal.note("three", time.monotonic_ns())
    assert kinds() == ["one", "two", "three"]
    journal.close()


def passes(program: bytes, message: bytes) -> bool:
    """Runs a classic BPF program of the few instructions that there are, on a message."""
    at, value = 0, 0
    while True:
        code, when_true, when_false, operand = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x28:
            (value,) = struct.unpack_from(">H", message, operand)
        elif code == 0x20:
            (value,) = struct.unpack_from(">I", message, operand)
        elif code == 0x15:
            at += when_true if value == operand else when_false
        else:
            assert code == 0x06
            return bool(operand)


def test_the_watch_leaves_out_the_bench_itself() -> None:
    """Its own sockets' messages, but for those about devices; nobody else's."""
    own = (1234, 4_294_900_000)
    program = own_left_out(own)
    for kind, port, heard in (
        (netlink.NEW_QDISC, 1234, False),
        (netlink.NEW_ROUTE, 4_294_900_000, False),
        (netlink.NEW_QDISC, 1235, True),
        (netlink.DEL_FILTER, 0, True),
        (netlink.NEW_LINK, 1234, True),
        (netlink.NEW_LINK + 1, 0, True),
    ):
        assert passes(program, netlink.HEADER.pack(16, kind, 0, 0, port)) == heard, (kind, port)
