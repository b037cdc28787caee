"""A decode instance on a clock that moves only while everybody sleeps: its batch, its steps, its words."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.config import job
from agents.decode import Decode
from agents.journal import Journal
from agents.profiles import COMPRESSIONS, PROFILES
from agents.transport.receiver import Arrival, Receiver, ReceiverSettings
from tests.unit.agent_config import make_config
from tests.unit.jumping_loop import JumpingLoop

STEP_NS = 25_000_000
BATCH = PROFILES["h20"].bs_max
MS = 1_000_000


class Bench:
    """A decode instance without sockets: KV arrives when told, the router's end keeps what was said."""

    def __init__(self, journal: Path, loop: JumpingLoop) -> None:
        settings = make_config("decode-b2", journal)
        transport = msgspec.structs.replace(settings.transport, compression="cachegen")
        settings = msgspec.structs.replace(settings, transport=transport)
        self._path, self._loop = Path(settings.journal), loop
        self.said: list[tuple[int, str, Any]] = []
        self.receiver = Receiver(ReceiverSettings.of(settings), self.arrived, self.dropped)
        self.decode = Decode(settings, Journal(settings.journal), self.receiver, self.send)

    def send(self, op: str, **fields: Any) -> None:
        """The router's end of the conversation."""
        self.said.append((self._loop.jump.now_ns, op, fields))

    def expect(self, *requests: int, output_tokens: int = 8, unpack_bytes: int = 0) -> None:
        for request in requests:
            self.decode.expect({
                "id": request, "output_tokens": output_tokens, "context_tokens": 1000,
                "kv_bytes": 1, "unpack_bytes": unpack_bytes,
            })  # fmt: skip

    async def idle_at(self) -> float:
        """When the instance has nothing left to do, in seconds."""
        await self.decode.idle()
        return self._loop.time()

    def arrived(self, arrival: Arrival) -> None:
        self.decode.arrived(arrival)

    def dropped(self, arrival: Arrival, cause: str) -> None:
        self.decode.dropped(arrival, cause)

    def arrive(self, *requests: int) -> None:
        for request in requests:
            self.arrived(Arrival(request, 1, 1, 1, 1, complete_ns=self._loop.jump.now_ns))

    def tokens(self, request: int) -> list[tuple[int, int, bool]]:
        """When how many tokens of a request were told, and whether that was the last word."""
        return [
            (t_ns, total, last)
            for t_ns, op, fields in self.said
            if op == "tokens"
            for number, total, last in fields["items"]
            if number == request
        ]

    def journal(self, kind: str) -> dict[int, dict[str, Any]]:
        lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return {line["id"]: line for line in lines if line["kind"] == kind}


Scenario = Callable[[Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], Bench]:
    """Run a scenario against a fresh instance, in no time."""

    def run(scenario: Scenario) -> Bench:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, JumpingLoop)
            monkeypatch.setattr(time, "monotonic_ns", lambda: loop.jump.now_ns)

            async def prepared() -> Bench:
                bench = Bench(tmp_path, loop)
                await scenario(bench)
                return bench

            bench = runner.run(prepared())
        bench.decode._journal.close()
        return bench

    return run


def test_tokens_come_at_the_steps(play: Callable[[Scenario], Bench]) -> None:
    """A request alone: first token after one step, then a message per stream interval, then the last."""

    async def scenario(bench: Bench) -> None:
        await asyncio.sleep(0.0107)
        bench.expect(1, output_tokens=10)
        bench.arrive(1)
        await asyncio.sleep(1)

    bench = play(scenario)
    told = bench.tokens(1)
    assert [(total, last) for _, total, last in told] == [(1, False), (4, False), (8, False), (10, True)]
    joined_ns = bench.journal("decode")[1]["t_ns"]
    assert joined_ns == pytest.approx(10_700_000, abs=10)
    late_ns = [t_ns - (joined_ns + total * STEP_NS) for t_ns, total, _ in told]
    assert all(0 <= late <= MS for late in late_ns), "told at the step, or within the loop's next millisecond"
    line = bench.journal("decode")[1]
    assert (line["t_first_ns"] - joined_ns, line["t_last_ns"] - joined_ns) == (STEP_NS, 10 * STEP_NS)
    assert line["tokens"] == 10


def test_a_request_joins_at_a_step_of_the_batch(play: Callable[[Scenario], Bench]) -> None:
    """Whoever comes later joins on the grid of those who were there before."""

    async def scenario(bench: Bench) -> None:
        bench.expect(1, 2, 3, output_tokens=40)
        bench.arrive(1)
        await asyncio.sleep(0.033)
        bench.arrive(2)
        await asyncio.sleep(0.2)
        bench.arrive(3)
        await asyncio.sleep(2)

    bench = play(scenario)
    lines = bench.journal("decode")
    assert [(lines[n]["t_ns"] - lines[1]["t_ns"]) / STEP_NS for n in (1, 2, 3)] == [0, 2, 10]


