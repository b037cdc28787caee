"""The batch of real kernels, among kernels that only count: who is in a step, and who hears of what."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agents.batch import Sequence as Asked
from agents.compute_profile import ComputeProfile
from agents.kernel_batch import KernelBatch
from agents.prefix_files import LostError
from tests.unit.agent_config import make_config

WAIT_S, INTERVAL, BS_MAX, STEP_S = 10, 4, 3, 0.002


class Counted:
    """An answer whose tokens are the KV's first byte, and how many there are."""

    def __init__(self, kv: memoryview) -> None:
        self.name, self.token_ids = kv[0], list[int]()

    @property
    def logits_digest(self) -> str:
        return f"{self.name}/{len(self.token_ids)}"


class Counting:
    """Kernels that compute nothing, in the loop's own time; all that was in each step."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.read: list[tuple[int, int]] = []
        self.at_step: dict[int, Callable[[], object]] = {}

    async def run(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(STEP_S)
        return work()

    def answer(self, kv: memoryview, tokens: int, kv_tokens: int, chain: Sequence[int]) -> Counted:
        self.read.append((kv[0], tokens))
        if chain:
            raise LostError(f"{kv_tokens} of {chain}")
        return Counted(kv)

    def step(self, answers: Sequence[Counted]) -> None:
        self.steps.append([one.name for one in answers])
        for one in answers:
            one.token_ids.append(one.name * 100 + len(one.token_ids))
        self.at_step.get(len(self.steps), lambda: None)()


class Bench:
    """A batch, who waits for it, and what came of everybody."""

    def __init__(self) -> None:
        profile = ComputeProfile("mine", "made up", ((1, 0.1), (9, 0.2)), bs_max=BS_MAX)
        settings = msgspec.structs.replace(
            make_config("decode-b2", Path()), profiles={"h20": profile}, stream_interval_tokens=INTERVAL
        )
        self.kernels, self.waiting = Counting(), deque[Asked]()
        self.asked: dict[int, Asked] = {}
        self.told: list[list[Any]] = []
        self.finished: list[int] = []
        self.lost: list[tuple[int, str]] = []
        self.batch = KernelBatch(
            settings,
            cast("Any", self.kernels),
            self._tell,
            self._finish,
            self.join,
            lost=lambda sequence, cause: self.lost.append((sequence.id, cause)),
        )

    def _tell(self, op: str, items: list[list[Any]]) -> None:
        assert op == "tokens"
        for number, _, last, _ in items:
            assert not last or number in self.finished, "the KV is let go before the router can ask for more"
        self.told += items

    def _finish(self, sequence: Asked) -> None:
        self.finished.append(sequence.id)

    def join(self) -> None:
        self.batch.join(self.waiting)

    def come(self, number: int, output_tokens: int, chain: tuple[int, ...] = ()) -> Asked:
        one = self.asked[number] = Asked(number, output_tokens, context_tokens=50 + number, chain=chain)
        one.kv_tokens = 9
        one.kv = memoryview(bytes([number]))
        self.waiting.append(one)
        self.join()
        return one

    async def over(self) -> None:
        while self.batch or self.batch._task is not None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(STEP_S)

    def heard(self, number: int) -> list[list[Any]]:
        return [[count, last, ids] for one, count, last, ids in self.told if one == number]


def play(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario; what goes wrong in a callback counts, too."""
    wrong: list[dict[str, Any]] = []

    async def prepared() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        async with asyncio.timeout(WAIT_S):
            await scenario(Bench())

    asyncio.run(prepared())
    assert wrong == []


@pytest.mark.parametrize("output_tokens", [1, 2, 4, 9])
def test_tokens_are_told_at_the_first_each_interval_and_the_last(output_tokens: int) -> None:
    """With the ids that are new since the last time; all of them once."""

    async def scenario(bench: Bench) -> None:
        one = bench.come(7, output_tokens)
        await bench.over()
        counts = sorted({1, *range(INTERVAL, output_tokens, INTERVAL), output_tokens})
        ids = [700 + place for place in range(output_tokens)]
        pieces = [
            [count, count == output_tokens, ids[before:count]]
            for before, count in zip([0, *counts], counts, strict=False)
        ]
        assert bench.heard(7) == pieces
        assert (bench.finished, one.token_ids, one.logits_digest) == ([7], ids, f"7/{output_tokens}")
        assert one.joined_ns < one.first_ns <= one.last_ns

    play(scenario)


