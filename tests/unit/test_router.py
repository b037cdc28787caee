"""The router's HTTP front against agents that speak the wire protocol."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from agents import router
from agents.compute_profile import ComputeProfile, DecodeSteps
from agents.config import Failures, Timeouts
from agents.profiles import PROFILES
from tests.unit.agent_config import LONG_TOKENS, SHORT_TOKENS, THRESHOLD_TOKENS, make_config
from tests.unit.fake_agents import NETWORK, fake_agents, serve_all
from tests.unit.router_bench import URL, WAIT_S, Agents, Scenario, serving

FINAL = Failures(policy="fail")


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario against a fresh router."""

    def run(scenario: Scenario, *, answering: bool = True, **changes: Any) -> None:
        async def prepared() -> None:
            async with serving(tmp_path, **changes) as (http, agents), asyncio.timeout(WAIT_S):
                answers = asyncio.create_task(serve_all(agents, 4) if answering else asyncio.sleep(WAIT_S))
                await scenario(http, agents)
                answers.cancel()
                await asyncio.gather(answers, return_exceptions=True)

        asyncio.run(prepared())

    return run


def events(response: httpx.Response) -> list[str]:
    """The data of each server-sent event."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


def test_a_stream_brings_every_token_and_ends_with_done(play: Callable[[Scenario], None]) -> None:
    """Streaming: as many tokens as asked, a reason to finish in the last event, then [DONE]."""

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        body = {"prompt_tokens": LONG_TOKENS, "max_tokens": 10, "stream": True, "request_id": 5}
        response = await http.post(URL, json=body)
        *chunks, done = events(response)
        assert done == "[DONE]"
        parsed = [json.loads(chunk) for chunk in chunks]
        assert [one["usage"]["completion_tokens"] for one in parsed] == [1, 4, 8, 10]
        assert "".join(one["choices"][0]["text"] for one in parsed).split() == ["token"] * 10
        assert [one["choices"][0]["finish_reason"] for one in parsed] == [None] * 3 + ["length"]
        assert {(one["id"], one["model"], one["object"]) for one in parsed} == {
            ("cmpl-5", "internal_1t", "text_completion")
        }

    play(scenario)


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "completion_tokens"),
    [
        ({"prompt": "four words of prompt", "max_tokens": 7}, 4, 7),
        ({"prompt": [1, 2, 3]}, 3, 16),
        ({"prompt": ""}, 1, 16),
        ({"prompt": "two words", "prompt_tokens": SHORT_TOKENS, "max_tokens": 1}, SHORT_TOKENS, 1),
    ],
)
def test_without_streaming_one_answer_has_it_all(
    play: Callable[[Scenario], None], body: dict[str, Any], prompt_tokens: int, completion_tokens: int
) -> None:
    """A prompt in any form, its tokens counted, one JSON answer with all that was generated."""

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        response = await http.post(URL, json=body)
        assert response.status_code == 200
        answer = response.json()
        assert answer["usage"] == {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        assert answer["choices"][0]["text"].split() == ["token"] * completion_tokens

    play(scenario)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"max_tokens": 0}',
        b'{"max_tokens": "many"}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt_tokens": -3}',
        b'{"request_id": -1}',
        b'{"request_id": 4294967296}',
        b'{"prompt_tokens": 131073}',
        b'{"prompt_tokens": 99999999999999999999999}',
    ],
)
def test_nonsense_is_the_client_s_fault(play: Callable[[Scenario], None], content: bytes) -> None:
    """Not JSON, not a completion, or longer than any instance serves: 400 and what is wrong, nothing sent."""

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        response = await http.post(URL, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert all(agent.messages.empty() for agent in agents.values())

    play(scenario)


def test_the_longest_prompt_is_served(play: Callable[[Scenario], None]) -> None:
    """The limit that the message names is itself within it."""
    longest = PROFILES["h200"].max_tokens

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        assert (await http.post(URL, json={"prompt_tokens": longest})).status_code == 200
        refused = await http.post(URL, json={"prompt_tokens": longest + 1})
        assert f"at most {longest}" in refused.json()["error"]["message"]

    play(scenario)


def test_a_recorded_profile_sets_the_limits(play: Callable[..., None]) -> None:
    """Prompts that are shorter than what was measured are refused, and answers that grow beyond it."""
    decode = tuple(DecodeSteps(tokens, ((1, 0.01), (4, 0.02))) for tokens in (100, 400))
    mine = ComputeProfile(
        "mine", "made up", ((50, 0.1), (9000, 1.0)), bs_max=4, from_tokens=50, decode=decode
    )

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        for prompt, answer, found in (
            (49, 4, "at least 50"),
            (99, 4, "from 100 to 400"),
            (398, 4, "from 100 to 400"),
        ):
            refused = await http.post(URL, json={"prompt_tokens": prompt, "max_tokens": answer})
            assert refused.status_code == 400
            assert found in refused.json()["error"]["message"]
        for prompt in (100, 397):
            assert (await http.post(URL, json={"prompt_tokens": prompt, "max_tokens": 4})).status_code == 200

    play(scenario, profiles={"h20": mine})


def test_an_id_serves_once(play: Callable[[Scenario], None]) -> None:
    """A request id that has been used is refused, also after its request has ended."""

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        codes = [(await http.post(URL, json={"request_id": 3})).status_code for _ in range(2)]
        assert codes == [200, 409]

    play(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_before_the_first_token_is_503(play: Callable[..., None], stream: bool) -> None:
    """When nothing has been sent yet, the status says that it failed, and the body why."""

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        asking = asyncio.create_task(http.post(URL, json={"prompt_tokens": LONG_TOKENS, "stream": stream}))
        message = await agents["prefill-a1"].messages.get()
        agents["prefill-a1"].send("failed", id=message["id"], cause="the link is down")
        response = await asking
        assert (response.status_code, response.json()["error"]["message"]) == (503, "the link is down")

    play(scenario, answering=False, failures=FINAL)


def test_kv_that_no_pool_could_hold_is_the_client_s_fault(play: Callable[..., None]) -> None:
    """400, with what there is room for; nobody is told of the request."""
    transport = make_config("router", Path()).transport
    small = msgspec.structs.replace(transport, receive_pool_bytes=1000)

    async def scenario(http: httpx.AsyncClient, agents: Agents) -> None:
        response = await http.post(URL, json={"prompt_tokens": SHORT_TOKENS})
        assert response.status_code == 400
        assert "an instance holds at most 1000" in response.json()["error"]["message"]
        assert all(agent.messages.empty() for agent in agents.values())

    play(scenario, transport=small)


@asynccontextmanager
async def over_tcp(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """The application behind a real server, for what a client sees while a stream goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            yield http
        server.should_exit = True
        await serving


