"""A session over connections that break and stand still: nothing lost or doubled, and who is told of what."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from functools import partial

import msgspec
import pytest

from agents.config import Failures
from agents.session import BEATS_IN_SILENCE
from tests.unit.session_bench import FAILURES, Bench, play, until

CUTS = 200
QUICK = msgspec.structs.replace(FAILURES, silence_ns=2_000_000_000, probe_ns=1_000_000)
SLACK_NS = 250_000_000
SILENT = "down: nothing was heard for 0.3 s"


def numbers(messages: list[dict[str, object]]) -> list[object]:
    return [message["id"] for message in messages]


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_or_doubled_however_often_the_connection_breaks(seed: int) -> None:
    """Each message once and in order, both ways, though connections end amid messages, at one end or both."""
    dice = random.Random(seed)

    async def scenario(bench: Bench) -> None:
        asked = answered = 0
        for _ in range(CUTS):
            for _ in range(dice.randrange(6)):
                bench.session.send("ask", id=asked)
                asked += 1
            for _ in range(dice.randrange(6)):
                bench.server.send("answer", id=answered, text="x" * dice.randrange(200))
                answered += 1
            for _ in range(dice.randrange(8)):
                await asyncio.sleep(0)
            bench.link.half_open = dice.random() < 0.3
            match dice.randrange(3):
                case 0:
                    bench.link.cut()
                case 1:
                    bench.link.cut_after(dice.randrange(2_000))
                case _ if bench.link.ends:
                    dice.choice(bench.link.ends).transport.abort()
            await asyncio.sleep(dice.choice((0, 0.001, 0.005)))
        bench.link.cut()
        bench.session.send("ask", id=asked)
        bench.server.send("answer", id=answered)
        await until(lambda: len(bench.told) > asked and len(bench.heard) > answered)
        assert numbers(bench.told) == list(range(asked + 1))
        assert numbers(bench.heard) == list(range(answered + 1))
        assert bench.routers == [True] + [False] * (len(bench.routers) - 1)
        assert len(bench.routers) > CUTS // 4
        assert bench.news == []

    play(scenario, QUICK)


def test_what_is_handled_is_what_was_sent() -> None:
    """Without the session's own fields; an answer to a beat carries what the instance adds."""

    async def scenario(bench: Bench) -> None:
        beats: list[dict[str, object]] = []
        bench.session._handle = beats.append
        bench.session.send("prefill", id=1, tokens=7)
        bench.server.say("signals", acked_bytes=5)
        await until(lambda: bool(bench.told) and len(beats) == 2)
        assert bench.told == [{"op": "prefill", "id": 1, "tokens": 7}]
        assert beats == [{"op": "signals", "acked_bytes": 5}, {"op": "beat", "load": 7}]

    play(scenario)


def test_beats_acknowledge() -> None:
    """Where one side only listens, the other still keeps nothing for longer than two beats."""

    async def scenario(bench: Bench) -> None:
        bench.session.send("ask", id=1)
        bench.server.send("answer", id=1)
        before = bench.beats
        assert bench.session._books.kept()
        assert bench.server._books.kept()
        await until(lambda: bench.beats == before + 2)
        await asyncio.sleep(0.01)
        assert bench.session._books.kept() == b""
        assert bench.server._books.kept() == b""

    play(scenario)


