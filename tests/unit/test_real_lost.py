"""Instances as programs of their own, one of which is killed in the middle of its answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agents.config import Compute, Config, Failures, Request
from agents.dispatch import Dispatcher
from agents.fleet import Flight
from agents.prompts import prompt
from tests.unit.agent_config import make_config
from tests.unit.fake_agents import NETWORK
from tests.unit.instance_nodes import CONGESTION_CONTROL
from tests.unit.real_parts import PROJECT, reference

MS = 1_000_000
WAIT_S = 60
INSTANCES = ("prefill-b1", "decode-b2", "decode-b3")
REQUESTS = tuple(
    Request(id=number, t_ns=0, input_tokens=tokens, output_tokens=output_tokens)
    for number, tokens, output_tokens in ((1, 150, 16), (2, 40, 16), (3, 9, 3))
)


def settings(name: str, journal: Path) -> Config:
    """Of an agent of a system that computes the tiny hybrid, and where only these instances are."""
    usual = make_config(name, journal, NETWORK)
    transport = msgspec.structs.replace(
        usual.transport,
        payload="tensors",
        chunk_bytes=1 << 15,
        layer_group=1,
        congestion_control=CONGESTION_CONTROL,
    )
    return msgspec.structs.replace(
        usual,
        model="tiny_hybrid",
        scale=1.0,
        compute=Compute(seed=5),
        transport=transport,
        scheduling=msgspec.structs.replace(usual.scheduling, interval_ns=50 * MS),
        failures=Failures(policy="recompute", probe_ns=20 * MS, probe_max_ns=80 * MS),
        peers=tuple(peer for peer in usual.peers if peer.name in (*INSTANCES, "router")),
        requests=REQUESTS,
    )


@asynccontextmanager
async def program(name: str, journal: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An instance, once it is ready; killed at the end."""
    path = journal / f"{name}.json"
    path.write_bytes(msgspec.json.encode(settings(name, journal)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agents", name.split("-", maxsplit=1)[0], str(path),
        cwd=PROJECT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def order(process: asyncio.subprocess.Process, what: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n".encode())


def noted(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    return [line for line in lines if line["kind"] == kind]


async def told(flight: Flight, tokens: int) -> int:
    """Wait until the client would have so many."""
    had = 0
    while had < tokens:
        had = await flight.next()
        assert flight.cause is None
    return had


def test_what_a_killed_decode_instance_had_is_computed_again_and_right(tmp_path: Path) -> None:
    """The rest comes from another one: every token once, and those of one process, logits bit for bit.

    The chunks that the first attempts sent were damaged once, too.
    """
    right = reference(settings("router", tmp_path))

    async def scenario() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(WAIT_S):
            running = {name: await stack.enter_async_context(program(name, tmp_path)) for name in INSTANCES}
            for one in running.values():
                assert one.stdout is not None
                assert await one.stdout.readline() == b"ready\n"
            order(running["prefill-b1"], "corrupt 2")
            for name in ("decode-b2", "decode-b3"):
                order(running[name], "slow 3")
            dispatcher = Dispatcher(settings("router", tmp_path))
            await dispatcher.start()
            stack.callback(dispatcher.close)
            flights = [
                dispatcher.submit(
                    one.id,
                    one.input_tokens,
                    one.output_tokens,
                    prompt=prompt(settings("router", tmp_path), one),
                )
                for one in REQUESTS[:2]
            ]
            first = flights[0].decode
            assert {one.decode for one in flights} == {"decode-b2", "decode-b3"}
            before = await told(flights[0], 4)
            assert before < REQUESTS[0].output_tokens
            running[first].kill()
            flights.append(
                dispatcher.submit(3, 9, 3, prompt=prompt(settings("router", tmp_path), REQUESTS[2]))
            )
            for flight, request in zip(flights, REQUESTS, strict=True):
                assert await told(flight, request.output_tokens) == request.output_tokens
            assert (flights[0].attempt, flights[1].attempt) == (1, 0)
            assert flights[0].decode == flights[1].decode != first
            assert [flight.token_ids for flight in flights] == [right[one.id].token_ids for one in REQUESTS]
            lines = noted(tmp_path / f"{flights[1].decode}.jsonl", "decode")
            assert {one["id"]: one["logits_digest"] for one in lines} == {
                number: one.logits_digest for number, one in right.items()
            }
            assert noted(tmp_path / f"{first}.jsonl", "decode") == []
            errors = [
                one["checksum_errors"]
                for name in ("decode-b2", "decode-b3")
                for one in noted(tmp_path / f"{name}.jsonl", "kv")
            ]
            assert sum(errors) == 2

    asyncio.run(scenario())
