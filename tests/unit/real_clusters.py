"""Both clusters with real kernels and caches behind a real router, on loopback, for tests only."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from agents.compute.engine import Answer, Kernels
from agents.config import Cache, Compute, Config, Failures, Request
from agents.dispatch import Dispatcher
from agents.fleet import Flight
from agents.instance import Instance
from agents.policies import POLICIES
from agents.policies.view import Cache as Judged
from agents.policies.view import Config as Told
from agents.policies.view import Decision, Route, State, View
from agents.policies.view import Request as Asked
from agents.prefix_files import room_bytes
from agents.profiles import MODELS, ModelProfile
from agents.prompts import prompt
from agents.shapes import SHAPES
from tests.unit.agent_config import make_config
from tests.unit.fake_agents import NETWORK
from tests.unit.instance_nodes import CONGESTION_CONTROL, close_what_is_watched
from tests.unit.real_parts import Right
from tests.unit.small_shapes import shrunk, tiny

BLOCK = 512
HYBRID = "small_of_each"
COMPUTE = Compute(seed=5)
FULL = "small_full"
"""A model whose layers are all full."""
MS = 1_000_000
PLENTY = 1 << 30
WAIT_S = 60


class Scripted:
    """A policy that places each request where the test says."""

    asked: ClassVar[dict[str, Decision]] = {}

    @staticmethod
    def start(config: Told) -> State:
        return State(config.threshold_tokens, None, "")

    @classmethod
    def route(cls, config: Told, state: State, view: View, request: Asked) -> Decision:  # noqa: ARG003
        return cls.asked[request.id]

    @staticmethod
    def update(config: Told, state: State, view: View) -> State:  # noqa: ARG004
        return state


class Clusters:
    """A router and five instances; `files` are the directories of cached prefixes by cluster."""

    def __init__(self, directory: Path, model: str, cache: Cache, **changes: Any) -> None:
        self._directory, self._model, self._cache, self._changes = directory, model, cache, changes
        self.files: dict[str, Path] = {name: directory / "kv" / name for name in ("prfaas", "pd")}
        for one in self.files.values():
            one.mkdir(parents=True)
        self.instances: dict[str, Instance] = {}
        self.asked: list[Request] = []
        self.flights: dict[int, Flight] = {}

    def settings(self, name: str) -> Config:
        usual = make_config(name, self._directory, NETWORK)
        transport = {"payload": "tensors", "chunk_bytes": 1 << 15, "congestion_control": CONGESTION_CONTROL}
        return msgspec.structs.replace(
            usual,
            model=self._model,
            scale=1.0,
            cache=self._cache,
            compute=msgspec.structs.replace(COMPUTE, prefixes=str(self.files[usual.me.cluster])),
            transport=msgspec.structs.replace(usual.transport, layer_group=3, **transport),
            scheduling=msgspec.structs.replace(usual.scheduling, policy="scripted", interval_ns=50 * MS),
            failures=Failures(policy="recompute", probe_ns=20 * MS, probe_max_ns=80 * MS),
            **self._changes,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stdin, (nothing, operator) = sys.stdin, os.pipe()
        sys.stdin = os.fdopen(nothing)
        router = self.settings("router")
        self.instances = {peer.name: Instance(self.settings(peer.name)) for peer in router.instances()}
        tasks = [asyncio.create_task(one.run()) for one in self.instances.values()]
        while any(one._server._listener is None for one in self.instances.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        self.dispatcher = Dispatcher(router)
        await self.dispatcher.start()
        try:
            yield
        finally:
            self.dispatcher.close()
            for one in self.instances.values():
                one._server.close()
                one._ticks.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in self.instances.values():
                one._journal.close()
            asyncio.get_running_loop().remove_reader(sys.stdin)
            sys.stdin.close()
            sys.stdin = stdin
            os.close(operator)
            close_what_is_watched(asyncio.get_running_loop())
            await asyncio.sleep(0.01)

    def submit(
        self, chain: Sequence[int], tokens: int, route: Route, cache: Judged = "own", output_tokens: int = 4
    ) -> Flight:
        """Ask for an answer to a prompt of these blocks, and a tail of its own."""
        number = len(self.asked)
        request = Request(
            id=number, t_ns=0, input_tokens=tokens, output_tokens=output_tokens, hash_ids=tuple(chain)
        )
        self.asked.append(request)
        Scripted.asked[str(number)] = Decision(route, 0, "scripted", cache=cache)
        flight = self.flights[number] = self.dispatcher.submit(
            number, tokens, output_tokens, chain=tuple(chain), prompt=prompt(self.settings("router"), request)
        )
        return flight

    async def over(self, flight: Flight) -> Right:
        """Wait for the last token; what the client would have, and decode's digest of the last attempt."""
        while await flight.next() < flight.request.output_tokens:
            assert flight.cause is None
        (digest,) = (
            line["logits_digest"]
            for line in self.journal(flight.decode, "decode")
            if (line["id"], line["attempt"]) == (flight.id, flight.attempt)
        )
        return Right(flight.token_ids, digest)

    async def serve(
        self, chain: Sequence[int], tokens: int, route: Route, cache: Judged = "own"
    ) -> tuple[Flight, bool]:
        """One request from beginning to end, and whether its answer is right."""
        flight = self.submit(chain, tokens, route, cache)
        answer = await self.over(flight)
        return flight, answer == self.right(flight)

    def right(self, flight: Flight) -> Right:
        """The answer of one process without any cache."""
        return alone(self._model, self.asked[flight.id])

    def journal(self, name: str, kind: str) -> list[dict[str, Any]]:
        """What an agent has noted."""
        lines = (self._directory / f"{name}.jsonl").read_bytes().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def prefill_of(self, flight: Flight) -> dict[str, Any]:
        """What its prefill instance noted of the last attempt."""
        (line,) = (
            line
            for line in self.journal(flight.prefill, "prefill")
            if (line["id"], line["attempt"]) == (flight.id, flight.attempt)
        )
        return line

    def causes(self) -> list[str]:
        """Of all attempts that were followed by another one."""
        return [line["cause"] for line in self.journal("router", "retry")]

    def fetches(self) -> list[tuple[str, int, bool]]:
        """Where prefixes were fetched to, how many tokens crossed, and whether they arrived."""
        lines = self.journal("router", "fetch")
        return [(line["cluster"], line["tokens"], line["arrived"]) for line in lines]

    def check_files(self) -> None:
        """Nothing is half written, and there is no more than there may be."""
        chains = [(one.hash_ids, one.input_tokens) for one in self.asked]
        for directory in self.files.values():
            assert {one.suffix for one in directory.iterdir()} <= {".rows", ".states"}
            held_bytes = sum(one.stat().st_size for one in directory.iterdir())
            assert held_bytes <= room_bytes(MODELS[self._model], chains)

    def kv_bytes(self, tokens: int, prompt_tokens: int) -> int:
        """What the end of a prompt's KV weighs."""
        model = MODELS[self._model]
        return sum(model.end_bytes(layer, tokens, prompt_tokens) for layer in range(len(model.layers)))


