"""The router's hands of the KV manager: what is computed, what is sent, and who waits for a prefix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.cache.pool import BLOCK_TOKENS
from agents.config import FIRST_CACHE_TRANSFER, Cache, Compute
from agents.fleet import Fleet, Flight, Instance
from agents.policies.view import Cache as Judged
from agents.policies.view import Decision, Request, Route
from agents.prefixes import Prefixes
from agents.profiles import MODELS, PROFILES
from tests.unit.agent_config import make_config

GB = 10**9
PREFILL: dict[Route, str] = {"prfaas": "prefill-a1", "pd": "prefill-b1"}


class Line:
    """The router's end of the conversation with an instance; keeps what is sent."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.up = True

    def send(self, op: str, **fields: Any) -> None:
        self.said.append({"op": op, **fields})


class Bench:
    """What the dispatcher does around the prefixes, without agents, clock or policy."""

    def __init__(
        self, prfaas_bytes: int = 10 * GB, pd_bytes: int = 10 * GB, compute: Compute | None = None
    ) -> None:
        cache = Cache(prfaas_bytes=prfaas_bytes, pd_bytes=pd_bytes)
        config = msgspec.structs.replace(make_config("router", Path()), cache=cache, compute=compute)
        self.fleet = Fleet(config)
        for instance in self.fleet.instances.values():
            instance.session = Line()  # type: ignore[assignment]
        self.computing: list[int] = []
        self.noted: list[dict[str, Any]] = []
        self.impatient: list[Callable[[], None]] = []
        self.prefixes = Prefixes(
            config,
            self.fleet,
            compute=lambda flight: self.computing.append(flight.id),
            note=lambda kind, _t_ns, **fields: self.noted.append({"kind": kind, **fields}),
            later=lambda _seconds, call: self.impatient.append(call),
        )
        self.prefixes._next = FIRST_CACHE_TRANSFER
        self.flights: dict[int, Flight] = {}

    def place(
        self, number: int, chain: tuple[int, ...], tokens: int, route: Route, *, cache: Judged = "own"
    ) -> Flight:
        """Submit a request; what can be computed at once is."""
        request = Request(str(number), tokens, 8, *self.prefixes.cached(chain, tokens))
        flight = Flight(number, request, chain, 0, Decision(route, 0, "", cache=cache), route, 0)
        flight.prefill, flight.decode = PREFILL[route], "decode-b2"
        self.flights[number] = flight
        self.instance(flight.prefill).prefilling[number] = flight
        self.prefixes.place(flight)
        if not flight.waits:
            self.computing.append(number)
        return flight

    def serve(self, number: int, chain: tuple[int, ...], tokens: int, route: Route) -> Flight:
        """A request from its beginning to the arrival of its KV."""
        flight = self.place(number, chain, tokens, route)
        self.deliver(number)
        return flight

    def deliver(self, number: int) -> None:
        """Its prefill ends, its KV arrives."""
        flight = self.flights.pop(number)
        self.prefixes.computed(flight)
        self.prefixes.sent(flight)
        self.fleet.forget(number)

    def fail(self, number: int) -> None:
        flight = self.flights.pop(number)
        self.fleet.forget(number)
        self.prefixes.failed(flight)
        flight.cause = "failed"

    def die(self, name: str) -> None:
        """An instance goes away, its requests first."""
        instance = self.instance(name)
        self.vanish(name)
        for number in [number for number in instance.flights if number in self.flights]:
            self.fail(number)
        self.prefixes.lost(instance)

    def vanish(self, name: str) -> None:
        """Nobody hears of an instance from now on."""
        line: Any = self.instance(name).session
        line.up = False

    def instance(self, name: str) -> Instance:
        return self.fleet.instances[name]

    def told(self, name: str, op: str) -> list[dict[str, Any]]:
        """What of this kind an instance was told."""
        line: Any = self.instance(name).session
        return [message for message in line.said if message["op"] == op]

    def under_way(self) -> dict[int, tuple[str, str]]:
        """Prefixes under way: from where to where."""
        return {number: (one.source, one.target) for number, one in self.prefixes._fetches.items()}

    def check(self, *, at_rest: bool = False) -> None:
        """The books are in order; at rest nothing is held."""
        manager = self.prefixes.manager
        assert manager is not None
        for pool in manager._pools.values():
            pool.check()
            assert not at_rest or not pool.transfer_blocks
            assert not at_rest or not pool._locked_blocks


