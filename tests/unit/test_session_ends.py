"""What the ends of a session make of strangers, of bytes that are no messages, and of nobody being there."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.session import Server
from agents.wire import Lines
from tests.unit.session_bench import ADDRESS, FAILURES, LINK_PORT, SERVER_PORT, Bench, play, until

GARBAGE = [
    b"\n",
    b"{}\n",
    b'[1, "prefill"]\n',
    b'{"op": 7}\n',
    b'{"op": "pre\xfffill", "heard": 0}\n',
    b'{"op": "ask", "heard": 0, "n": 9}\n',
    b'{"op": "ask", "heard": 99}\n',
    b'{"op": "ask", "n": 1}\n',
    b'{"op": "ask", "heard": -1}\n',
    b'{"op": "hello"}\n',
    b'{"op": "hello", "epoch": 0, "connection": "x", "incarnation": 0, "heard": 0}\n',
    b"[" * 5_000 + b"\n",
    b"x" * (2 << 20),
]
HELLO = {"op": "hello", "epoch": 1, "connection": 1, "incarnation": 0, "heard": 0}


async def write(address: str, port: int, data: bytes) -> bytes:
    """Connect, say this, wait for the end; returns the answer."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def greet(**fields: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a router does."""
    reader, writer = await asyncio.open_connection(ADDRESS, SERVER_PORT)
    writer.write(json.dumps({**HELLO, **fields}).encode() + b"\n")
    return reader, writer


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_ends_its_connection_and_nothing_else(data: bytes) -> None:
    """From a stranger or over the session's own connection, in either direction."""

    async def scenario(bench: Bench) -> None:
        await write(ADDRESS, SERVER_PORT, data)
        assert (bench.told, bench.routers) == ([], [True])
        assert bench.session._line is not None
        bench.session._line.write(data)
        await until(lambda: len(bench.routers) == 2)
        assert bench.server._line is not None
        bench.server._line.write(data)
        await until(lambda: len(bench.routers) == 3)
        bench.session.send("ask", id=1)
        await until(lambda: bool(bench.told))
        assert (bench.told, bench.news) == ([{"op": "ask", "id": 1}], [])

    play(scenario)


def test_a_peer_that_answers_nonsense_is_tried_with_back_off() -> None:
    """Not as fast as it can be reached."""

    async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense\n")
        accepted.append(writer)

    accepted: list[asyncio.StreamWriter] = []

    async def scenario(bench: Bench) -> None:
        bench.server.close()
        await until(lambda: bench.link.accepted > 2)
        async with await asyncio.start_server(nonsense, ADDRESS, SERVER_PORT):
            before = len(accepted)
            await asyncio.sleep(1)
            assert 5 <= len(accepted) - before <= 12
            for writer in accepted:
                writer.close()
        assert bench.news == ["down: nothing was heard for 0.3 s"]

    play(scenario)


