"""Any interleaving of losses, restarts and words: every request ends once, and nothing stays held."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.attempts import Attempts
from agents.config import Cache, Failures
from agents.fleet import Fleet, Flight
from agents.metrics import Metrics
from agents.policies.view import Decision, Request
from tests.unit.agent_config import make_config

OUTPUT_TOKENS = 5
NAMES = ("prefill-a1", "prefill-a2", "prefill-b1", "decode-b2", "decode-b3")
FIRST_CACHED = 1 << 40


class Line:
    """The router's end of the conversation with an instance; keeps what is sent."""

    def __init__(self) -> None:
        self.up = True
        self.heard_ns = time.monotonic_ns()
        self.said: list[dict[str, Any]] = []

    def send(self, op: str, **fields: Any) -> None:
        self.said.append({"op": op, **fields})


class Notes:
    """A journal in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def note(self, kind: str, t_ns: int, **fields: Any) -> None:
        self.lines.append({"kind": kind, "t_ns": t_ns, **fields})


class Bench:
    """Requests in flight among instances of which the test decides everything."""

    def __init__(self, failures: Failures, handover: str) -> None:
        config = make_config("router", Path())
        transport = msgspec.structs.replace(config.transport, handover=handover)
        self.config = msgspec.structs.replace(
            config,
            transport=transport,
            failures=failures,
            cache=Cache(prfaas_bytes=10**10, pd_bytes=10**10),
        )
        self.fleet = Fleet(self.config)
        self.lines = {name: Line() for name in NAMES}
        for name, line in self.lines.items():
            self.fleet.instances[name].session = line  # type: ignore[assignment]
        self.notes = Notes()
        self.impatient: list[Callable[[], None]] = []
        self.attempts = Attempts(
            self.config,
            self.fleet,
            self.notes,  # type: ignore[arg-type]
            Metrics(),
            lambda _seconds, call: self.impatient.append(call),
        )
        self.flights: list[Flight] = []
        self.seen: dict[int, list[int]] = {}

    def submit(self, route: Any, cache: Any, blocks: int) -> None:
        """As the dispatcher does."""
        number, tokens, chain = len(self.flights), blocks * 512 + 100, tuple(range(blocks))
        request = Request(str(number), tokens, OUTPUT_TOKENS, *self.attempts.prefixes.cached(chain, tokens))
        now_ns = time.monotonic_ns()
        flight = Flight(number, request, chain, now_ns, Decision(route, 0, "", cache=cache), route, now_ns)
        self.flights.append(flight)
        self.attempts.choose(flight)
        self.attempts.start(flight)

    def word(self, what: str, which: int, old: int) -> None:
        """What an instance might say of one request: of this attempt, or of one that is over."""
        if not self.flights:
            return
        flight = self.flights[which % len(self.flights)]
        job = flight.job - (min(old, flight.attempt) << 32)
        if not self.may_say(what, flight, job):
            return
        teller = self.fleet.instances["decode-b2" if what in ("tokens", "last", "reserved") else "prefill-a1"]
        if what in ("tokens", "last"):
            had, rest = flight.told - flight.done, OUTPUT_TOKENS - flight.done
            counts = {1, rest} if what == "last" else {1, 3} - {rest}
            items = [[job, count, count == rest] for count in sorted(counts) if had < count <= rest]
            self.attempts.hear(teller, {"op": "tokens", "items": items})
        else:
            self.attempts.hear(teller, {"op": what, "id": job, "cause": "told so"})

    def may_say(self, what: str, flight: Flight, job: int) -> bool:
        """Instances speak of what they were told of, and are told once that there is room."""
        told = {one["op"] for line in self.lines.values() for one in line.said if one.get("id") == job}
        if job != flight.job or what == "failed":
            return "expect" in told
        return ("prefill" in told) == (what != "reserved") and "expect" in told

    def expected(self, flight: Flight) -> bool:
        """Whether its decode instance knows of it."""
        said = self.lines[flight.decode].said
        return any(one["op"] == "expect" and one["id"] == flight.job for one in said)

    def fetched(self, which: int, *, arrived: bool) -> None:
        under_way = self.fetches()
        if under_way:
            number = under_way[which % len(under_way)]
            op = "fetched" if arrived else "failed"
            self.attempts.hear(self.fleet.instances["prefill-a1"], {"op": op, "id": number, "cause": ""})

    def change(self, what: str, name: str) -> None:
        """An instance dies, comes back, is silent, or is restarted before anybody has noticed."""
        line = self.lines[name]
        if what == "die" and line.up:
            line.up = False
            self.lose(name, "went away")
        elif what == "restart" and line.up:
            self.lose(name, "was restarted")
        elif what == "silence":
            line.up = False
        elif what == "back":
            line.up = True
            self.attempts.resume()
        elif what == "lease":
            if not line.up:
                line.heard_ns = time.monotonic_ns() - self.config.timeouts.lease_ns - 1
            self.attempts.check(time.monotonic_ns())

    def lose(self, name: str, cause: str) -> None:
        """All that an instance had is gone, prefixes from it and to it, too."""
        before = set(self.attempts.prefixes._fetches)
        self.attempts.lost(self.fleet.instances[name], f"{name} {cause}")
        left = {number: self.attempts.prefixes._fetches[number] for number in before & {*self.fetches()}}
        assert all(name not in (one.source, one.target) for one in left.values())

    def fetches(self) -> list[int]:
        """Prefixes that requests wait for, or nobody any more; only first attempts wait."""
        under_way = self.attempts.prefixes._fetches
        assert all(one.flight is None or one.flight.attempt == 0 for one in under_way.values())
        return list(under_way)

    def look(self) -> None:
        """Whatever has happened, the books agree."""
        flying = self.attempts._flights
        waiting = [self.attempts.prefixes._fetches[number].flight for number in self.fetches()]
        for name, instance in self.fleet.instances.items():
            assert all(one.prefill == name for one in instance.prefilling.values())
            assert all(one.decode == name for one in instance.decoding.values())
            assert set(instance.flights) <= set(flying)
        for flight in self.flights:
            tokens = self.seen.setdefault(flight.id, [])
            while not flight.progress.empty():
                tokens.append(flight.progress.get_nowait())
            over = bool(tokens) and (tokens[-1] == OUTPUT_TOKENS or flight.cause is not None)
            assert over == (flight.id not in flying)
            got = tokens[:-1] if flight.cause is not None else tokens
            assert got == sorted(set(got)), "each token once"
            assert flight.attempt < self.config.failures.attempts
            if not over:
                held = flight.id in self.attempts._held
                assert held == (flight.prefill == "")
                assert held or flight.id in self.fleet.instances[flight.decode].decoding
                assert held or self.expected(flight) or flight in waiting

    def end(self) -> None:
        """Everything that still flies is given up by the router."""
        for name in NAMES:
            self.change("back", name)
        self.attempts.check(time.monotonic_ns() + 2 * self.config.timeouts.router_ns)
        for number in list(self.attempts.prefixes._fetches):
            self.attempts.prefixes.fetched(number)
        self.look()
        assert not self.attempts._flights
        assert not self.attempts._held
        assert all(not one.flights for one in self.fleet.instances.values())
        manager = self.attempts.prefixes.manager
        assert manager is not None
        for pool in manager._pools.values():
            pool.check()
            assert not pool.transfer_blocks
            assert not pool._locked_blocks
        fails = [line["id"] for line in self.notes.lines if line.get("action") == "fail"]
        assert sorted(fails) == [one.id for one in self.flights if one.cause is not None]


STEPS = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(["prfaas", "pd"]),
        st.sampled_from(["own", "best", "best"]),
        st.sampled_from([0, 3, 10, 12]),
    ),
    st.tuples(
        st.just("word"),
        st.sampled_from(["prefilled", "sent", "reserved", "tokens", "last", "failed"]),
        st.integers(0, 3),
        st.sampled_from([0, 0, 0, 1]),
    ),
    st.tuples(st.just("fetched"), st.integers(0, 2), st.booleans()),
    st.tuples(
        st.just("change"),
        st.sampled_from(["die", "back", "restart", "silence", "lease"]),
        st.sampled_from(NAMES),
    ),
    st.tuples(st.just("patience")),
)


def do(bench: Bench, step: tuple[Any, ...]) -> None:
    match step:
        case ("submit", route, cache, blocks):
            bench.submit(route, cache, blocks)
        case ("word", what, which, old):
            bench.word(what, which, old)
        case ("fetched", which, arrived):
            bench.fetched(which, arrived=arrived)
        case ("change", what, name):
            bench.change(what, name)
        case _:
            if bench.impatient:
                bench.impatient.pop(0)()


@pytest.mark.parametrize("policy", ["recompute", "retry", "fail"])
@given(steps=st.lists(STEPS, max_size=40), handover=st.sampled_from(["source_first", "destination_first"]))
@settings(max_examples=150, deadline=None)
def test_every_request_ends_once_and_nothing_stays_held(
    policy: Any, steps: list[tuple[Any, ...]], handover: str
) -> None:
    """Losses, restarts, silence, words in and out of time, prefixes under way, in any order."""
    bench = Bench(Failures(policy=policy, attempts=3), handover)
    bench.submit("pd", "own", 10)
    for what in ("reserved", "prefilled", "last"):
        bench.word(what, 0, 0)
    for step in steps:
        do(bench, step)
        bench.look()
    bench.end()
