"""The dispatcher against agents that speak the wire protocol: where requests go, and how each one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.config import Failures
from agents.dispatch import Dispatcher
from agents.profiles import MODELS
from tests.unit.agent_config import LONG_TOKENS, SHORT_TOKENS, THRESHOLD_TOKENS, make_config
from tests.unit.dispatch_bench import OUTPUT_TOKENS, WAIT_S, Bench, play_on, quick, until

Play = Callable[..., None]
FINAL = Failures(policy="fail")


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario against a fresh dispatcher."""
    return lambda scenario, **changes: play_on(tmp_path, scenario, **changes)


def test_length_decides_the_cluster_and_load_the_instance(play: Play) -> None:
    """Above the threshold to DC A, else to DC B; within a cluster to whoever is free first."""

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(tokens) for tokens in (LONG_TOKENS, 2 * LONG_TOKENS, 20_000, SHORT_TOKENS)]
        assert [one.prefill for one in flights] == ["prefill-a1", "prefill-a2", "prefill-a1", "prefill-b1"]
        assert [one.decode for one in flights] == ["decode-b2", "decode-b3", "decode-b2", "decode-b3"]
        assert bench.submit(THRESHOLD_TOKENS).decision.route == "pd"
        assert bench.submit(THRESHOLD_TOKENS + 1).decision.route == "prfaas"
        decisions = bench.journal("decision")
        assert [line["route"] for line in decisions[:4]] == ["prfaas"] * 3 + ["pd"]
        assert all(line["reason"] for line in decisions)

    play(scenario)


def test_decode_expects_the_kv_before_prefill_starts(play: Play) -> None:
    """Both instances of a request are told of it; without a cache all of it is computed and sent."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS, request=7)
        expect = await bench.agents[flight.decode].messages.get()
        prefill = await bench.agents[flight.prefill].messages.get()
        assert expect == {
            "op": "expect",
            "id": 7,
            "output_tokens": OUTPUT_TOKENS,
            "context_tokens": LONG_TOKENS,
            "kv_bytes": MODELS["internal_1t"].kv_bytes(LONG_TOKENS, 0.001),
            "unpack_bytes": 0,
        }
        assert prefill == {
            "op": "prefill",
            "id": 7,
            "tokens": LONG_TOKENS,
            "kv_tokens": LONG_TOKENS,
            "prompt_tokens": LONG_TOKENS,
            "decode": flight.decode,
            "compress": False,
            "order_s": pytest.approx(0.0, abs=WAIT_S),
            "since_ns": flight.sent_ns,
        }

    play(scenario)


def test_a_request_that_ends_well_leaves_nothing(play: Play) -> None:
    """After the last token no instance holds the request any more."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        assert bench.held() == [flight.id]
        await bench.decode_all(flight)
        assert (flight.cause, bench.held()) == (None, [])

    play(scenario)