def test_a_failure_in_the_middle_of_a_stream_is_told_in_it(tmp_path: Path) -> None:
    """Tokens are there when generated; after them the cause comes as an event, and [DONE] all the same."""

    async def scenario() -> None:
        settings = msgspec.structs.replace(make_config("router", tmp_path, NETWORK), failures=FINAL)
        body = {"prompt_tokens": LONG_TOKENS, "stream": True}
        async with (
            asyncio.timeout(WAIT_S),
            fake_agents(settings) as agents,
            over_tcp(router.build(settings)) as http,
        ):
            answer = http.stream("POST", URL, json=body)
            opening = asyncio.create_task(answer.__aenter__())
            message = await agents["prefill-a1"].messages.get()
            decode = agents[message["decode"]]
            decode.send("tokens", items=[[message["id"], 1, False]])
            lines = (await opening).aiter_lines()
            assert json.loads((await anext(lines))[6:])["usage"]["completion_tokens"] == 1
            decode.send("failed", id=message["id"], cause="out of memory")
            rest = [line async for line in lines if line]
            assert json.loads(rest[0][6:])["error"]["message"] == "out of memory"
            assert rest[1:] == ["data: [DONE]"]
            await answer.__aexit__(None, None, None)

    asyncio.run(scenario())


def test_a_stream_shows_signs_of_life_before_its_client_gives_up(tmp_path: Path) -> None:
    """Comments, before the first token and between tokens; a retry in between is just a longer wait."""

    async def scenario() -> None:
        settings = msgspec.structs.replace(
            make_config("router", tmp_path, NETWORK), timeouts=Timeouts(client_ns=300_000_000)
        )
        body = {"prompt_tokens": LONG_TOKENS, "stream": True, "max_tokens": 4}
        async with (
            asyncio.timeout(WAIT_S),
            fake_agents(settings) as agents,
            over_tcp(router.build(settings)) as http,
        ):
            answer = http.stream("POST", URL, json=body)
            opening = asyncio.create_task(answer.__aenter__())
            message = await agents["prefill-a1"].messages.get()
            response = await opening
            assert response.status_code == 200
            lines = response.aiter_lines()
            for _ in range(2):
                assert await next_line(lines) == ": waiting"
            decode = agents[message["decode"]]
            decode.send("tokens", items=[[message["id"], 1, False]])
            while (line := await next_line(lines)) == ": waiting":
                pass
            assert json.loads(line[6:])["usage"]["completion_tokens"] == 1
            assert await next_line(lines) == ": waiting"
            decode.send("failed", id=message["id"], cause="out of memory")
            again = await agents["prefill-b1"].messages.get()
            agents[again["decode"]].send("tokens", items=[[again["id"], 1, False], [again["id"], 3, True]])
            rest = [line async for line in lines if line and line != ": waiting"]
            counts = [json.loads(line[6:])["usage"]["completion_tokens"] for line in rest[:-1]]
            assert (counts, rest[-1]) == ([2, 4], "data: [DONE]")
            await answer.__aexit__(None, None, None)

    asyncio.run(scenario())


