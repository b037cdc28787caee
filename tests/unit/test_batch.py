"""A batch whose steps depend on how many are in it and on what they hold, on a clock that jumps."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.batch import Batch, Sequence
from agents.compute_profile import ComputeProfile, DecodeSteps
from tests.unit.agent_config import make_config
from tests.unit.jumping_loop import JumpingLoop

MS = 1_000_000
INTERVAL = 4


def step_ns(batch: int, context_tokens: float) -> int:
    """10 ms, 2 ms more for each request and 1 us for each token that they hold on average."""
    return round((10 + 2 * batch + context_tokens / 1000) * MS)


def table() -> ComputeProfile:
    """A profile that has `step_ns` at its points, and so everywhere, as that is linear in both."""
    rows = (
        DecodeSteps(tokens, tuple((batch, step_ns(batch, tokens) / 1e9) for batch in (1, 2, 4)))
        for tokens in (500, 2000, 9000)
    )
    return ComputeProfile("table", "made up", ((1, 0.1), (9000, 1.0)), bs_max=4, decode=tuple(rows))


class Bench:
    """A batch, who waits for it, and what came of everybody."""

    def __init__(self, loop: JumpingLoop) -> None:
        config = msgspec.structs.replace(
            make_config("decode-b2", Path()), profiles={"h20": table()}, stream_interval_tokens=INTERVAL
        )
        self.loop, self.told, self.finished = loop, list[tuple[int, int, int]](), dict[int, Sequence]()
        self.waiting: deque[Sequence] = deque()
        self.batch = Batch(config, self.tell, self.finish, self.join)

    def tell(self, op: str, items: list[list[int]]) -> None:
        assert op == "tokens"
        self.told += [(self.loop.jump.now_ns, number, count) for number, count, _ in items]

    def finish(self, sequence: Sequence) -> None:
        self.finished[sequence.id] = sequence

    def join(self) -> None:
        self.batch.join(self.waiting)

    def arrive(self, number: int, output_tokens: int, context_tokens: int = 1000) -> None:
        self.waiting.append(Sequence(number, output_tokens, context_tokens))
        self.join()


def play(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> Bench:
    """Run a scenario in no time."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, JumpingLoop)
        patch.setattr(time, "monotonic_ns", lambda: loop.jump.now_ns)

        async def prepared() -> Bench:
            bench = Bench(loop)
            await scenario(bench)
            return bench

        return runner.run(prepared())


def test_steps_grow_with_what_a_request_holds() -> None:
    """Looked up anew at each message: the steps up to the next one take what its context takes then."""

    async def scenario(bench: Bench) -> None:
        bench.arrive(1, output_tokens=10)
        await asyncio.sleep(1)

    bench = play(scenario)
    one = bench.finished[1]
    assert one.first_ns - one.joined_ns == step_ns(1, 1000)
    later_ns = 3 * step_ns(1, 1001) + 4 * step_ns(1, 1004) + 2 * step_ns(1, 1008)
    assert one.last_ns - one.first_ns == later_ns
    assert [count for _, _, count in bench.told] == [1, 4, 8, 10]


def test_whoever_joins_makes_the_next_step_longer() -> None:
    """The step in which it came stays as it was; from its end on all take what two take, until one leaves."""

    async def scenario(bench: Bench) -> None:
        bench.arrive(1, output_tokens=12)
        await asyncio.sleep(0.005)
        bench.arrive(2, output_tokens=3, context_tokens=3000)
        await asyncio.sleep(1)

    bench = play(scenario)
    one, two = bench.finished[1], bench.finished[2]
    assert two.joined_ns == one.first_ns == one.joined_ns + step_ns(1, 1000)
    assert two.first_ns - two.joined_ns == step_ns(2, (1001 + 3000) / 2)
    assert two.last_ns - two.first_ns == 2 * step_ns(2, (1002 + 3001) / 2)
    left = round(one.last_ns - two.last_ns)
    assert left == 4 * step_ns(1, 1004) + 4 * step_ns(1, 1008), "alone again"


def test_several_join_at_one_boundary() -> None:
    """All that come within a step join at its end, however quick the steps after it are."""

    async def scenario(bench: Bench) -> None:
        bench.arrive(1, output_tokens=2, context_tokens=8000)
        for number in (2, 3, 4, 5):
            await asyncio.sleep(0.001)
            bench.arrive(number, output_tokens=2, context_tokens=500)
        await asyncio.sleep(1)

    bench = play(scenario)
    boundary_ns = bench.finished[1].first_ns
    assert [bench.finished[number].joined_ns for number in (2, 3, 4)] == [boundary_ns] * 3
    assert bench.finished[5].joined_ns > bench.finished[1].last_ns, "when there is room"
    assert boundary_ns - bench.finished[1].joined_ns == step_ns(1, 8000)


def test_a_slow_batch_takes_longer_by_its_factor() -> None:
    """From the last boundary on, and the context counts as before."""

    async def scenario(bench: Bench) -> None:
        bench.batch.slow(3.0)
        bench.arrive(1, output_tokens=4)
        await asyncio.sleep(1)

    one = play(scenario).finished[1]
    assert one.last_ns - one.joined_ns == 3 * step_ns(1, 1000) + 9 * step_ns(1, 1001)


def test_a_cancelled_request_leaves_the_batch() -> None:
    """It is never told again, and the others get quicker once it has left."""

    async def scenario(bench: Bench) -> None:
        bench.arrive(1, output_tokens=40)
        bench.arrive(2, output_tokens=40)
        await asyncio.sleep(0.05)
        assert bench.batch.cancel(2)
        assert not bench.batch.cancel(3)
        await asyncio.sleep(2)
        assert (len(bench.batch), bench.batch.numbers()) == (0, [])

    bench = play(scenario)
    assert bench.finished.keys() == {1}
    assert max(count for _, number, count in bench.told if number == 2) == 1
    assert bench.finished[1].last_ns < 40 * step_ns(2, 1000) - 30 * MS


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 100), st.integers(1, 30), st.integers(500, 8000)), min_size=1, max_size=9
    ),
    factor=st.sampled_from([1.0, 2.5]),
)
def test_everybody_gets_all_tokens_in_order(requests: list[tuple[int, int, int]], factor: float) -> None:
    """Whatever comes when: each joins after it came, and its tokens come as fast as some batch may go."""

    async def scenario(bench: Bench) -> None:
        for number, (pause_ms, output_tokens, context_tokens) in enumerate(requests):
            await asyncio.sleep(pause_ms / 1000)
            bench.arrive(number, output_tokens, context_tokens)
            if number == 2:
                bench.batch.slow(factor)
        await asyncio.sleep(60)

    bench = play(scenario)
    for number, (_, output_tokens, context_tokens) in enumerate(requests):
        sequence = bench.finished[number]
        told = [(t_ns, count) for t_ns, one, count in bench.told if one == number]
        assert told == sorted(told)
        assert told[-1][1] == output_tokens
        assert all(t_ns >= sequence.joined_ns for t_ns, _ in told)
        quickest_ns = output_tokens * step_ns(1, 500)
        slowest_ns = output_tokens * step_ns(4, 9000) * factor
        assert quickest_ns <= sequence.last_ns - sequence.joined_ns <= slowest_ns
        assert context_tokens == sequence.context_tokens