def test_a_prefilled_request_counts_as_decode_load_only(play: Play) -> None:
    """What has been computed is no work ahead of anybody."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        bench.agents[flight.prefill].send("prefilled", id=flight.id)
        await until(lambda: flight.prefilled)
        view = bench.dispatcher._view(flight.sent_ns)
        assert (view.queue_prfaas, view.active_prfaas, view.queue_decode) == (0, 0, 1)
        assert bench.submit(LONG_TOKENS).prefill == flight.prefill

    play(scenario)


def test_the_death_of_a_decode_instance_fails_its_requests(play: Play) -> None:
    """Each with the cause, if failures are final; the others go on, new ones go elsewhere, then nowhere."""

    async def scenario(bench: Bench) -> None:
        lost, kept = bench.submit(LONG_TOKENS), bench.submit(LONG_TOKENS)
        await bench.agents["decode-b2"].die()
        assert await lost.next() == 0
        assert lost.cause == "decode-b2 went away"
        assert bench.held() == [kept.id]
        assert bench.submit(SHORT_TOKENS).decode == "decode-b3"
        await bench.decode_all(kept)
        await bench.agents["decode-b3"].die()
        await until(lambda: not bench.held())
        refused = bench.submit(SHORT_TOKENS)
        assert (await refused.next(), refused.cause) == (0, "no decode instance is up")
        assert bench.held() == []

    play(scenario, failures=FINAL)


def test_the_death_of_a_prefill_instance_fails_what_it_had_not_delivered(
    play: Play,
) -> None:
    """Queued or computed without a token yet: failed with the cause, cancelled at decode; else it goes on."""

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(SHORT_TOKENS) for _ in range(3)]
        queued, prefilled, decoding = flights
        for flight in (prefilled, decoding):
            bench.agents["prefill-b1"].send("prefilled", id=flight.id)
        bench.agents[decoding.decode].send("tokens", items=[[decoding.id, 1, False]])
        assert await decoding.next() == 1
        await until(lambda: prefilled.prefilled)
        await bench.agents["prefill-b1"].die()
        for flight in (queued, prefilled):
            assert await flight.next() == 0
            assert flight.cause == "prefill-b1 went away"
        assert bench.held() == [decoding.id]
        cancelled: set[int] = set()
        while len(cancelled) < 2:
            for name in ("decode-b2", "decode-b3"):
                while not bench.agents[name].messages.empty():
                    message = bench.agents[name].messages.get_nowait()
                    cancelled |= {message["id"]} if message["op"] == "cancel" else set()
            await asyncio.sleep(0)
        assert cancelled == {queued.id, prefilled.id}
        refused = bench.submit(SHORT_TOKENS)
        assert (await refused.next(), refused.cause) == (0, "no pd prefill instance is up")

    play(scenario, failures=FINAL)


@pytest.mark.parametrize("teller", ["prefill", "decode"])
def test_a_failure_that_an_agent_tells_of_keeps_its_cause(play: Play, teller: str) -> None:
    """What an agent says went wrong is what the request failed of, once."""

    async def scenario(bench: Bench) -> None:
        flight = bench.submit(LONG_TOKENS)
        name = {"prefill": flight.prefill, "decode": flight.decode}[teller]
        for _ in range(2):
            bench.agents[name].send("failed", id=flight.id, cause="the link is down")
        assert (await flight.next(), flight.cause) == (0, "the link is down")
        assert (bench.held(), flight.progress.empty()) == ([], True)
        assert await bench.told("prefill-a1", "cancel") == {"op": "cancel", "id": flight.id}
        assert await bench.told("decode-b2", "cancel") == {"op": "cancel", "id": flight.id}

    play(scenario, failures=FINAL)


def test_ids_are_kept_or_new(play: Play) -> None:
    """A given id is used as it is, a missing one becomes the next free one, and neither is forgotten."""

    async def scenario(bench: Bench) -> None:
        flights = [bench.submit(SHORT_TOKENS, request) for request in (None, 41, None, 7, None)]
        assert [flight.id for flight in flights] == [0, 41, 42, 7, 43]
        await bench.decode_all(flights[1])
        assert bench.dispatcher.knows(41)
        assert not bench.dispatcher.knows(44)

    play(scenario)


def test_the_egress_is_what_dc_a_reports(play: Play) -> None:
    """Goodput and retransmissions are differences of the sums of DC A's counters; DC B does not count."""

    def signals(acked: int, retrans: int, backlog: int, rtt_s: float) -> dict[str, Any]:
        return {
            "op": "signals", "acked_bytes": acked, "retrans_bytes": retrans, "backlog_bytes": backlog,
            "rtt_s": rtt_s, "min_rtt_s": 0.0115, "active": 4 if rtt_s else 0,
        }  # fmt: skip

    async def scenario(bench: Bench) -> None:
        dispatcher, instances = bench.dispatcher, bench.dispatcher._fleet.instances
        dispatcher._hear(instances["prefill-a1"], signals(1000, 10, 5, 0.012))
        dispatcher._hear(instances["prefill-b1"], signals(999_999, 999, 999, 1.0))
        first = dispatcher._measure_egress(0.25)
        assert (first.goodput_bps, first.retrans_bytes, first.backlog_bytes) == (32_000, 10, 5)
        dispatcher._hear(instances["prefill-a1"], signals(2000, 10, 0, 0.0))
        dispatcher._hear(instances["prefill-a2"], signals(500, 1, 7, 0.02))
        second = dispatcher._measure_egress(0.5)
        assert (second.acked_bytes, second.retrans_bytes, second.backlog_bytes) == (1500, 1, 7)
        assert (second.goodput_bps, second.rtt_s, second.min_rtt_s) == (24_000, 0.02, 0.0115)

    play(scenario)


