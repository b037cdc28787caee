"""What becomes of a request whose instance or KV is lost: tried again, computed at home, or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.config import Cache
from agents.fleet import Flight
from agents.profiles import MODELS, PROFILES
from tests.unit.agent_config import LONG_TOKENS, SHORT_TOKENS, make_config
from tests.unit.dispatch_bench import OUTPUT_TOKENS, Bench, Scenario, play_on, quick, until

CHAIN = tuple(range(LONG_TOKENS // 512))
POLICIES = ("recompute", "retry", "fail")
CAUSES = {
    "prefill dies": "prefill-a1 went away",
    "prefill dies when it has computed": "prefill-a1 went away",
    "decode dies before the KV": "decode-b2 went away",
    "decode dies while decoding": "decode-b2 went away",
    "the transfer fails": "lease ran out",
    "the KV is damaged": "a chunk was damaged again and again",
}
HAD = 4
"""Tokens that the client has when the decode instance dies."""

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario against a fresh dispatcher that is quick to give up, with caches."""

    def run(scenario: Scenario, policy: str = "recompute", **changes: Any) -> None:
        failing = {name: changes.pop(name) for name in ("attempts", "flaws") if name in changes}
        cache = Cache(prfaas_bytes=10**10, pd_bytes=10**10)
        play_on(tmp_path, scenario, **{**quick(policy, **failing), "cache": cache, **changes})

    return run


def retries(bench: Bench) -> list[tuple[Any, ...]]:
    """Attempt, action and cause of each line about a failure, and where it went."""
    fields = ("id", "attempt", "action", "cause", "route", "prefill", "decode")
    return [tuple(line[field] for field in fields) for line in bench.journal("retry")]


def at_rest(bench: Bench) -> bool:
    """Whether nothing is held for any request, by an instance or in a cache."""
    stats = bench.dispatcher._prefixes.stats().values()
    return not bench.held() and all(one.transfer_blocks == 0 for one in stats)


async def lose(bench: Bench, flight: Flight, loss: str) -> None:
    """Let a request that was just submitted come to this."""
    prefill, decode = bench.agents[flight.prefill], bench.agents[flight.decode]
    if loss != "prefill dies":
        prefill.send("prefilled", id=flight.job)
        await until(lambda: flight.prefilled)
    match loss:
        case "prefill dies" | "prefill dies when it has computed":
            await bench.die(flight.prefill)
        case "decode dies before the KV":
            await bench.die(flight.decode)
        case "decode dies while decoding":
            decode.send("tokens", items=[[flight.job, 1, False], [flight.job, HAD, False]])
            assert (await flight.next(), await flight.next()) == (1, HAD)
            await bench.die(flight.decode)
        case "the transfer fails":
            prefill.send("failed", id=flight.job, cause=CAUSES[loss])
        case "the KV is damaged":
            decode.send("failed", id=flight.job, cause=CAUSES[loss])


def say_old_words(bench: Bench, names: tuple[str, ...], job: int) -> None:
    """Everything that instances might still say of an attempt that is over."""
    for name in names:
        agent = bench.agents[name]
        if agent._server is not None:
            agent.send("prefilled", id=job)
            agent.send("sent", id=job)
            agent.send("tokens", items=[[job, 1, False], [job, OUTPUT_TOKENS, True]])
            agent.send("failed", id=job, cause="old news")


@pytest.mark.parametrize("loss", CAUSES)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_lost_goes_the_way_of_the_policy(play: Play, policy: str, loss: str) -> None:
    """Both legs that live are told, it goes where the policy says or ends with the cause, nothing is held."""
    cause = CAUSES[loss]
    dead = cause.partition(" ")[0] if "dies" in loss else ""
    decode = "decode-b2" if dead == "prefill-a1" else "decode-b3"
    home, own = ("pd", "prefill-b1"), ("prfaas", "prefill-a2")
    if dead == "decode-b2":
        own = ("prfaas", "prefill-a1")

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS, chain=CHAIN)
        assert (flight.prefill, flight.decode) == ("prefill-a1", "decode-b2")
        await lose(bench, flight, loss)
        await until(lambda: bench.journal("retry") != [])
        for name in {"prefill-a1", "decode-b2"} - {dead}:
            assert (await bench.told(name, "cancel"))["id"] == flight.id
        if policy == "fail":
            assert (await flight.next(), flight.cause) == (0, cause)
            assert retries(bench) == [(0, 0, "fail", cause, "prfaas", "prefill-a1", "decode-b2")]
        else:
            route, prefill = home if policy == "recompute" else own
            assert (flight.attempt, flight.route, flight.prefill, flight.decode) == (
                1,
                route,
                prefill,
                decode,
            )
            assert retries(bench) == [(0, 1, policy, cause, route, prefill, decode)]
            assert (await bench.told(prefill, "prefill"))["id"] == flight.job != flight.id
            assert (await bench.told(decode, "expect"))["id"] == flight.job
        say_old_words(bench, ("prefill-a1", "decode-b2"), flight.id)
        await asyncio.sleep(0.02)
        assert flight.progress.empty()
        if policy != "fail":
            assert not flight.prefilled
            await bench.decode_all(flight)
            assert flight.cause is None
        await until(lambda: at_rest(bench))
        assert (len(retries(bench)), flight.progress.empty()) == (1, True)

    play(scenario, policy)