def chain_of(talk: int, tokens: int) -> tuple[int, ...]:
    """Block ids of a prompt of one conversation, which only ever gets longer."""
    return tuple(1000 * talk + number for number in range(-(-tokens // BLOCK_TOKENS)))


def test_without_memory_everything_is_computed_and_sent() -> None:
    """No cache: nothing is known of any prompt, and all of it is computed at once."""
    bench = Bench(0, 0)
    for number, route in enumerate(PREFILL):
        flight = bench.serve(number, chain_of(1, 4096), 4096, route)
        assert (flight.computed_tokens, flight.kv_tokens) == (4096, 4096)
        assert bench.place(9, chain_of(1, 4096), 4096, route, cache="best").computed_tokens == 4096
        bench.fail(9)
        bench.prefixes.copy_hot()
    assert bench.prefixes.cached(chain_of(1, 4096), 4096) == (0, 0)


def test_the_next_turn_computes_what_is_new() -> None:
    """In the PD cluster: the cached prefix is left out of the computing, by the instance's profile, only."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    flight = bench.serve(2, chain_of(1, 12_000), 12_000, "pd")
    assert (flight.request.cached_prfaas_tokens, flight.request.cached_pd_tokens) == (0, 8192)
    assert (flight.computed_tokens, flight.kv_tokens) == (12_000 - 8192, 12_000)
    assert flight.work_s == PROFILES["h20"].prefill_s(12_000 - 8192)
    bench.check(at_rest=True)


def test_tokens_that_are_there_do_not_cross_again() -> None:
    """In the PrfaaS cluster: the KV that came for the turn before stays, and the link carries the rest."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "prfaas")
    flight = bench.serve(2, chain_of(1, 12_000), 12_000, "prfaas")
    assert (flight.computed_tokens, flight.kv_tokens) == (12_000 - 8192, 12_000 - 8192)
    assert flight.work_s == PROFILES["h200"].prefill_s(12_000 - 8192)
    assert flight.request.cached_pd_tokens == 0, "no state came with them that prefill could start from"
    bench.check(at_rest=True)


def test_each_cluster_s_cache_alone() -> None:
    """With `own`, a longer prefix in the other cluster is left where it is."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "prfaas")
    assert (flight.computed_tokens, flight.kv_tokens, bench.computing[-1]) == (12_000, 12_000 - 8192, 2)
    assert bench.under_way() == {}


def test_a_longer_prefix_is_fetched_first() -> None:
    """With `best`: the other cluster sends it to the instance that waits, then the rest is computed."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    assert bench.told("prefill-b1", "ship") == [
        {
            "op": "ship",
            "id": FIRST_CACHE_TRANSFER,
            "kv_tokens": 8192,
            "prompt_tokens": 8192,
            "to": "prefill-a1",
            "since_ns": flight.sent_ns,
        }
    ]
    assert (bench.computing, flight.computed_tokens) == ([1], 12_000 - 8192)
    bench.prefixes.ended(FIRST_CACHE_TRANSFER, failed=False)
    assert bench.computing == [1], "the receiver's word counts"
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    assert (bench.computing, flight.computed_tokens) == ([1, 2], 12_000 - 8192)
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    assert bench.computing == [1, 2]
    bench.deliver(2)
    assert bench.prefixes.cached(chain_of(1, 8192), 8193) == (8192, 8192)
    bench.check(at_rest=True)


def test_a_state_alone_is_fetched_like_a_prefix() -> None:
    """The PD cluster has the blocks of an offloaded prompt, not its state: that crosses, then it computes."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "prfaas")
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "pd", cache="best")
    assert [message["kv_tokens"] for message in bench.told("prefill-a1", "ship")] == [0]
    assert bench.computing == [1]
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    assert (bench.computing, flight.computed_tokens) == ([1, 2], 12_000 - 8192)
    bench.deliver(2)
    bench.check(at_rest=True)


@pytest.mark.parametrize("how", ["failed", "source dies"])
def test_what_was_not_fetched_is_computed(how: str) -> None:
    """The transfer fails, or who sends it goes away: the request does without."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    if how == "failed":
        bench.prefixes.ended(FIRST_CACHE_TRANSFER, failed=True)
    else:
        bench.die("prefill-b1")
    assert (bench.computing, flight.cause, flight.computed_tokens) == ([1, 2], None, 12_000)
    for name in ("prefill-b1", "prefill-a1"):
        assert bench.told(name, "cancel") == [{"op": "cancel", "id": FIRST_CACHE_TRANSFER}]
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    assert bench.computing == [1, 2]
    bench.deliver(2)
    bench.check(at_rest=True)


@pytest.mark.parametrize("how", ["target dies", "request fails"])
def test_nobody_computes_for_a_request_that_is_gone(how: str) -> None:
    """While it waited for its prefix: nothing is computed, and nothing stays held once that has come."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    if how == "target dies":
        bench.die("prefill-a1")
        assert bench.under_way() == {}
    else:
        bench.fail(2)
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    assert bench.computing == [1]
    bench.check(at_rest=True)


def test_a_prefix_that_takes_longer_than_computing_is_not_waited_for() -> None:
    """The request is computed with what its own cluster has; what comes later changes nothing."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    flight = bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    assert (bench.computing, len(bench.impatient)) == ([1], 1)
    bench.impatient[0]()
    assert (bench.computing, flight.computed_tokens, flight.waits) == ([1, 2], 12_000, False)
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    bench.impatient[0]()
    assert bench.computing == [1, 2]
    bench.deliver(2)
    bench.check(at_rest=True)


def test_without_anybody_to_send_it_the_prefix_stays() -> None:
    """No prefill instance in the PD cluster: a decode instance sends, and without that nobody does."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    bench.vanish("prefill-b1")
    bench.place(2, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    assert [message["to"] for message in bench.told("decode-b2", "ship")] == ["prefill-a1"]
    bench.prefixes.ended(FIRST_CACHE_TRANSFER, failed=True)
    for name in ("decode-b2", "decode-b3"):
        bench.vanish(name)
    bench.place(3, chain_of(1, 12_000), 12_000, "prfaas", cache="best")
    assert bench.computing == [1, 2, 3]


def test_something_of_every_prompt_is_sent() -> None:
    """Where all blocks of a prompt are in the PD cluster, the last token comes: a transfer has bytes."""
    bench = Bench()
    bench.serve(1, chain_of(1, 8192), 8192, "pd")
    flight = bench.place(2, chain_of(1, 8192), 8192, "prfaas")
    assert (flight.computed_tokens, flight.kv_tokens) == (8192, 1)


def test_a_hot_prefix_without_room_does_not_hold_up_the_next() -> None:
    """The hottest does not fit beside what requests hold just now; the second one does, and goes."""
    block_bytes = 512 * MODELS["internal_1t"].bytes_per_token
    bench = Bench(prfaas_bytes=80 * block_bytes)
    for number in range(30):
        long, tokens = (number % 3 > 0), (20_480 if number % 3 else 4096)
        bench.serve(number, (*chain_of(int(long), tokens), 10_000 + number), tokens + 100, "pd")
    bench.place(99, chain_of(7, 4096), 4096, "prfaas")
    bench.prefixes.copy_hot()
    (message,) = bench.told("prefill-b1", "ship")
    assert message["prompt_tokens"] == 4096


def test_hot_prefixes_are_copied_one_at_a_time() -> None:
    """What one cluster is often asked for goes to the other, whoever is free first there."""
    bench = Bench()
    for number in range(30):
        talk = number % 2
        bench.serve(number, (*chain_of(talk, 8192), 10_000 + number), 8292, "pd")
    bench.prefixes.copy_hot()
    bench.prefixes.copy_hot()
    assert bench.under_way() == {FIRST_CACHE_TRANSFER: ("prefill-b1", "prefill-a1")}
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER)
    bench.prefixes.copy_hot()
    assert list(bench.under_way()) == [FIRST_CACHE_TRANSFER + 1]
    bench.prefixes.fetched(FIRST_CACHE_TRANSFER + 1)
    assert [bench.prefixes.cached(chain_of(talk, 8192), 8193)[0] for talk in (0, 1)] == [8192, 8192]
    bench.check(at_rest=True)


PLACES = st.tuples(
    st.just("place"),
    st.integers(0, 1),
    st.sampled_from([100, 1024, 1100, 2048, 5000, 9000, 17_000]),
    st.sampled_from(["prfaas", "pd"]),
    st.sampled_from(["own", "best"]),
)
ENDS = st.tuples(
    st.sampled_from(["deliver", "deliver", "deliver", "fetched", "fetched", "fail", "lost transfer", "copy"]),
    st.integers(0, 3),
)
DEATHS = st.tuples(st.just("die"), st.sampled_from(["prefill-a2", "prefill-b1", "decode-b3"]))


def submit(bench: Bench, number: int, step: tuple[str, int, int, Route, Judged]) -> None:
    """A request, if there is an instance for it."""
    _, talk, tokens, route, cache = step
    if bench.instance(PREFILL[route]).up:
        flight = bench.place(number, chain_of(talk, tokens), tokens, route, cache=cache)
        assert 1 <= flight.computed_tokens <= tokens
        assert 1 <= flight.kv_tokens <= tokens


def end(bench: Bench, what: str, which: int) -> None:
    """Let one of the requests or prefixes end that can, if there is any, or begin to copy one."""
    waiting, under_way = list(bench.flights), list(bench.under_way())
    computing = [one for one in waiting if one in bench.computing]
    if what == "copy":
        bench.prefixes.copy_hot()
    elif what == "deliver" and computing:
        bench.deliver(computing[which % len(computing)])
    elif what == "fail" and waiting:
        bench.fail(waiting[which % len(waiting)])
    elif what == "fetched" and under_way:
        bench.prefixes.fetched(under_way[which % len(under_way)])
    elif what == "lost transfer" and under_way:
        bench.prefixes.ended(under_way[which % len(under_way)], failed=True)


@given(
    steps=st.lists(st.one_of(PLACES, PLACES, PLACES, ENDS, ENDS, ENDS, DEATHS), min_size=15, max_size=40),
    room=st.sampled_from([GB // 2, 10 * GB]),
)
@settings(max_examples=120, deadline=None)
def test_whatever_happens_each_request_is_computed_once_and_nothing_stays_held(
    steps: list[tuple[Any, ...]], room: int
) -> None:
    """Any order of requests, ends, transfers and deaths, in much or little memory."""
    bench = Bench(room, room)
    for number, step in enumerate(steps):
        if step[0] == "place":
            submit(bench, number, step)
        elif step[0] == "die":
            bench.die(step[1])
        else:
            end(bench, *step)
        bench.check()
        assert len(set(bench.computing)) == len(bench.computing)
        assert set(bench.flights) <= {*bench.computing} | {
            one.flight.id for one in bench.prefixes._fetches.values() if one.flight
        }, "waits for a prefix that does not come"
    for under_way in list(bench.under_way()):
        bench.prefixes.fetched(under_way)
    assert set(bench.flights) <= set(bench.computing)
    for flight in list(bench.flights):
        bench.deliver(flight)
    bench.check(at_rest=True)