def test_the_counters_of_an_instance_that_was_restarted_begin_again(play: Play) -> None:
    """What it reported before it died is neither counted twice nor taken back."""

    def signals(acked: int) -> dict[str, Any]:
        return {
            "op": "signals", "acked_bytes": acked, "retrans_bytes": acked // 10, "backlog_bytes": 0,
            "rtt_s": 0.0, "min_rtt_s": 0.0115, "active": 0,
        }  # fmt: skip

    async def scenario(bench: Bench) -> None:
        dispatcher, instances = bench.dispatcher, bench.dispatcher._fleet.instances
        dispatcher._ticks.stop()
        dispatcher._hear(instances["prefill-a1"], signals(1000))
        dispatcher._hear(instances["prefill-a2"], signals(5000))
        dispatcher._measure_egress(1.0)
        dispatcher._hear(instances["prefill-a1"], signals(1200))
        await bench.die("prefill-a1")
        dispatcher._hear(instances["prefill-a2"], signals(5500))
        after = dispatcher._measure_egress(1.0)
        assert (after.acked_bytes, after.retrans_bytes) == (700, 70)
        dispatcher._hear(instances["prefill-a1"], signals(300))
        assert dispatcher._measure_egress(1.0).acked_bytes == 300

    play(scenario)


def test_a_router_starts_without_those_who_are_not_there(play: Play) -> None:
    """They get no work and are looked for; what needs them fails until they come."""

    async def scenario(bench: Bench) -> None:
        for name in ("prefill-a1", "prefill-b1"):
            await bench.die(name)
        again = Dispatcher(bench.dispatcher._settings)
        try:
            await again.start()
            flight = again.submit(None, LONG_TOKENS, OUTPUT_TOKENS)
            assert flight.prefill == "prefill-a2"
            absent = again.submit(None, SHORT_TOKENS, OUTPUT_TOKENS)
            assert absent.cause == "no pd prefill instance is up"
            down = [line["instance"] for line in bench.journal("health") if line["t_ns"] > again._started_ns]
            assert sorted(down) == ["prefill-a1", "prefill-b1"]
            await bench.agents["prefill-b1"].start()
            await until(lambda: again._fleet.instances["prefill-b1"].up)
            assert again.submit(None, SHORT_TOKENS, OUTPUT_TOKENS).prefill == "prefill-b1"
        finally:
            again.close()

    play(scenario, **quick("fail"))


def test_kv_that_no_pool_could_hold_is_refused(play: Play) -> None:
    """Whichever pool is the smaller one; what just fits is served."""
    most = MODELS["internal_1t"].kv_bytes(LONG_TOKENS, 0.001)
    transport = make_config("router", Path()).transport

    async def scenario(bench: Bench) -> None:
        assert bench.dispatcher.refusal(LONG_TOKENS) is None
        refusal = bench.dispatcher.refusal(LONG_TOKENS + 1)
        assert refusal is not None
        assert f"at most {most}" in refusal

    play(scenario, transport=msgspec.structs.replace(transport, send_pool_bytes=most))
    play(scenario, transport=msgspec.structs.replace(transport, receive_pool_bytes=most))


def test_the_control_loop_notes_every_interval(play: Play) -> None:
    """Once per interval the policy looks, and the journal says what it saw and decided."""

    async def scenario(bench: Bench) -> None:
        bench.submit(LONG_TOKENS)
        await until(lambda: len(bench.journal("control")) > 1)
        line = bench.journal("control")[1]
        assert (line["threshold_tokens"], line["queue_prfaas"], line["capacity_bps"]) == (
            THRESHOLD_TOKENS,
            1,
            None,
        )

    play(scenario)