def test_the_batch_is_limited(play: Callable[[Scenario], Bench]) -> None:
    """No more than bs_max requests decode at once; the others wait, first come first served."""
    count = 2 * BATCH + 5

    async def scenario(bench: Bench) -> None:
        bench.expect(*range(count), output_tokens=8)
        bench.arrive(*reversed(range(count)))
        await asyncio.sleep(2)

    bench = play(scenario)
    lines = bench.journal("decode")
    assert len(lines) == count
    spans = [(line["t_ns"], line["t_last_ns"]) for line in lines.values()]
    for start_ns, _ in spans:
        assert sum(first <= start_ns < last for first, last in spans) <= BATCH
    by_join = sorted(lines, key=lambda number: (lines[number]["t_ns"], -number))
    assert by_join == list(reversed(range(count)))
    assert {line["t_last_ns"] - line["t_first_ns"] for line in lines.values()} == {7 * STEP_NS}


def test_one_message_tells_of_the_whole_batch(play: Callable[[Scenario], Bench]) -> None:
    """Requests that are due together are told together."""

    async def scenario(bench: Bench) -> None:
        bench.expect(*range(BATCH), output_tokens=8)
        bench.arrive(*range(BATCH))
        await asyncio.sleep(1)

    assert [len(fields["items"]) for _, _, fields in play(scenario).said] == [BATCH] * 3


def test_a_cancelled_request_is_never_told_again(play: Callable[[Scenario], Bench]) -> None:
    """Cancelled while it decodes, while it waits, or before its KV came: no token, and its place is free."""
    waiting, early, follower = BATCH, BATCH + 1, BATCH + 2

    async def scenario(bench: Bench) -> None:
        bench.expect(*range(BATCH + 3), output_tokens=100)
        bench.arrive(*range(BATCH), waiting)
        await asyncio.sleep(0.03)
        for request in (0, waiting, early):
            bench.decode.cancel(request)
        bench.arrive(early, follower)
        await asyncio.sleep(6)

    bench = play(scenario)
    assert [total for _, total, _ in bench.tokens(0)] == [1]
    assert bench.tokens(waiting) == bench.tokens(early) == []
    assert bench.tokens(follower)[-1][1:] == (100, True)
    assert bench.journal("decode").keys() == {*range(1, BATCH), follower}
    freed_ns = bench.journal("decode")[follower]["t_ns"]
    assert freed_ns < bench.journal("decode")[1]["t_last_ns"], "in the place of the cancelled one"


def test_kv_that_is_given_up_is_never_decoded(play: Callable[[Scenario], Bench]) -> None:
    """Damaged again and again: told to the router and noted with what came of it; its request never joins."""
    number = job(1, 2)

    async def scenario(bench: Bench) -> None:
        bench.expect(number)
        bench.decode.dropped(Arrival(number, 10, 2, 5, 1, checksum_errors=3), "a wrong checksum")
        bench.arrive(number)
        await asyncio.sleep(1)

    bench = play(scenario)
    assert [(op, fields) for _, op, fields in bench.said] == [
        ("failed", {"id": number, "cause": "a wrong checksum"})
    ]
    line = bench.journal("kv_dropped")[1]
    assert (line["attempt"], line["received_bytes"], line["checksum_errors"], line["cause"]) == (
        2,
        5,
        3,
        "a wrong checksum",
    )
    assert bench.journal("decode") == {}


def test_kv_that_nobody_expects_is_noted_only(play: Callable[[Scenario], Bench]) -> None:
    """KV of a request that was given up is recorded and leads to nothing."""

    async def scenario(bench: Bench) -> None:
        bench.arrive(5)
        await asyncio.sleep(1)

    bench = play(scenario)
    assert bench.said == []
    assert bench.journal("kv").keys() == {5}


UNPACK_S = 0.16
UNPACK_BYTES = round(UNPACK_S * COMPRESSIONS["cachegen"].decompress_bytes_per_s * 0.001)
"""At the scale of the small system."""


def test_compressed_kv_is_unpacked_before_its_request_joins(play: Callable[[Scenario], Bench]) -> None:
    """By the size it had before, as if at scale 1; others join meanwhile, and it joins at a step."""

    async def scenario(bench: Bench) -> None:
        bench.expect(1, unpack_bytes=UNPACK_BYTES)
        bench.expect(2)
        bench.arrive(1, 2)
        await asyncio.sleep(2)

    lines = play(scenario).journal("decode")
    assert lines[2]["t_ns"] == 0
    assert lines[1]["t_ns"] == pytest.approx(UNPACK_S * 1e9, abs=STEP_NS)
    assert lines[1]["t_ns"] >= UNPACK_S * 1e9 - 1000
    assert lines[1]["t_ns"] % STEP_NS == 0


