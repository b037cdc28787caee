"""A prefill instance on a clock that moves only while everybody sleeps: when its layers are done."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.compute_profile import ComputeProfile, LayerShares
from agents.journal import Journal
from agents.prefill import Prefill
from agents.profiles import MODELS, PROFILES
from agents.transport.transfers import Transfer, TransferError
from tests.unit.agent_config import make_config
from tests.unit.jumping_loop import JumpingLoop

TOKENS = 20_000
LAYERS = len(MODELS["internal_1t"].layers)
ENDS = [*range(4, LAYERS, 4), LAYERS]
"""Layers done when each group leaves."""


class Sender:
    """Takes everything, and sends nothing."""

    def __init__(self) -> None:
        self.transfers: dict[int, Transfer] = {}
        self.pushed: list[tuple[int, int, int]] = []

    def begin(self, number: int, peer: str, sizes: list[int], *, priority: float) -> Transfer:
        transfer = Transfer(
            number, peer, sum(sizes), len(sizes), payload="synthetic", kept=None, priority=priority
        )
        self.transfers[number] = transfer
        return transfer

    def push(self, transfer: Transfer, layer: int, size_bytes: int, _data: bytes | None = None) -> None:
        transfer.produced_bytes += size_bytes
        self.pushed.append((time.monotonic_ns(), transfer.number, layer))

    def drop(self, number: int, cause: str) -> None:
        self.transfers[number].over.set_exception(TransferError(cause))

    def goodput_bps(self, peer: str) -> float:
        return {"decode-b2": 0.0, "decode-b3": 1e6}[peer]


class Bench:
    """Prefill without sockets."""

    def __init__(self, journal: Path, **changes: Any) -> None:
        settings = msgspec.structs.replace(make_config("prefill-a1", journal), **changes)
        self._path = Path(settings.journal)
        self.sender, self.said = Sender(), list[tuple[str, int]]()
        self.prefill = Prefill(
            settings,
            Journal(settings.journal),
            self.sender,  # type: ignore[arg-type]
            lambda op, **fields: self.said.append((op, fields["id"])),
            lambda: None,
        )

    def take(self, number: int, decode: str = "decode-b2", since_ns: int = 0) -> None:
        self.prefill.take(
            {
                "id": number,
                "tokens": TOKENS,
                "kv_tokens": TOKENS,
                "prompt_tokens": TOKENS,
                "decode": decode,
                "compress": False,
                "order_s": 0.0,
                "since_ns": since_ns,
            }
        )

    def spans_s(self) -> list[float]:
        """How long each prefill took."""
        lines = [json.loads(line) for line in self._path.read_bytes().splitlines()]
        return [(line["t_end_ns"] - line["t_start_ns"]) / 1e9 for line in lines if line["kind"] == "prefill"]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """Run a scenario against a fresh instance, in no time."""

    def run(scenario: Callable[[Bench], Coroutine[Any, Any, None]], **changes: Any) -> Bench:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, JumpingLoop)
            monkeypatch.setattr(time, "monotonic_ns", lambda: loop.jump.now_ns)

            async def prepared() -> Bench:
                bench = Bench(tmp_path, **changes)
                computing = asyncio.create_task(bench.prefill.compute())
                await scenario(bench)
                computing.cancel()
                return bench

            bench = runner.run(prepared())
        bench.prefill._journal.close()
        return bench

    return run


def test_layers_leave_as_they_are_computed(play: Callable[..., Bench]) -> None:
    """Layer i of n at i/n of the profile's time, in groups; with the flaw all of them at the end."""
    whole_s = PROFILES["h200"].prefill_s(TOKENS)

    async def scenario(bench: Bench) -> None:
        bench.take(1)
        await asyncio.sleep(2 * whole_s)

    bench = play(scenario)
    assert [layer for _, _, layer in bench.sender.pushed] == [end - 1 for end in ENDS]
    left_s = [t_ns / 1e9 for t_ns, _, _ in bench.sender.pushed]
    assert left_s == pytest.approx([whole_s * end / LAYERS for end in ENDS], abs=1e-6)
    late = play(scenario, flaws=("send_after_compute",)).sender.pushed
    assert {round(t_ns / 1e9, 6) for t_ns, _, _ in late} == {round(whole_s, 6)}