def test_kv_is_read_when_its_request_joins_and_let_go() -> None:
    """Once, with the prompt's length; who waits for a place keeps it."""

    async def scenario(bench: Bench) -> None:
        for number in range(1, BS_MAX + 2):
            bench.come(number, 5)
        last = bench.asked[BS_MAX + 1]
        while not bench.kernels.steps:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        assert bench.kernels.read == [(number, 50 + number) for number in (1, 2, 3)]
        assert [bench.asked[number].kv for number in (1, 2, 3)] == [None] * 3
        assert last.kv is not None
        await bench.over()
        assert bench.kernels.read[3:] == [(4, 54)]
        assert last.kv is None

    play(scenario)


def test_a_request_joins_before_the_next_step_while_there_is_room() -> None:
    """In the order of arrival; those in the batch get a token each in every step until they have all."""

    async def scenario(bench: Bench) -> None:
        bench.come(1, 6)
        bench.kernels.at_step[2] = lambda: bench.come(2, 2)
        bench.kernels.at_step[3] = lambda: [bench.come(number, 2) for number in (3, 4, 5)]
        await bench.over()
        assert bench.kernels.steps == [[1], [1], [1, 2], [1, 2, 3], [1, 3, 4], [1, 4, 5], [5]]
        assert sorted(bench.finished) == [1, 2, 3, 4, 5]
        bench.come(6, 1)
        await bench.over()
        assert bench.kernels.steps[-1] == [6], "it starts again after a rest"

    play(scenario)


def test_a_cancelled_request_hears_nothing_more_and_frees_its_place() -> None:
    """After the step that it is in; whoever waits has the place then."""

    async def scenario(bench: Bench) -> None:
        for number in (1, 2, 3, 4):
            bench.come(number, 8)

        def cancel() -> None:
            assert bench.batch.cancel(2)
            assert not bench.batch.cancel(4), "that one waits"
            assert len(bench.batch) == BS_MAX

        bench.kernels.at_step[4] = cancel
        await bench.over()
        assert bench.kernels.steps[:5] == [[1, 2, 3]] * 4 + [[1, 3, 4]]
        assert [count for count, _, _ in bench.heard(2)] == [1], "not of the token of the step that it was in"
        assert (sorted(bench.finished), bench.batch.cancel(2)) == ([1, 3, 4], False)

    play(scenario)


def test_who_cannot_be_read_is_lost_and_nobody_else_is() -> None:
    """The cause is told, its place is free, and the others get their tokens."""

    async def scenario(bench: Bench) -> None:
        bench.come(1, 3, chain=(5,))
        await bench.over()
        assert (bench.lost, bench.kernels.steps) == ([(1, "9 of (5,)")], [])
        for number in (2, 3, 4, 5):
            bench.come(number, 3, chain=(6,) if number == 3 else ())
        await bench.over()
        assert [number for number, _ in bench.lost] == [1, 3]
        assert sorted(bench.finished) == [2, 4, 5]
        assert bench.kernels.steps[:2] == [[2, 4], [2, 4, 5]]

    play(scenario)


def test_a_batch_of_cancelled_requests_ends() -> None:
    """Also of one that was cancelled before its first step: nothing is computed for it."""

    async def scenario(bench: Bench) -> None:
        bench.come(1, 8)
        assert bench.batch.numbers() == [1]
        bench.batch.cancel(1)
        await bench.over()
        assert (bench.kernels.steps, bench.kernels.read, bench.told, bench.finished) == ([], [], [], [])
        bench.come(2, 8)
        bench.kernels.at_step[1] = lambda: bench.batch.cancel(2)
        await bench.over()
        assert (bench.kernels.steps, bench.told, bench.batch.numbers()) == ([[2]], [], [])

    play(scenario)


def test_a_slow_instance_takes_so_many_times_as_long() -> None:
    """Each step, from when it is told; not one that is over."""

    async def scenario(bench: Bench) -> None:
        bench.batch.slow(10)
        start_s = time.monotonic()
        bench.come(1, 5)
        await bench.over()
        assert time.monotonic() - start_s >= 5 * 10 * STEP_S
        bench.batch.slow(1)
        start_s = time.monotonic()
        bench.come(2, 5)
        await bench.over()
        assert time.monotonic() - start_s < 5 * 10 * STEP_S

    play(scenario)