@pytest.mark.parametrize("old", [True, False])
def test_a_link_that_stands_still(old: bool) -> None:
    """Down after the silence, up at the next attempt at the latest, each told once, whether or not the old
    connection lives again; what was sent meanwhile arrives once.
    """

    async def scenario(bench: Bench) -> None:
        await until(lambda: bench.beats > 0)
        await asyncio.sleep(0.01)
        heard_ns = bench.session.heard_ns
        bench.link.freeze()
        bench.session.send("ask", id=1)
        bench.server.send("answer", id=1)
        await until(lambda: not bench.session.up)
        assert FAILURES.silence_ns <= bench.down_ns - heard_ns <= FAILURES.silence_ns + SLACK_NS
        bench.session.send("ask", id=2)
        await asyncio.sleep(0.7)
        thawed_ns = time.monotonic_ns()
        bench.link.thaw(old=old)
        await until(lambda: bench.session.up)
        assert bench.up_ns - thawed_ns <= FAILURES.probe_max_ns + SLACK_NS
        await asyncio.sleep(0.4)
        assert bench.news == [SILENT, "up"]
        assert (numbers(bench.told), numbers(bench.heard)) == ([1, 2], [1])
        assert len(bench.link.near()) == 1

    play(scenario)


def test_there_are_never_more_than_two_sockets() -> None:
    """A connection and an attempt at the next one, at either end, however long nothing comes back."""

    async def scenario(bench: Bench) -> None:
        bench.link.freeze()
        most = 0
        while bench.link.accepted < 8:
            await asyncio.sleep(0.002)
            most = max(most, len(bench.link.near()))
        assert most == 2
        bench.link.thaw()
        await until(lambda: bench.session.up)
        await asyncio.sleep(0.2)
        assert len(bench.server._lines) == 1

    play(scenario)


def test_without_probing_the_connection_is_waited_for() -> None:
    """The flaw: no other connection is tried as long as the old one stands."""

    async def scenario(bench: Bench) -> None:
        bench.link.freeze()
        await until(lambda: not bench.session.up)
        await asyncio.sleep(0.5)
        assert bench.link.accepted == 1
        bench.link.thaw()
        await until(lambda: bench.session.up)
        bench.link.cut()
        bench.session.send("ask", id=1)
        await until(lambda: bool(bench.told))
        assert bench.news == [SILENT, "up"]

    play(scenario, probing=False)


def test_a_quick_restart_of_the_instance_is_told() -> None:
    """Everything there is lost, also what was never acknowledged; the conversation begins anew."""

    async def scenario(bench: Bench) -> None:
        bench.session.send("ask", id=1)
        bench.server.send("answer", id=1)
        await until(lambda: bool(bench.told) and bool(bench.heard))
        bench.link.freeze()
        bench.session.send("ask", id=2)
        bench.server.close()
        bench.server = bench.new_server()
        await bench.server.listen()
        bench.link.cut()
        bench.link.thaw()
        bench.session.send("ask", id=3)
        await until(lambda: bool(bench.news))
        bench.session.send("ask", id=4)
        bench.server.send("answer", id=2)
        await until(lambda: len(bench.told) > 1 and len(bench.heard) > 1)
        assert (numbers(bench.told), numbers(bench.heard)) == ([1, 4], [1, 2])
        assert bench.news == ["was restarted"]
        assert bench.routers == [True, True]

    play(scenario)


def test_an_instance_that_nobody_listens_for_has_ended() -> None:
    """Known at once, not after the silence, and told once; the program that comes later is another one."""

    async def scenario(bench: Bench) -> None:
        bench.session.close()
        bench.session = direct = bench.new_session(2)
        direct._port = 7000
        await direct.open()
        await asyncio.sleep(FAILURES.probe_ns / 1e9)
        died_ns = time.monotonic_ns()
        bench.server.close()
        await until(lambda: not direct.up)
        assert bench.down_ns - died_ns < FAILURES.silence_ns / 2
        direct.send("ask", id=1)
        await asyncio.sleep(0.5)
        bench.server = bench.new_server()
        await bench.server.listen()
        await until(lambda: direct.up)
        direct.send("ask", id=2)
        await until(lambda: bool(bench.told))
        assert numbers(bench.told) == [2]
        assert bench.news == ["down: nobody listens", "went away", "up"]

    play(scenario)