def test_layers_leave_when_the_profile_says(play: Callable[..., Bench]) -> None:
    """Each group when its last layer ends, where layers were measured: linear ones are quicker here."""
    alone = [1.0, 1.0, 1.0, 5.0] * (LAYERS // 4)
    ends = tuple(sum(alone[: number + 1]) / sum(alone) for number in range(LAYERS))
    knots = PROFILES["h200"].knots
    profile = ComputeProfile("mine", "made up", knots, layers=(LayerShares(TOKENS, ends),))
    transport = msgspec.structs.replace(make_config("prefill-a1", Path()).transport, layer_group=1)

    async def scenario(bench: Bench) -> None:
        bench.take(1)
        await asyncio.sleep(20)

    bench = play(scenario, profiles={"h200": profile}, transport=transport)
    left_s = [t_ns / 1e9 for t_ns, _, _ in bench.sender.pushed]
    whole_s = profile.prefill_s(TOKENS)
    assert left_s == pytest.approx([whole_s * end for end in ends], abs=1e-6)


def test_a_slow_instance_takes_longer_from_the_next_group_on(play: Callable[..., Bench]) -> None:
    """Four times as long until it is told to be as before; what is done stays done."""
    whole_s = PROFILES["h200"].prefill_s(TOKENS)

    async def scenario(bench: Bench) -> None:
        bench.take(1)
        await asyncio.sleep(0.3 * whole_s)
        bench.prefill.slowness = 4.0
        await asyncio.sleep(whole_s)
        bench.prefill.slowness = 1.0
        await asyncio.sleep(2 * whole_s)

    bench = play(scenario)
    t_s, expected_s = 0.0, []
    for before, end in itertools.pairwise([0, *ENDS]):
        slow = 0.3 * whole_s < t_s < 1.3 * whole_s
        t_s += (4 if slow else 1) * whole_s * (end - before) / LAYERS
        expected_s.append(t_s)
    left_s = [t_ns / 1e9 for t_ns, _, _ in bench.sender.pushed]
    assert left_s == pytest.approx(expected_s, abs=1e-6)
    assert bench.spans_s() == pytest.approx([expected_s[-1]], abs=1e-6)


def test_a_cancelled_prefill_makes_room_for_the_next_at_once(play: Callable[..., Bench]) -> None:
    """In the middle of its layers; it says nothing, and the next one starts then."""
    whole_s = PROFILES["h200"].prefill_s(TOKENS)

    async def scenario(bench: Bench) -> None:
        bench.take(1)
        bench.take(2)
        await asyncio.sleep(0.5 * whole_s)
        assert bench.prefill.beat()["computing"]
        bench.prefill.cancel(1)
        await asyncio.sleep(2 * whole_s)
        assert not bench.prefill.beat()["computing"]

    bench = play(scenario)
    assert bench.said == [("prefilled", 2)]
    assert bench.sender.pushed[-1][0] / 1e9 == pytest.approx(1.5 * whole_s, abs=1e-6)
    assert bench.prefill._pool.count == 1, "the KV of the second one has not left"


def test_the_least_slack_is_what_arrival_target_and_size_leave(play: Callable[..., Bench]) -> None:
    """The latest moment to begin: arrival and target less what the bytes take, if that was measured."""
    transport = msgspec.structs.replace(
        make_config("prefill-a1", Path()).transport, priority="least_slack", ttft_target_ns=5 * 10**9
    )

    async def scenario(bench: Bench) -> None:
        bench.take(1, "decode-b2", since_ns=10**9)
        bench.take(2, "decode-b3", since_ns=2 * 10**9)
        await asyncio.sleep(100)

    transfers = play(scenario, transport=transport).sender.transfers
    needed_s = transfers[2].size_bytes * 8 / 1e6
    assert [transfers[number].priority for number in (1, 2)] == pytest.approx([6.0, 7.0 - needed_s])
    assert [one.priority for one in play(scenario).sender.transfers.values()] == [0.0, 0.0]
