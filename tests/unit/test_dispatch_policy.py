"""The dispatcher with a policy that does what the test says: roles, prefixes, compression, the record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import config
from agents.policies import POLICIES
from agents.policies.view import Decision, Egress, Policy, Request, View
from agents.profiles import MODELS
from tests.unit.agent_config import LONG_TOKENS, SHORT_TOKENS, make_config
from tests.unit.dispatch_bench import ELSEWHERE, OUTPUT_TOKENS, Bench, Scenario, Scripted, play_on, until


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario with a policy of its own, looking every 20 ms, and with caches."""

    def run(scenario: Scenario, policy: Policy, **changes: Any) -> None:
        monkeypatch.setitem(POLICIES, "scripted", policy)
        scheduling = msgspec.structs.replace(
            make_config("router", tmp_path).scheduling, policy="scripted", interval_ns=20_000_000
        )
        cache = config.Cache(prfaas_bytes=10**10, pd_bytes=10**10)
        play_on(tmp_path, scenario, scheduling=scheduling, cache=cache, **changes)

    return run


def test_the_policy_changes_roles(scripted: Callable[..., None]) -> None:
    """One instance is told, gets no new work while it converts, and does the other work afterwards."""
    policy = Scripted(wanted=2)

    async def scenario(bench: Bench) -> None:
        told = await bench.told("decode-b2", "become")
        assert told == {"op": "become", "role": "prefill", "conversion_s": 1.0}
        intervals = len(bench.journal("control"))
        assert [bench.submit(SHORT_TOKENS).decode for _ in range(3)] == ["decode-b3"] * 3
        await until(lambda: len(bench.journal("control")) > intervals + 3)
        assert (bench.journal("control")[-1]["n_prefill"], bench.journal("control")[-1]["n_decode"]) == (1, 1)
        bench.agents["decode-b2"].send("became", role="prefill")
        await until(lambda: bench.journal("control")[-1]["n_prefill"] == 2)
        assert bench.submit(SHORT_TOKENS).prefill == "decode-b2", "prefill-b1 has three requests"
        assert bench.untold("decode-b3", "become")
        policy.wanted = 1
        assert (await bench.told("decode-b2", "become"))["role"] == "decode"
        (first, second) = bench.journal("role")
        assert (first["instance"], first["role"]) == ("decode-b2", "prefill")
        assert second["role"] == "decode"

    scripted(scenario, policy)


def test_an_instance_that_dies_while_it_converts_is_just_gone(scripted: Callable[..., None]) -> None:
    """Its requests fail, the others are served, and the last decode instance keeps its role."""
    policy = Scripted(wanted=3)

    async def scenario(bench: Bench) -> None:
        held = bench.submit(SHORT_TOKENS)
        await bench.told("decode-b3", "become")
        await bench.agents["decode-b3"].die()
        await until(lambda: bench.dispatcher._fleet.converting == 0)
        intervals = len(bench.journal("control"))
        await until(lambda: len(bench.journal("control")) > intervals + 3)
        assert bench.untold("decode-b2", "become")
        assert held.decode == "decode-b2"
        await bench.decode_all(held)

    scripted(scenario, policy)


CHAIN = tuple(range(16))
CACHED_TOKENS, NEXT_TOKENS = 8192, 12_000


async def serve_first(bench: Bench, policy: Scripted) -> None:
    """One prompt is computed in the PD cluster, where it stays cached; the next one goes elsewhere."""
    first = bench.submit(CACHED_TOKENS, chain=CHAIN)
    await bench.decode_all(first)
    bench.agents[first.prefill].send("sent", id=first.id)
    policy.decision = ELSEWHERE


def at_rest(bench: Bench) -> bool:
    """Whether neither an instance nor the caches hold anything for a request."""
    manager = bench.dispatcher._prefixes.manager
    assert manager is not None
    return not bench.held() and all(stats.transfer_blocks == 0 for stats in manager.stats().values())


