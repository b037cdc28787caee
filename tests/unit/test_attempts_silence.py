"""Instances that are silent, requests that stand still, and a router that was frozen itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.fleet import Flight
from tests.unit.agent_config import LONG_TOKENS, SHORT_TOKENS, make_config
from tests.unit.dispatch_bench import Bench, Scenario, play_on, quick, until

Play = Callable[..., None]
ROUTER_S, LEASE_S, SILENCE_S = 0.8, 0.5, 0.2


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario against a fresh dispatcher that is quick to give up."""

    def run(scenario: Scenario, policy: str = "retry", **changes: Any) -> None:
        failing = {name: changes.pop(name) for name in ("attempts", "flaws") if name in changes}
        play_on(tmp_path, scenario, **{**quick(policy, **failing), **changes})

    return run


def health(bench: Bench) -> list[tuple[str, bool]]:
    return [(line["instance"], line["up"]) for line in bench.journal("health")]


def up(bench: Bench, name: str) -> bool:
    return bench.dispatcher._fleet.instances[name].up


def test_a_silent_instance_gets_nothing_new_and_is_given_up_after_the_lease(play: Play) -> None:
    """Until then what it has may still come to a good end."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        bench.freeze("prefill-a1")
        silent_s = time.monotonic()
        await until(lambda: not up(bench, "prefill-a1"))
        assert time.monotonic() - silent_s >= SILENCE_S * 0.7
        assert [bench.submit(LONG_TOKENS).prefill for _ in range(2)] == ["prefill-a2"] * 2
        assert (flight.attempt, flight.prefill, bench.journal("retry")) == (0, "prefill-a1", [])
        await until(lambda: flight.attempt == 1)
        assert time.monotonic() - silent_s >= LEASE_S * 0.8
        assert flight.prefill == "prefill-a2"
        (line,) = bench.journal("retry")
        assert line["cause"].startswith("prefill-a1 has been silent for 0.")
        bench.thaw("prefill-a1")
        await until(lambda: up(bench, "prefill-a1"))
        assert (await bench.told("prefill-a1", "cancel"))["id"] == flight.id
        assert health(bench) == [("prefill-a1", False), ("prefill-a1", True)]

    play(scenario)


def test_what_a_silent_instance_has_goes_on_when_it_is_back_in_time(play: Play) -> None:
    """What was said meanwhile is told then, both ways."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        await bench.told("prefill-a1", "prefill")
        bench.freeze("prefill-a1")
        await until(lambda: not up(bench, "prefill-a1"))
        bench.agents["prefill-a1"].send("prefilled", id=flight.job)
        bench.thaw("prefill-a1")
        await until(lambda: up(bench, "prefill-a1"))
        await bench.decode_all(flight)
        assert (flight.attempt, bench.journal("retry"), bench.held()) == (0, [], [])

    play(scenario)