class Silent(asyncio.Transport):
    """A connection that goes nowhere."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.ended = False

    def setsockopt(self, *_option: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True

    def write(self, data: Any) -> None:  # noqa: ARG002 - asyncio's signature
        assert not self.ended


_counts = st.integers(0, 3)
_values = st.one_of(_counts, st.none(), st.text(max_size=3), st.floats(), st.lists(_counts, max_size=2))
_fields = st.sampled_from(["n", "heard", "epoch", "connection", "incarnation", "id"])
_ops = st.sampled_from(["hello", "ask", "beat"])
_plausible = st.builds(lambda op, rest: {"op": op, **rest}, _ops, st.dictionaries(_fields, _counts))
_odd = st.builds(lambda op, rest: {"op": op, **rest}, _ops, st.dictionaries(_fields, _values))
_lines = st.one_of(
    st.binary(max_size=40), st.builds(lambda one: json.dumps(one).encode(), st.one_of(_plausible, _odd))
)


@settings(deadline=None)
@given(st.lists(_lines, max_size=12))
def test_no_input_raises(lines: list[bytes]) -> None:
    """Whatever is said to an instance is handled, without the numbers, or ends the connection."""
    told: list[dict[str, Any]] = []
    server = Server(
        ADDRESS, 0, congestion_control="reno", handle=told.append, on_router=lambda _new: told.clear()
    )
    server.send("answer", id=1)
    line = Lines(server._take, server._lines.append, server._lost)
    line.connection_made(Silent())
    line.received(json.dumps(HELLO).encode() + b"\n" + b"\n".join(lines) + b"\n")
    assert all("n" not in message and "heard" not in message for message in told)


def test_the_newest_hello_wins() -> None:
    """Connections that waited while the instance was frozen may be read in any order; other routers' too."""

    async def scenario(bench: Bench) -> None:
        bench.session.close()
        hellos = ((5, 2), (5, 1), (4, 9), (5, 2))
        readers = [await greet(epoch=epoch, connection=connection) for epoch, connection in hellos]
        try:
            winner = readers[0][0]
            assert json.loads(await winner.readline())["op"] == "hello"
            for reader, _ in readers[1:]:
                with pytest.raises(ConnectionResetError):
                    assert await reader.read() == b""
            assert bench.routers == [True, True]
            bench.server.send("answer", id=1)
            assert json.loads(await winner.readline()) == {"op": "answer", "id": 1, "n": 1, "heard": 0}
        finally:
            for _, writer in readers:
                writer.close()

    play(scenario)


def test_what_was_heard_of_another_program_does_not_count() -> None:
    """A router that never got the new program's hello still tells how far it has heard the old one."""

    async def scenario(bench: Bench) -> None:
        bench.session.close()
        _, first = await greet(epoch=5, incarnation=7, heard=1)
        await until(lambda: len(bench.routers) == 2)
        bench.server.send("answer", id=1)
        reader, second = await greet(epoch=5, connection=2, incarnation=7, heard=1)
        answers = [json.loads(await reader.readline()) for _ in range(2)]
        first.close()
        second.close()
        assert [one["op"] for one in answers] == ["hello", "answer"]
        assert bench.routers == [True, True, False]

    play(scenario)


def test_what_is_only_said_is_not_kept() -> None:
    """Signals of the past are of no use."""

    async def scenario(bench: Bench) -> None:
        bench.session.close()
        await until(lambda: bench.server._line is None)
        bench.server.say("signals", acked_bytes=1)
        bench.session = bench.new_session(1)
        bench.session._connections = 1
        await bench.session.open()
        bench.server.say("signals", acked_bytes=2)
        await until(lambda: bool(bench.heard))
        assert bench.heard == [{"op": "signals", "acked_bytes": 2}]

    play(scenario)


def test_a_session_begins_without_an_instance() -> None:
    """The first attempt says so, at once; it is looked for, and what was sent arrives."""

    async def scenario(bench: Bench) -> None:
        bench.session.close()
        bench.server.close()
        bench.session = late = bench.new_session(2)
        late._port = SERVER_PORT
        with pytest.raises(ConnectionRefusedError):
            await late.open()
        assert not late.up
        late.send("ask", id=1)
        await asyncio.sleep(0.1)
        bench.server = bench.new_server()
        await bench.server.listen()
        await until(lambda: bool(bench.told))
        assert (late.up, bench.news) == (True, ["up"])

    play(scenario)


def test_the_first_attempt_has_the_time_of_a_silence() -> None:
    """Then it fails, whatever the reason may be that nobody answers."""

    async def scenario(bench: Bench) -> None:
        bench.session.close()
        bench.link.freeze()
        bench.session = bench.new_session(2)
        since_ns = time.monotonic_ns()
        with pytest.raises(TimeoutError):
            await bench.session.open()
        assert time.monotonic_ns() - since_ns >= FAILURES.silence_ns
        assert bench.session._port == LINK_PORT

    play(scenario)