def test_a_prefix_is_fetched_before_the_rest_is_computed(scripted: Callable[..., None]) -> None:
    """The other cluster ships it, nothing is computed before it is there, and the journal says so."""
    policy = Scripted()

    async def scenario(bench: Bench) -> None:
        await serve_first(bench, policy)
        flight = bench.submit(NEXT_TOKENS, chain=(*CHAIN, 100, 101))
        ship = await bench.told("prefill-b1", "ship")
        assert (ship["kv_tokens"], ship["to"]) == (CACHED_TOKENS, "prefill-a1")
        await asyncio.sleep(0.05)
        assert bench.untold("prefill-a1", "prefill")
        line = bench.journal("decision")[-1]
        assert (line["cached_prfaas_tokens"], line["cached_pd_tokens"]) == (0, 8192)
        assert (line["cache"], line["prefill"]) == ("best", "prefill-a1")
        bench.agents["prefill-a1"].send("fetched", id=ship["id"])
        bench.agents["prefill-b1"].send("sent", id=ship["id"])
        prefill = await bench.told("prefill-a1", "prefill")
        assert (prefill["tokens"], prefill["kv_tokens"]) == (NEXT_TOKENS - CACHED_TOKENS,) * 2
        await bench.decode_all(flight)
        await until(lambda: at_rest(bench))
        (fetch,) = bench.journal("fetch")
        assert (fetch["request"], fetch["tokens"], fetch["arrived"]) == (flight.id, CACHED_TOKENS, True)

    scripted(scenario, policy)


def test_a_token_that_overtakes_its_prefill_loses_no_prefix(scripted: Callable[..., None]) -> None:
    """Over a bad link the first token is there before the word of its prefill: it is cached all the same."""
    policy = Scripted(decision=ELSEWHERE)

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(CACHED_TOKENS, chain=CHAIN)
        bench.agents[flight.decode].send("tokens", items=[[flight.id, 1, False]])
        assert await flight.next() == 1
        bench.agents[flight.prefill].send("prefilled", id=flight.id)
        bench.agents[flight.prefill].send("sent", id=flight.id)
        assert bench.dispatcher._prefixes.cached(CHAIN, CACHED_TOKENS + 1)[0] == CACHED_TOKENS

    scripted(scenario, policy)


def test_a_prefix_that_does_not_come_is_computed(scripted: Callable[..., None]) -> None:
    """Its transfer fails: the whole prompt is computed, and only what decode lacks is sent."""
    policy = Scripted()

    async def scenario(bench: Bench) -> None:
        await serve_first(bench, policy)
        flight = bench.submit(NEXT_TOKENS, chain=(*CHAIN, 100, 101))
        ship = await bench.told("prefill-b1", "ship")
        bench.agents["prefill-b1"].send("failed", id=ship["id"], cause="connection to prefill-a1 broke")
        prefill = await bench.told("prefill-a1", "prefill")
        assert (prefill["tokens"], prefill["kv_tokens"]) == (NEXT_TOKENS, NEXT_TOKENS - CACHED_TOKENS)
        await bench.decode_all(flight)
        await until(lambda: at_rest(bench))

    scripted(scenario, policy)


@pytest.mark.parametrize(
    ("gone", "died", "lost"),
    [
        ([], "prefill-a1", True),
        ([], "prefill-b1", False),
        ([], "decode-b2", True),
        (["prefill-b1"], "decode-b3", False),
        (["prefill-b1", "decode-b3"], "decode-b2", True),
    ],
    ids=["who gets it", "who sends it", "who decodes", "a decode instance sends", "who decodes sends, too"],
)
def test_a_death_while_a_prefix_is_under_way(
    scripted: Callable[..., None], gone: list[str], died: str, *, lost: bool
) -> None:
    """A request is lost with its instances, or does without the prefix; in the end nothing is held."""
    policy = Scripted()

    async def scenario(bench: Bench) -> None:
        await serve_first(bench, policy)
        for name in gone:
            await bench.die(name)
        flight = bench.submit(NEXT_TOKENS, chain=(*CHAIN, 100, 101))
        assert (flight.prefill, flight.decode) == ("prefill-a1", "decode-b2")
        await bench.die(died)
        assert flight.cause == (f"{died} went away" if lost else None)
        for number in list(bench.dispatcher._prefixes._fetches):  # a sender that nothing happened to
            bench.agents["prefill-a1"].send("fetched", id=number)
        if not lost:
            assert (await bench.told("prefill-a1", "prefill"))["tokens"] == NEXT_TOKENS
            await bench.decode_all(flight)
        await until(lambda: at_rest(bench))

    scripted(scenario, policy, failures=config.Failures(policy="fail"))


