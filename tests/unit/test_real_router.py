"""The router in front of real kernels: prompts are token ids, and so are answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.config import Compute, Failures
from agents.shapes import SHAPES
from tests.unit.router_bench import URL, WAIT_S, Agents, Scenario, serving

VOCAB = SHAPES["tiny_hybrid"].vocab
REAL: dict[str, Any] = {"model": "tiny_hybrid", "scale": 1.0, "compute": Compute(seed=1)}
IDS = [11, 12, 13, 14, 15, 16]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario against a fresh router."""

    def run(scenario: Scenario, **changes: Any) -> None:
        async def prepared() -> None:
            async with serving(tmp_path, **changes) as (http, agents), asyncio.timeout(WAIT_S):
                await scenario(http, agents)

        asyncio.run(prepared())

    return run


async def asked(agents: Agents, name: str) -> dict[str, Any]:
    """The next prefill that an instance is asked for."""
    while (message := await agents[name].messages.get())["op"] != "prefill":
        pass
    return message


def asking(http: httpx.AsyncClient, *, stream: bool) -> asyncio.Task[httpx.Response]:
    body = {"prompt": [5, 6, 7], "max_tokens": len(IDS), "stream": stream}
    return asyncio.create_task(http.post(URL, json=body))


def items(job: int, *counts: int, since: int = 0) -> list[list[object]]:
    """Tokens as decode tells of them."""
    pairs = zip([since, *counts], counts, strict=False)
    return [[job, count, count == len(IDS), IDS[before:count]] for before, count in pairs]


def choices(response: httpx.Response) -> list[dict[str, Any]]:
    """Of each event of a stream, without its end."""
    *blocks, done, empty = response.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    found: list[dict[str, Any]] = [json.loads(block[6:])["choices"][0] for block in blocks]
    return found


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": "some words"}, "prompt has to be a list of token ids"),
        ({"prompt": ""}, "prompt has to be a list of token ids"),
        ({"prompt": []}, "prompt has to be a list of token ids"),
        ({}, "prompt has to be a list of token ids"),
        ({"prompt_tokens": 9}, "prompt has to be a list of token ids"),
        ({"prompt": [3, 4], "prompt_tokens": 9}, "prompt has to be a list of token ids"),
        ({"prompt": [3, VOCAB]}, f"outside 0 to {VOCAB - 1}"),
        ({"prompt": [-1, 3]}, f"outside 0 to {VOCAB - 1}"),
    ],
)
def test_a_prompt_that_kernels_cannot_compute_is_refused(
    play: Callable[..., None], body: dict[str, Any], says: str
) -> None:
    """400 and why, nobody is told, and the id that came with it can be used for a prompt that is right."""

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        response = await http.post(URL, json={**body, "request_id": 5})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert says in error["message"]
        assert all(agent.messages.empty() for agent in agents.values())
        right = {"prompt": [0, VOCAB - 1], "request_id": 5, "max_tokens": len(IDS)}
        served = asyncio.create_task(http.post(URL, json=right))
        message = await asked(agents, "prefill-b1")
        assert (message["prompt"], message["tokens"]) == ([0, VOCAB - 1], 2)
        agents[message["decode"]].send("tokens", items=items(message["id"], 1, 6))
        assert (await served).status_code == 200

    play(scenario, **REAL)


def test_an_answer_has_its_token_ids(play: Callable[..., None]) -> None:
    """The whole answer all of them, each event of a stream those that are new; the text says the same."""

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        for stream in (False, True):
            served = asking(http, stream=stream)
            message = await asked(agents, "prefill-b1")
            assert message["prompt"] == [5, 6, 7]
            for one in items(message["id"], 1, 4, 6):
                agents[message["decode"]].send("tokens", items=[one])
                await asyncio.sleep(0.02)
            response = await served
            if stream:
                found = choices(response)
                assert [one["token_ids"] for one in found] == [IDS[:1], IDS[1:4], IDS[4:]]
                assert "".join(one["text"] for one in found) == " 11 12 13 14 15 16"
                assert [one["finish_reason"] for one in found] == [None, None, "length"]
            else:
                answer = response.json()
                assert answer["choices"][0]["token_ids"] == IDS
                assert answer["choices"][0]["text"] == " 11 12 13 14 15 16"
                assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}

    play(scenario, **REAL)


@pytest.mark.parametrize("first", [(1,), (1, 4), (1, 4, 5)])
@pytest.mark.parametrize("second", [(1, 4, 6), (1, 2, 3, 4, 5, 6), (1, 6)])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_is_computed_again_is_told_once(
    play: Callable[..., None], first: tuple[int, ...], second: tuple[int, ...], stream: bool
) -> None:
    """Another attempt generates all tokens from the first one on; the client gets each once, in order."""

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        served = asking(http, stream=stream)
        before = await asked(agents, "prefill-b1")
        decode = agents[before["decode"]]
        decode.send("tokens", items=items(before["id"], *first))
        decode.send("failed", id=before["id"], cause="out of memory")
        again = await asked(agents, "prefill-b1")
        assert (again["prompt"], again["tokens"]) == ([5, 6, 7], 3)
        for one in items(again["id"], *second):
            agents[again["decode"]].send("tokens", items=[one])
            await asyncio.sleep(0.001)
        response = await served
        found = choices(response) if stream else response.json()["choices"]
        assert [one for piece in found for one in piece["token_ids"]] == IDS
        assert all(piece["token_ids"] for piece in found)

    play(scenario, failures=Failures(policy="retry", probe_ns=20_000_000), **REAL)


def test_where_a_profile_is_replayed_nothing_has_token_ids(play: Callable[..., None]) -> None:
    """Any prompt will do, instances get its length only, and the text is a placeholder."""

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        for body in ({"prompt": "two words"}, {"prompt": [3, 10**9]}, {"prompt_tokens": 2}):
            for stream in (False, True):
                more = {"max_tokens": len(IDS), "stream": stream}
                served = asyncio.create_task(http.post(URL, json=body | more))
                message = await asked(agents, "prefill-b1")
                assert (message["tokens"], "prompt" in message) == (2, False)
                told = [[message["id"], count, count == len(IDS)] for count in (1, 6)]
                agents[message["decode"]].send("tokens", items=told)
                response = await served
                found = choices(response) if stream else response.json()["choices"]
                assert not [one for one in found if "token_ids" in one]
                assert "".join(one["text"] for one in found).split() == ["token"] * len(IDS)

    play(scenario)