async def next_line(lines: AsyncIterator[str]) -> str:
    """The next one that is not empty."""
    while not (line := await anext(lines)):
        pass
    return line


def test_metrics_are_what_prometheus_reads(play: Callable[[Scenario], None]) -> None:
    """The exposition parses, counts requests by route and end, and shows the threshold."""

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        for tokens in (LONG_TOKENS, SHORT_TOKENS, SHORT_TOKENS):
            await http.post(URL, json={"prompt_tokens": tokens})
        threshold = None
        while threshold != THRESHOLD_TOKENS:  # set by the control loop
            await asyncio.sleep(0)
            response = await http.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain")
            families = {one.name: one for one in text_string_to_metric_families(response.text)}
            threshold = families["router_threshold_tokens"].samples[0].value
        ended = {
            (sample.labels["route"], sample.labels["state"]): sample.value
            for sample in families["router_requests"].samples
            if sample.name == "router_requests_total"
        }
        assert ended == {("prfaas", "completed"): 1, ("pd", "completed"): 2}
        counts = {
            sample.labels["route"]: sample.value
            for sample in families["router_time_to_first_token_seconds"].samples
            if sample.name.endswith("_count")
        }
        assert counts == {"prfaas": 1, "pd": 2}

    play(scenario)


def test_health(play: Callable[[Scenario], None]) -> None:
    """A router that answers is healthy."""

    async def scenario(http: httpx.AsyncClient, _agents: Agents) -> None:
        response = await http.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})

    play(scenario)


def test_a_client_that_goes_away_ends_its_request(tmp_path: Path) -> None:
    """Before the first token: both instances are told, and nothing is held for it."""
    settings = make_config("router", tmp_path, NETWORK)
    body = json.dumps({"prompt_tokens": 9, "max_tokens": 4, "stream": True}).encode()
    scope = {
        "type": "http", "method": "POST", "path": URL, "query_string": b"", "http_version": "1.1",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip

    async def scenario() -> None:
        app = router.build(settings)
        async with fake_agents(settings) as agents, app.router.lifespan_context(app):
            gone = asyncio.Event()
            parts = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> dict[str, Any]:
                if parts:
                    return parts.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            asked = asyncio.create_task(app(scope, receive, send))
            async with asyncio.timeout(WAIT_S):
                assert (await agents["prefill-b1"].messages.get())["op"] == "prefill"
                gone.set()
                assert (await agents["prefill-b1"].messages.get())["op"] == "cancel"
                await asked

    asyncio.run(scenario())