def test_what_is_cancelled_while_it_is_unpacked_never_joins(play: Callable[[Scenario], Bench]) -> None:
    """And the instance is idle, at once and in the end."""

    async def scenario(bench: Bench) -> None:
        bench.expect(1, unpack_bytes=UNPACK_BYTES)
        bench.arrive(1)
        await asyncio.sleep(UNPACK_S / 2)
        bench.decode.cancel(1)
        assert await bench.idle_at() == pytest.approx(UNPACK_S / 2)
        await asyncio.sleep(1)

    bench = play(scenario)
    assert (bench.said, bench.journal("decode")) == ([], {})


def test_idle_is_when_nothing_is_expected_waits_or_decodes(play: Callable[[Scenario], Bench]) -> None:
    """From the announcement of a request to its last token, its refusal or the end of what was cancelled."""

    async def scenario(bench: Bench) -> None:
        assert await bench.idle_at() == 0
        bench.expect(*range(BATCH + 1), output_tokens=40)
        bench.arrive(*range(BATCH + 1))
        assert await bench.idle_at() == pytest.approx(2.0, abs=0.01), "two batches of a second"
        bench.expect(100, 101)
        bench.arrive(100)
        bench.decode.cancel(101)
        await asyncio.sleep(0.03)
        bench.decode.cancel(100)
        assert await bench.idle_at() == pytest.approx(2.1, abs=0.01), "when its next tokens are due"
        bench.expect(102)
        bench.decode.dropped(Arrival(102, 10, 2, 5, 1), "given up")
        await bench.idle_at()

    play(scenario)


@pytest.mark.parametrize("slow_at_s", [0.06, 0.0751, 0.1])
def test_a_slow_instance_takes_longer_from_then_on(
    play: Callable[[Scenario], Bench], slow_at_s: float
) -> None:
    """Each step after the last one done takes four times as long, until it is told to be as before."""

    async def scenario(bench: Bench) -> None:
        bench.expect(1, output_tokens=40)
        bench.arrive(1)
        await asyncio.sleep(slow_at_s)
        bench.decode.slow(4.0)
        await asyncio.sleep(1.0)
        bench.decode.slow(1.0)
        await asyncio.sleep(2)

    bench = play(scenario)
    line = bench.journal("decode")[1]
    before = round(slow_at_s * 1e9) // STEP_NS
    slow_since_ns = before * STEP_NS
    slow = (round((slow_at_s + 1.0) * 1e9) - slow_since_ns) // (4 * STEP_NS)
    expected_ns = slow_since_ns + slow * 4 * STEP_NS + (40 - before - slow) * STEP_NS
    assert line["t_last_ns"] - line["t_ns"] == expected_ns
    assert line["t_first_ns"] - line["t_ns"] == STEP_NS
    assert [total for _, total, _ in bench.tokens(1)] == [1, *range(4, 41, 4)]
    told_ns = [t_ns for t_ns, _, _ in bench.tokens(1)]
    assert told_ns == sorted(told_ns)


def test_all_of_a_slow_batch_keep_step(play: Callable[[Scenario], Bench]) -> None:
    """Whoever joins a batch that was slowed down joins at its steps; an empty one begins where it may."""

    async def scenario(bench: Bench) -> None:
        bench.decode.slow(2.0)
        bench.expect(1, 2, 3, output_tokens=20)
        bench.arrive(1)
        await asyncio.sleep(0.12)
        bench.decode.slow(3.0)
        await asyncio.sleep(0.1)
        bench.arrive(2)
        await asyncio.sleep(0.1)
        bench.decode.slow(1.0)
        await asyncio.sleep(0.01)
        bench.arrive(3)
        await asyncio.sleep(5)

    bench = play(scenario)
    lines = bench.journal("decode")
    assert lines[1]["t_first_ns"] == 2 * STEP_NS
    assert lines[2]["t_ns"] == 4 * STEP_NS + 2 * 3 * STEP_NS, "two steps after the last one as before"
    ends_ns = [lines[number]["t_last_ns"] % STEP_NS for number in (1, 2, 3)]
    assert ends_ns == [lines[1]["t_last_ns"] % STEP_NS] * 3


def test_a_new_router_finds_nothing_of_the_one_before(play: Callable[[Scenario], Bench]) -> None:
    """Expected, waiting and decoding requests are forgotten, and nobody hears of them again."""

    async def scenario(bench: Bench) -> None:
        bench.expect(*range(BATCH + 2), output_tokens=100)
        bench.arrive(*range(BATCH + 1))
        await asyncio.sleep(0.03)
        bench.decode.forget()
        bench.said.clear()
        bench.expect(200)
        bench.arrive(200)
        await asyncio.sleep(5)

    bench = play(scenario)
    assert {number for _, _, fields in bench.said for number, _, _ in fields["items"]} == {200}
    assert bench.journal("decode").keys() == {200}