@pytest.mark.parametrize("died", ["prefill-a1", "decode-b2"])
def test_what_waited_for_a_prefix_is_computed_at_home(scripted: Callable[..., None], died: str) -> None:
    """Its instances are lost: the PD cluster computes it from what it has, and nobody ships any more."""
    policy = Scripted()

    async def scenario(bench: Bench) -> None:
        await serve_first(bench, policy)
        flight = bench.submit(NEXT_TOKENS, chain=(*CHAIN, 100, 101))
        await bench.told("prefill-b1", "ship")
        await bench.die(died)
        prefill = await bench.told("prefill-b1", "prefill")
        assert (prefill["id"], prefill["tokens"]) == (flight.job, NEXT_TOKENS - CACHED_TOKENS)
        assert (flight.attempt, flight.route, flight.waits) == (1, "pd", False)
        for number in list(bench.dispatcher._prefixes._fetches):  # a sender that nothing happened to
            bench.agents["prefill-a1"].send("fetched", id=number)
        await bench.decode_all(flight)
        await until(lambda: at_rest(bench))

    scripted(scenario, policy)


def test_compressed_kv_is_announced_with_its_size_before(scripted: Callable[..., None]) -> None:
    """Prefill is told to compress, decode how much it will have to unpack."""
    policy = Scripted(Decision("prfaas", 0, "as told", compress=True))
    transport = msgspec.structs.replace(make_config("router", Path()).transport, compression="cachegen")

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        assert (await bench.told(flight.prefill, "prefill"))["compress"] is True
        unpack_bytes = (await bench.told(flight.decode, "expect"))["unpack_bytes"]
        assert unpack_bytes == MODELS["internal_1t"].kv_bytes(LONG_TOKENS, 0.001)
        assert bench.journal("decision")[0]["compress"] is True

    scripted(scenario, policy, transport=transport)


def test_everything_that_the_policy_is_asked_is_noted(scripted: Callable[..., None]) -> None:
    """Each question has its number, in order, and all that the policy was shown."""
    policy = Scripted(ELSEWHERE)

    async def scenario(bench: Bench) -> None:
        first = bench.submit(LONG_TOKENS)
        bench.agents[first.prefill].send("prefilled", id=first.id)
        bench.agents[first.decode].send("tokens", items=[[first.id, 1, False]])
        await until(lambda: len(bench.journal("control")) > 2)
        bench.submit(SHORT_TOKENS, chain=CHAIN)
        noted = sorted([*bench.journal("decision"), *bench.journal("control")], key=lambda line: line["step"])
        assert [line["step"] for line in noted] == list(range(1, len(noted) + 1))
        assert sorted(noted, key=lambda line: line["t_ns"]) == noted
        views = [msgspec.convert(line["seen"]["view"], View) for line in noted]
        asked = [msgspec.convert(line["seen"]["request"], Request) for line in bench.journal("decision")]
        assert asked == [first.request, Request("1", SHORT_TOKENS, OUTPUT_TOKENS)]
        assert [placed.request for view in views for placed in view.placed] == asked[:1]
        (answer,) = [answer for view in views for answer in view.answered]
        assert (answer.route, answer.computed_tokens) == ("prfaas", LONG_TOKENS)
        assert views[0].egress == Egress(0.0, 0, 0, 0, 0.0, 0.0)
        assert all((view.n_p, view.n_d) == (1, 2) for view in views)

    scripted(scenario, policy)