def test_a_restart_of_the_router_is_told_to_the_instance_once() -> None:
    """The new one hears nothing that was meant for the old one, which is not listened to any more."""

    async def scenario(bench: Bench) -> None:
        bench.link.freeze()
        bench.server.send("answer", id=1)
        old, bench.session = bench.session, bench.new_session(2)
        bench.link.thaw(old=False)
        await bench.session.open()
        bench.server.send("answer", id=2)
        bench.link.cut()
        bench.session.send("ask", id=2)
        old.send("ask", id=1)
        await until(lambda: bool(bench.heard) and bool(bench.told))
        old.close()
        assert (numbers(bench.heard), numbers(bench.told)) == ([2], [2])
        assert bench.routers[:2] == [True, True]
        assert not any(bench.routers[2:])

    play(scenario)


def test_a_router_that_was_frozen_itself_blames_nobody() -> None:
    """Its timers come late, and nothing that it has not read yet is held against the instances."""

    async def scenario(bench: Bench) -> None:
        await until(lambda: bench.beats > 0)
        for _ in range(3):
            await asyncio.sleep(0.05)
            time.sleep(2 * FAILURES.silence_ns / 1e9)  # noqa: ASYNC251 - this is the point
        await asyncio.sleep(0.1)
        assert bench.news == []
        assert bench.link.accepted == 1

    play(scenario)


def test_half_open_connections_are_replaced() -> None:
    """The instance does not hear that a connection has ended; it goes by the newest and closes the others."""

    def told(bench: Bench, number: int) -> bool:
        return len(bench.told) > number

    async def scenario(bench: Bench) -> None:
        bench.link.half_open = True
        for number in range(4):
            bench.link.near()[0].abort()
            bench.session.send("ask", id=number)
            await until(partial(told, bench, number))
        await until(lambda: len(bench.server._lines) == 1)
        assert numbers(bench.told) == [0, 1, 2, 3]
        assert bench.routers == [True] + [False] * 4

    play(scenario)


@pytest.mark.parametrize("down", [False, True])
def test_nothing_happens_after_close(down: bool) -> None:
    """No beat, no attempt, no word to the router."""

    async def scenario(bench: Bench) -> None:
        await until(lambda: bench.beats > 0)
        if down:
            bench.server.close()
            await until(lambda: not bench.session.up)
            await until(lambda: bench.session._attempt is None)
        bench.session.close()
        beats, accepted = bench.beats, bench.link.accepted
        bench.server.close()
        await asyncio.sleep(2 * FAILURES.silence_ns / 1e9)
        assert (bench.beats, bench.link.accepted) == (beats, accepted)
        assert bench.news == ([SILENT] if down else [])

    play(scenario)


def test_beats_are_few_and_come_together() -> None:
    """So many in a silence, whatever else is said, and those of all sessions at one moment."""
    failures = Failures(silence_ns=200_000_000, probe_ns=10_000_000, probe_max_ns=50_000_000)

    async def scenario(bench: Bench) -> None:
        other = bench.new_session(1)
        await asyncio.sleep(0.013)
        now_ns = time.monotonic_ns()
        other._beat_at(now_ns)
        bench.session._beat_at(now_ns)
        assert other._timers["beat"].when() == bench.session._timers["beat"].when()
        other.close()
        before, start_s = bench.beats, time.monotonic()
        for number in range(100):
            bench.session.send("ask", id=number)
            await asyncio.sleep(0.01)
        took_s = time.monotonic() - start_s  # as long as the machine lets it take
        assert bench.beats - before <= BEATS_IN_SILENCE * took_s / 0.2 + 2

    play(scenario, failures)


def test_sockets_are_set_as_asked() -> None:
    """Congestion control and no Nagle at both ends."""

    async def scenario(bench: Bench) -> None:
        assert bench.session._line is not None
        assert bench.server._line is not None
        for line in (bench.session._line, bench.server._line):
            end = line.transport.get_extra_info("socket")
            name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert name.rstrip(b"\0") == b"reno"
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    play(scenario)
