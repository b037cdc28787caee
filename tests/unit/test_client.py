"""The client against a router of a few lines: what it notes of every request, however it ends."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import client, config
from tests.unit import fake_router
from tests.unit.agent_config import make_config
from tests.unit.fake_agents import NETWORK

WAIT_S = 20
MS = 1_000_000

Notes = dict[int, dict[str, Any]]
Play = Callable[..., Notes]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Let a client send requests of 4 tokens, so many and at such times, to this router."""

    def run(
        answer: fake_router.Answer | None,
        *times_ns: int,
        deadline_ns: int = WAIT_S * 10**9,
        patience_ns: int = WAIT_S * 10**9,
        late_s: float = 0.0,
    ) -> Notes:
        settings = make_config("client", tmp_path, NETWORK)
        requests = [
            config.Request(id=number, t_ns=t_ns, input_tokens=9, output_tokens=4)
            for number, t_ns in enumerate(times_ns)
        ]
        settings = msgspec.structs.replace(
            settings,
            requests=tuple(requests),
            deadline_ns=deadline_ns,
            timeouts=config.Timeouts(client_ns=patience_ns),
        )
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"start {time.monotonic_ns()}\n"))

        async def scenario() -> None:
            async with asyncio.timeout(WAIT_S):
                if answer is None:
                    await client.Client(settings).run()
                    return
                address = settings.having("router")[0].address
                async with fake_router.serving(address, config.HTTP_PORT, answer, late_s):
                    await client.Client(settings).run()

        asyncio.run(scenario())
        lines = Path(settings.journal).read_text(encoding="utf-8").splitlines()
        notes = [json.loads(line) for line in lines]
        assert {note["kind"] for note in notes} == {"request"}
        assert len({note["id"] for note in notes}) == len(notes) == len(times_ns)
        return {note["id"]: note for note in notes}

    return run


def event(tokens: int) -> bytes:
    answer = {"choices": [{"text": " token"}], "usage": {"completion_tokens": tokens}}
    return b"data: %b\n\n" % json.dumps(answer).encode()


async def serve_all(exchange: fake_router.Exchange) -> None:
    """Four tokens in three events, one of them in two pieces."""
    exchange.piece(event(1))
    await asyncio.sleep(0.02)
    exchange.piece(event(3)[:9])
    await asyncio.sleep(0.01)
    exchange.piece(event(3)[9:])
    await asyncio.sleep(0.02)
    exchange.piece(event(4) + b"data: [DONE]\n\n", end=True)


def test_a_stream_is_noted(play: Play) -> None:
    """When it was sent, when the first and the last token came, and how many there were."""
    (note,) = play(serve_all, 0).values()
    assert (note["state"], note["tokens"], note["cause"]) == ("completed", 4, None)
    assert note["t_ns"] < note["t_first_ns"] < note["t_last_ns"] <= note["t_end_ns"]
    assert note["t_last_ns"] - note["t_first_ns"] >= 5 * MS


def test_a_free_connection_is_used_again(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests one after the other share a connection; requests at the same time have one each."""
    made: list[object] = []
    monkeypatch.setattr(client._Asking, "connection_made", _counting(made))
    play(serve_all, 0, 0, 400 * MS, 800 * MS)
    assert len(made) == 2


def _counting(made: list[object]) -> Callable[..., None]:
    before = client._Asking.connection_made

    def connection_made(self: client._Asking, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        before(self, transport)

    return connection_made


@pytest.mark.parametrize(("status", "state"), [(400, "refused"), (409, "refused"), (503, "failed")])
def test_a_refusal_is_noted_with_its_reason(play: Play, status: int, state: str) -> None:
    """What the router says goes into the journal; too much asked is refused, a broken system has failed."""

    async def refuse(exchange: fake_router.Exchange) -> None:
        exchange.answer(status, b'{"error":"because"}')

    notes = play(refuse, 0, 50 * MS)
    assert {(note["state"], note["cause"]) for note in notes.values()} == {
        (state, f'HTTP {status}: {{"error":"because"}}')
    }


def test_a_stream_that_ends_early_has_failed(play: Play) -> None:
    """An error told in the stream is the cause; without one it is what was missing."""

    async def stop(exchange: fake_router.Exchange) -> None:
        exchange.piece(event(2))
        if msgspec.json.decode(exchange.body)["request_id"] == 0:
            exchange.piece(b'data: {"error":{"message":"the link is down"}}\n\n')
        exchange.piece(b"data: [DONE]\n\n", end=True)

    notes = play(stop, 0, 0)
    assert [notes[number]["cause"] for number in range(2)] == [
        "the link is down",
        "stream ended after 2 of 4 tokens",
    ]
    assert {note["state"] for note in notes.values()} == {"failed"}


def test_a_connection_that_breaks_has_failed(play: Play) -> None:
    """A connection cut off, or no HTTP: failed, and the next request gets a new connection."""

    async def cut(exchange: fake_router.Exchange) -> None:
        exchange.piece(event(1))
        await asyncio.sleep(0.01)
        transport = exchange.writer.transport
        transport.abort() if exchange.body.endswith(b"0}") else transport.write(b"nonsense\r\n\r\n")

    notes = play(cut, 0, 100 * MS)
    assert [notes[number]["tokens"] for number in range(2)] == [1, 1]
    assert notes[0]["cause"].startswith(("ConnectionResetError: ", "ConnectionError: "))
    assert notes[1]["cause"].startswith("ConnectionError: the router sent no HTTP: ")


def test_nobody_there_has_failed(play: Play) -> None:
    """A router that does not listen is tried again until the patience ends, for each request on its own."""
    notes = play(None, 0, 1 * MS, patience_ns=300 * MS)
    assert {note["cause"] for note in notes.values()} == {"nothing from the router for 0.3 s"}


def test_what_the_router_says_in_between_is_a_sign_of_life(play: Play) -> None:
    """Comments count, as long as they come; after a silence the request has failed."""

    async def wait(exchange: fake_router.Exchange) -> None:
        last = msgspec.json.decode(exchange.body)["request_id"] == 1
        for _ in range(5):
            await asyncio.sleep(0.15)
            exchange.piece(b": waiting\n\n")
        if last:
            await asyncio.sleep(0.6)
        exchange.piece(event(4) + b"data: [DONE]\n\n", end=True)

    notes = play(wait, 0, 1 * MS, patience_ns=300 * MS)
    assert (notes[0]["state"], notes[0]["tokens"]) == ("completed", 4)
    assert notes[0]["t_end_ns"] - notes[0]["t_ns"] >= 700 * MS
    assert (notes[1]["state"], notes[1]["cause"]) == ("failed", "nothing from the router for 0.3 s")
    assert notes[1]["t_end_ns"] - notes[1]["t_ns"] >= 1000 * MS


def test_a_router_that_is_started_again_is_waited_for(play: Play) -> None:
    """It refuses connections meanwhile; the request is asked when it listens, and is as good as any."""
    (note,) = play(serve_all, 0, late_s=0.4).values()
    assert (note["state"], note["tokens"]) == ("completed", 4)
    assert note["t_first_ns"] - note["t_ns"] >= 350 * MS


def test_the_deadline_ends_what_is_left(play: Play) -> None:
    """A request that gets no end fails at the deadline."""

    async def stall(exchange: fake_router.Exchange) -> None:
        exchange.piece(event(1))
        await asyncio.sleep(WAIT_S)

    (note,) = play(stall, 0, deadline_ns=200 * MS).values()
    assert (note["state"], note["tokens"], note["cause"]) == ("failed", 1, "no end before the deadline")