def test_tokens_that_the_client_has_are_not_generated_again(play: Play) -> None:
    """They are a part of the prompt of the next attempt, which generates the rest; so at every loss."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(SHORT_TOKENS)
        bench.agents["decode-b2"].send("tokens", items=[[flight.job, 1, False], [flight.job, 3, False]])
        assert (await flight.next(), await flight.next()) == (1, 3)
        await bench.die("decode-b2")
        expect = await bench.told("decode-b3", "expect")
        kv_bytes = MODELS["internal_1t"].kv_bytes(SHORT_TOKENS + 3, 0.001)
        assert (expect["output_tokens"], expect["kv_bytes"]) == (OUTPUT_TOKENS - 3, kv_bytes)
        assert expect["context_tokens"] == SHORT_TOKENS + 3
        await bench.told("prefill-b1", "prefill")
        prefill = await bench.told("prefill-b1", "prefill")
        assert [prefill[name] for name in ("tokens", "kv_tokens", "prompt_tokens")] == [SHORT_TOKENS + 3] * 3
        await bench.agents["decode-b2"].start()
        await until(lambda: bench.dispatcher._fleet.instances["decode-b2"].up)
        bench.agents["decode-b3"].send("tokens", items=[[flight.job, 1, False], [flight.job, 2, False]])
        assert (await flight.next(), await flight.next()) == (4, 5)
        await bench.die("decode-b3")
        assert (await bench.told("decode-b2", "expect"))["output_tokens"] == OUTPUT_TOKENS
        assert (await bench.told("decode-b2", "expect"))["output_tokens"] == OUTPUT_TOKENS - 5
        bench.agents["decode-b2"].send("tokens", items=[[flight.job, 1, False], [flight.job, 3, True]])
        assert (await flight.next(), await flight.next()) == (6, OUTPUT_TOKENS)
        answers = bench.dispatcher._attempts.answered
        assert len(answers) <= 1, "one time to first token"
        await until(lambda: at_rest(bench))

    play(scenario, "retry")


def test_the_last_attempt_s_cause_is_what_it_failed_of(play: Play) -> None:
    """So many attempts and no more; the journal has each."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        for attempt in range(3):
            await until(lambda attempt=attempt: flight.attempt == attempt)  # type: ignore[misc]
            bench.agents[flight.prefill].send("failed", id=flight.job, cause=f"cause {attempt}")
        assert (await flight.next(), flight.cause) == (0, "cause 2")
        assert [(one[1], one[2], one[3], one[5]) for one in retries(bench)] == [
            (1, "retry", "cause 0", "prefill-a2"),
            (2, "retry", "cause 1", "prefill-a1"),
            (2, "fail", "cause 2", "prefill-a1"),
        ]
        await until(lambda: at_rest(bench))

    play(scenario, "retry")