@cache
def _kernels(model: str) -> Kernels:
    return Kernels(_alone(model))


def _alone(model: str) -> Config:
    return msgspec.structs.replace(make_config("router", Path()), model=model, compute=COMPUTE)


@cache
def alone(model: str, request: Request) -> Right:
    """What one process answers, from beginning to end; tests ask alike, so it is computed once for all."""
    kernels = _kernels(model)
    computed = kernels.prompt(prompt(_alone(model), request), request.input_tokens)
    computed.compute(range(len(SHAPES[model].layers)))
    answer = Answer(computed.cache)
    for _ in range(request.output_tokens):
        kernels.step([answer])
    return Right(answer.token_ids, answer.logits_digest)


def use_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hybrid with every kind of layer, one of them twice, one with full layers only, and the policy."""
    hybrid = tiny()
    kinds = tuple(dict.fromkeys(hybrid.layers))
    hybrid = msgspec.structs.replace(hybrid, name=HYBRID, layers=(*kinds, kinds[0]))
    for shape in (hybrid, msgspec.structs.replace(shrunk("minimax_m2_5", 3), name=FULL)):
        layers = tuple(layer.layer_kv for layer in shape.layers)
        monkeypatch.setitem(SHAPES, shape.name, shape)
        monkeypatch.setitem(MODELS, shape.name, ModelProfile(shape.name, "made up", layers))
    monkeypatch.setitem(POLICIES, "scripted", Scripted)
    monkeypatch.setattr(Scripted, "asked", {})


Play = Callable[..., None]
Scenario = Callable[[Clusters], Coroutine[Any, Any, None]]


def play_clusters(
    directory: Path,
    scenario: Scenario,
    model: str = HYBRID,
    cache: Cache = Cache(PLENTY, PLENTY),  # noqa: B008 - frozen
    **changes: Any,
) -> None:
    """Run a scenario; what goes wrong in a callback counts, too."""
    wrong: list[dict[str, Any]] = []

    async def prepared() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        clusters = Clusters(directory, model, cache, **changes)
        async with asyncio.timeout(WAIT_S), clusters.running():
            await scenario(clusters)

    asyncio.run(prepared())
    assert wrong == []