def test_what_does_not_move_fails_at_the_router(play: Play) -> None:
    """Nobody says anything of it: both legs are told, nothing is held."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        began_s = time.monotonic()
        assert (await flight.next(), flight.cause) == (0, "nothing moved for 0.8 s")
        assert time.monotonic() - began_s >= ROUTER_S
        for name in (flight.prefill, flight.decode):
            assert (await bench.told(name, "cancel"))["id"] == flight.id
        assert bench.held() == []
        assert [(line["action"], line["attempt"]) for line in bench.journal("retry")] == [("fail", 0)]

    play(scenario)


def queued(bench: Bench, _flights: list[Flight]) -> None:
    bench.agents["prefill-b1"].beat["computing"] = True


def moving(bench: Bench, flights: list[Flight]) -> None:
    for flight in flights:
        bench.agents["prefill-b1"].send("prefilled", id=flight.job)
    bench.agents["prefill-b1"].beat["moved"] = [flight.job for flight in flights]


def decoding(bench: Bench, flights: list[Flight]) -> None:
    for flight in flights:
        bench.agents["prefill-b1"].send("sent", id=flight.job)
    for name in ("decode-b2", "decode-b3"):
        bench.agents[name].beat["decoding"] = True


@pytest.mark.parametrize("how", [queued, moving, decoding])
def test_beats_keep_alive_what_waits_in_line(play: Play, how: Callable[[Bench, list[Flight]], None]) -> None:
    """For prefill where something is computed, on its way where bytes move, for a batch that decodes."""

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(SHORT_TOKENS) for _ in range(4)]
        how(bench, flights)
        await asyncio.sleep(1.3 * ROUTER_S)
        assert [flight.cause for flight in flights] == [None] * 4
        for agent in bench.agents.values():
            agent.beat = {"computing": False, "moved": [], "decoding": False}
        await until(lambda: all(flight.cause for flight in flights))
        assert bench.held() == []

    play(scenario)


def test_a_beat_keeps_alive_only_what_it_speaks_of(play: Play) -> None:
    """Prefill computes: that is no news of what has left its queue; a batch is none of what has not come."""

    async def scenario(bench: Bench) -> None:
        waiting, sending = bench.submit(SHORT_TOKENS), bench.submit(SHORT_TOKENS)
        bench.agents["prefill-b1"].send("prefilled", id=sending.job)
        bench.agents["prefill-b1"].beat["computing"] = True
        for name in ("decode-b2", "decode-b3"):
            bench.agents[name].beat["decoding"] = True
        assert await sending.next() == 0
        assert (sending.cause, waiting.cause) == ("nothing moved for 0.8 s", None)

    play(scenario)


def test_a_router_that_was_frozen_blames_nobody(play: Play) -> None:
    """Whatever its clock says when it goes on: also an instance that was silent before gets its time."""

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(tokens) for tokens in (LONG_TOKENS, SHORT_TOKENS)]
        bench.freeze("prefill-a1")
        await until(lambda: not up(bench, "prefill-a1"))
        time.sleep(ROUTER_S + 0.3)  # noqa: ASYNC251 - the program stands still
        await asyncio.sleep(0.1)
        assert [(one.attempt, one.cause) for one in flights] == [(0, None)] * 2
        assert health(bench) == [("prefill-a1", False)]
        bench.thaw("prefill-a1")
        for flight in flights:
            await bench.decode_all(flight)

    play(scenario)


DESTINATION_FIRST = {
    "transport": msgspec.structs.replace(
        make_config("router", Path()).transport, handover="destination_first"
    )
}


def test_prefill_hears_of_a_request_once_decode_has_room(play: Play) -> None:
    """With `destination_first`: not before, and then at once."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        assert (await bench.told("decode-b2", "expect"))["id"] == flight.job
        await asyncio.sleep(0.05)
        assert bench.untold("prefill-a1", "prefill")
        assert bench.dispatcher._view(flight.sent_ns).active_prfaas == 0
        bench.agents["decode-b2"].send("reserved", id=flight.job)
        assert (await bench.told("prefill-a1", "prefill"))["id"] == flight.job
        await bench.decode_all(flight)
        assert bench.held() == []

    play(scenario, **DESTINATION_FIRST)


def test_what_waits_for_room_is_kept_alive_by_a_batch_and_placed_anew_without(play: Play) -> None:
    """A decode instance that serves others will have room; one that dies never will."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        bench.agents["decode-b2"].beat["decoding"] = True
        await asyncio.sleep(1.5 * ROUTER_S)
        assert flight.cause is None
        await bench.die("decode-b2")
        assert (await bench.told("decode-b3", "expect"))["id"] == flight.job
        assert (await bench.told("prefill-a1", "cancel"))["id"] == flight.id
        assert bench.untold("prefill-a1", "prefill")
        bench.agents["decode-b3"].send("reserved", id=flight.job)
        assert (await bench.told("prefill-a1", "prefill"))["id"] == flight.job
        await bench.decode_all(flight)
        assert bench.held() == []

    play(scenario, **DESTINATION_FIRST)


@pytest.mark.parametrize("flaws", [(), ("blacklist_for_ever",)])
def test_who_was_silent_once(play: Play, flaws: tuple[str, ...]) -> None:
    """Gets work again when it answers; with the flaw never."""

    async def scenario(bench: Bench) -> None:
        bench.freeze("prefill-a1")
        await until(lambda: bool(health(bench)))
        bench.thaw("prefill-a1")
        await until(lambda: len(health(bench)) == 2)
        assert health(bench) == [("prefill-a1", False), ("prefill-a1", True)]
        expected = "prefill-a2" if flaws else "prefill-a1"
        assert bench.submit(LONG_TOKENS).prefill == expected

    play(scenario, flaws=flaws)


@pytest.mark.parametrize("flaws", [(), ("no_cancel",)])
def test_the_other_leg_hears_of_a_failure(play: Play, flaws: tuple[str, ...]) -> None:
    """With the flaw it does not, and goes on with what nobody wants."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        bench.agents["prefill-a1"].send("failed", id=flight.job, cause="the link is down")
        await until(lambda: flight.attempt == 1)
        await asyncio.sleep(0.05)
        assert bench.untold("decode-b2", "cancel") == bool(flaws)
        await bench.decode_all(flight)

    play(scenario, flaws=flaws)


def test_with_a_flaw_nobody_gives_up_waiting(play: Play) -> None:
    """Neither what stands still, nor what a silent instance has."""

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(tokens) for tokens in (LONG_TOKENS, SHORT_TOKENS)]
        bench.freeze("prefill-a1")
        await asyncio.sleep(1.5 * ROUTER_S)
        assert [(one.attempt, one.cause) for one in flights] == [(0, None)] * 2
        assert not up(bench, "prefill-a1")
        bench.thaw("prefill-a1")

    play(scenario, flaws=("no_timeouts",))