@pytest.mark.parametrize(("policy", "prefill"), [("recompute", "prefill-b1"), ("retry", ""), ("fail", "")])
def test_a_cluster_without_an_instance_at_arrival(play: Play, policy: str, prefill: str) -> None:
    """The decision names nobody; then it is computed at home, waits for one that comes back, or ends."""
    cause = "no prfaas prefill instance is up"

    async def scenario(bench: Bench) -> None:
        for name in ("prefill-a1", "prefill-a2"):
            await bench.die(name)
        flight = bench.submit(LONG_TOKENS, chain=CHAIN)
        (decision,) = bench.journal("decision")
        assert (decision["route"], decision["prefill"], decision["decode"]) == ("prfaas", None, None)
        assert (flight.prefill, flight.cause) == ("", cause if policy == "fail" else None)
        if policy == "recompute":
            await until(lambda: flight.prefill == prefill)
        if policy == "retry":
            say_old_words(bench, ("prefill-b1", "decode-b2"), flight.id)
            await asyncio.sleep(0.02)
            assert (bench.journal("retry"), bench.held(), flight.progress.empty()) == ([], [flight.id], True)
            await bench.agents["prefill-a2"].start()
            await until(lambda: flight.prefill == "prefill-a2")
        (line,) = bench.journal("retry")
        assert (line["cause"], line["prefill"]) == (cause, flight.prefill or None)
        assert (line["attempt"], line["action"]) == (flight.attempt, policy)
        assert flight.attempt == (0 if policy == "fail" else 1)
        if policy == "fail":
            assert await flight.next() == 0
        else:
            await bench.decode_all(flight)
        await until(lambda: at_rest(bench))

    play(scenario, policy)


def test_what_waits_for_an_instance_in_vain_fails(play: Play) -> None:
    """After the router's time; its last attempt is the one that was lost."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(SHORT_TOKENS)
        await bench.die("prefill-b1")
        await until(lambda: flight.cause is not None)
        assert (await flight.next(), flight.cause) == (0, "prefill-b1 went away, and nothing moved for 0.8 s")
        assert [one[1:3] for one in retries(bench)] == [(0, "fail")]
        await bench.agents["prefill-b1"].start()
        await until(lambda: bench.dispatcher._fleet.instances["prefill-b1"].up)
        assert at_rest(bench)
        assert bench.untold("prefill-b1", "prefill")

    play(scenario)


def test_what_grew_too_long_for_any_instance_fails(play: Play) -> None:
    """A prompt of the longest kind cannot be computed with the tokens behind it: it ends with the cause."""
    longest = min(PROFILES[name].max_tokens for name in ("h20", "h200"))

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(longest)
        bench.agents["decode-b2"].send("tokens", items=[[flight.job, 1, False]])
        assert await flight.next() == 1
        await bench.die("decode-b2")
        assert (await flight.next(), flight.cause) == (0, "decode-b2 went away")
        assert [one[1:3] for one in retries(bench)] == [(0, "fail")]
        await until(lambda: at_rest(bench))

    play(scenario)


def test_what_grew_too_large_for_a_pool_fails(play: Play) -> None:
    """The KV of the longer prompt has no room at either end."""
    most = MODELS["internal_1t"].kv_bytes(LONG_TOKENS, 0.001)
    transport = msgspec.structs.replace(make_config("router", Path()).transport, send_pool_bytes=most)

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(LONG_TOKENS) for _ in range(2)]
        bench.agents["decode-b2"].send("tokens", items=[[flights[0].job, 1, False]])
        assert await flights[0].next() == 1
        for flight in flights:
            bench.agents[flight.prefill].send("failed", id=flight.job, cause="the link is down")
        assert (await flights[0].next(), flights[0].cause) == (0, "the link is down")
        await until(lambda: flights[1].attempt == 1)

    play(scenario, transport=transport)


def test_a_program_that_was_restarted_has_lost_everything(play: Play) -> None:
    """Also where it is back before anybody has noticed: what it had is placed anew, and it gets new work."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        agent = bench.agents[flight.prefill]
        await bench.told("prefill-a1", "prefill")
        await agent.die()
        await agent.start()
        await until(lambda: flight.attempt == 1)
        assert flight.prefill == "prefill-a2"
        (line,) = bench.journal("retry")
        assert line["cause"] in ("prefill-a1 was restarted", "prefill-a1 went away")
        await until(lambda: bench.dispatcher._fleet.instances["prefill-a1"].up)
        assert bench.submit(LONG_TOKENS).prefill == "prefill-a1"
        await bench.told("prefill-a1", "prefill")

    play(scenario, "retry")


def test_what_is_computed_at_home_is_not_compressed(play: Play) -> None:
    """Compression pays over the link between the clusters; within one the KV goes as it is."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        flight.decision = flight.decision.__class__("prfaas", 0, "as told", compress=True)
        bench.agents["prefill-a1"].send("failed", id=flight.job, cause="the link is down")
        assert (await bench.told("prefill-b1", "prefill"))["compress"] is False
        assert (await bench.told("decode-b3", "expect"))["unpack_bytes"] == 0

    play(scenario)
