"""A dispatcher among agents that speak the wire protocol, for tests only."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from agents.config import Failures, Timeouts
from agents.dispatch import Dispatcher
from agents.fleet import Flight
from agents.policies.view import Config, Decision, Request, State, View
from tests.unit.agent_config import make_config
from tests.unit.fake_agents import NETWORK, FakeAgent, fake_agents

WAIT_S = 10
MS = 1_000_000
OUTPUT_TOKENS = 8


class Bench:
    """A dispatcher, its agents, and its journal."""

    def __init__(self, dispatcher: Dispatcher, agents: dict[str, FakeAgent], journal: Path) -> None:
        self.dispatcher, self.agents, self._journal = dispatcher, agents, journal
        self._frozen: dict[str, list[selectors.SelectorKey]] = {}

    def submit(self, tokens: int, request: int | None = None, chain: tuple[int, ...] = ()) -> Flight:
        return self.dispatcher.submit(request, tokens, OUTPUT_TOKENS, chain=chain)

    async def told(self, name: str, op: str) -> dict[str, Any]:
        """The next thing of a kind that an instance is told; whatever else it is told is passed over."""
        while (message := await self.agents[name].messages.get())["op"] != op:
            pass
        return message

    def untold(self, name: str, op: str) -> bool:
        """Whether nothing of this kind waits to be heard."""
        waiting = self.agents[name].messages._queue  # type: ignore[attr-defined]
        return all(message["op"] != op for message in waiting)

    async def decode_all(self, flight: Flight) -> None:
        """Prefill and decode one request to its end."""
        had, rest = flight.done, OUTPUT_TOKENS - flight.done
        self.agents[flight.prefill].send("prefilled", id=flight.job)
        self.agents[flight.decode].send("tokens", items=[[flight.job, 1, False]])
        assert await flight.next() == had + 1
        self.agents[flight.decode].send("tokens", items=[[flight.job, rest, True]])
        assert await flight.next() == OUTPUT_TOKENS

    def held(self) -> list[int]:
        """Requests that any instance is still believed to hold."""
        instances = self.dispatcher._fleet.instances.values()
        flying = self.dispatcher._attempts._flights
        return sorted({number for one in instances for number in one.flights} | {*flying})

    async def die(self, name: str) -> None:
        """End an instance's program, and wait until the router knows."""
        await self.agents[name].die()
        await until(lambda: not self.dispatcher._fleet.instances[name].up)

    def freeze(self, name: str) -> None:
        """An instance hears and says nothing any more; its connections stand, and can still be made."""
        server: Any = self.agents[name]._server
        sockets = [
            *server._listener.sockets,
            *(one.transport.get_extra_info("socket") for one in server._lines),
        ]
        self._frozen[name] = [self._selector.unregister(one.fileno()) for one in sockets]

    def thaw(self, name: str) -> None:
        """It goes on where it was, with all that has come meanwhile."""
        for key in self._frozen.pop(name):
            self._selector.register(key.fd, key.events, key.data)

    @property
    def _selector(self) -> selectors.BaseSelector:
        loop: Any = asyncio.get_running_loop()
        return loop._selector  # type: ignore[no-any-return]

    def journal(self, kind: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._journal.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["kind"] == kind]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened that nobody tells of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def quick(policy: str = "recompute", attempts: int = 3, flaws: Iterable[str] = ()) -> dict[str, Any]:
    """Changes after which what is lost is noticed, and given up, in a fraction of a second."""
    scheduling = make_config("router", Path()).scheduling
    return {
        "failures": Failures(
            policy=policy,  # type: ignore[arg-type]
            attempts=attempts,
            silence_ns=200 * MS,
            probe_ns=20 * MS,
            probe_max_ns=80 * MS,
        ),
        "timeouts": Timeouts(
            client_ns=1000 * MS,
            router_ns=800 * MS,
            decode_wait_ns=600 * MS,
            lease_ns=500 * MS,
            transfer_ns=90 * MS,
        ),
        "scheduling": msgspec.structs.replace(scheduling, interval_ns=20 * MS),
        "flaws": tuple(flaws),
    }


AT_HOME = Decision("pd", 0, "as told")
ELSEWHERE = Decision("prfaas", 0, "with what the other cluster has", cache="best")


@dataclass
class Scripted:
    """A policy that does what the test says: all requests go one way, and so many are to do prefill."""

    decision: Decision = AT_HOME
    wanted: int | None = None

    def start(self, config: Config) -> State:  # noqa: ARG002 - a policy's signature
        return State(0, None, "as told")

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:  # noqa: ARG002 - same
        return self.decision

    def update(self, config: Config, state: State, view: View) -> State:  # noqa: ARG002 - same
        return replace(state, prefill_instances=self.wanted)


@asynccontextmanager
async def started(journal: Path, **changes: Any) -> AsyncIterator[Bench]:
    settings = msgspec.structs.replace(make_config("router", journal, NETWORK), **changes)
    async with fake_agents(settings) as agents:
        dispatcher = Dispatcher(settings)
        await dispatcher.start()
        try:
            # On a busy machine connecting can take longer than the first attempts may.
            await until(lambda: all(one.up for one in dispatcher._fleet.instances.values()))
            yield Bench(dispatcher, agents, Path(settings.journal))
        finally:
            dispatcher.close()


Scenario = Callable[[Bench], Coroutine[Any, Any, None]]


def play_on(journal: Path, scenario: Scenario, **changes: Any) -> None:
    """Run a scenario against a fresh dispatcher; what goes wrong in a callback counts, too."""
    wrong: list[dict[str, Any]] = []

    async def prepared() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        async with started(journal, **changes) as bench, asyncio.timeout(WAIT_S):
            await scenario(bench)

    asyncio.run(prepared())
    assert wrong == []
