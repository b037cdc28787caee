"""Sessions: prompts grow turn by turn, and requests share exactly the prefixes that they have in common."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.cache.pool import BLOCK_TOKENS
from testbed.plan import Request
from testbed.scenario.workload import SessionsWorkload
from testbed.units import NS_PER_S
from testbed.workload import Load, increments
from testbed.workload.sessions import generate

HOUR_NS = 3600 * NS_PER_S
ENDLESS = 10**9


def fixed(tokens: int) -> dict[str, float]:
    """A distribution with one length."""
    return {"mu": 1, "sigma": 1, "low": tokens, "high": tokens}


def sessions(**settings: object) -> SessionsWorkload:
    """A workload of sessions; prompts of 1000, 1400, 1800, ... tokens unless the settings say otherwise."""
    return SessionsWorkload.model_validate(
        {"kind": "sessions", "rate": "0.1/s", "turns": 4, "first": fixed(1000), "increment": fixed(100)}
        | {"output_tokens": 300, "think": "10s", **settings}
    )


def drawn(
    spec: SessionsWorkload, duration_ns: int = HOUR_NS, max_tokens: int = ENDLESS, seed: int = 1
) -> Load:
    """Requests from four generators of one seed."""
    arrivals, groups, lengths, pauses = (np.random.Generator(np.random.PCG64([seed, n])) for n in range(4))
    return generate(
        spec,
        duration_ns,
        max_tokens=max_tokens,
        arrivals=arrivals,
        sessions=groups,
        lengths=lengths,
        pauses=pauses,
    )


def by_session(requests: Iterable[Request]) -> list[list[Request]]:
    """The turns of each session; their first block, which must be full and its own, tells them apart."""
    turns: dict[int, list[Request]] = defaultdict(list)
    for request in requests:
        turns[request.hash_ids[0]].append(request)
    return list(turns.values())


def test_a_prompt_is_all_that_was_said_and_an_increment() -> None:
    """Each turn adds the last answer and an increment, until the next prompt would be too long."""
    turns = by_session(drawn(sessions(turns=1000, rate="0.001/s"), 10 * HOUR_NS, max_tokens=2199).requests)
    assert len(turns) > 10
    for session in turns:
        assert [request.input_tokens for request in session] == [1000, 1400, 1800]
    assert {request.output_tokens for session in turns for request in session} == {300}


def test_full_blocks_are_handed_on_and_the_rest_is_not() -> None:
    """A turn keeps the full blocks of the one before; the block that was part full is another one now."""
    spec = sessions(turns=1000, think="1ms", rate="0.01/s")
    first = drawn(spec, max_tokens=1800).requests[:3]
    assert [request.hash_ids for request in first] == [(0, 1), (0, 2, 3), (0, 2, 4, 5)]


def test_a_prompt_that_ends_with_a_block_has_no_rest() -> None:
    """1024 tokens are two blocks."""
    first = drawn(sessions(turns=1, first=fixed(1024))).requests[:2]
    assert [request.hash_ids for request in first] == [(0, 1), (2, 3)]


def test_sessions_share_only_the_full_blocks_of_their_system_prompt() -> None:
    """1000 shared tokens are one shared block for each prefix: the second holds tokens of the session."""
    spec = sessions(turns=1, first=fixed(600), shared={"tokens": 1000, "prefixes": 2, "zipf": 0})
    requests = drawn(spec).requests
    assert {request.input_tokens for request in requests} == {1600}
    shared = Counter(request.hash_ids[0] for request in requests)
    own = [block for request in requests for block in request.hash_ids[1:]]
    assert len(shared) == 2
    assert len(own) == len(set(own)) == 3 * len(requests)


@pytest.mark.parametrize("zipf", [0.0, 1.0, 1.5])
def test_prefixes_are_as_hot_as_zipf_says(zipf: float) -> None:
    """The n-th prefix is used with a weight of 1 / n^zipf (chi-square, 0.1 % level, 4 degrees of freedom)."""
    spec = sessions(rate="2/s", turns=1, shared={"tokens": 512, "prefixes": 5, "zipf": zipf})
    used = sorted(Counter(request.hash_ids[0] for request in drawn(spec).requests).values(), reverse=True)
    weights = [(n + 1) ** -zipf for n in range(5)]
    expected = [sum(used) * weight / sum(weights) for weight in weights]
    assert sum((a - b) ** 2 / b for a, b in zip(used, expected, strict=True)) < 18.5


def test_turns_are_geometric() -> None:
    """A mean of 4, a quarter of the sessions with a single turn, and three quarters of that with two."""
    counts = [len(turns) for turns in by_session(drawn(sessions(rate="1/s", think="1ms")).requests)]
    assert fmean(counts) == pytest.approx(4, rel=0.05)
    assert counts.count(1) / len(counts) == pytest.approx(1 / 4, abs=0.025)
    assert counts.count(2) / len(counts) == pytest.approx(3 / 16, abs=0.025)


def test_pauses_have_their_mean_and_their_least() -> None:
    """From a turn to the next: at least 5 s, 20 s in the mean, above the least exponential."""
    spec = sessions(rate="0.2/s", think="20s", think_min="5s")
    starts = [[turn.t_ns / NS_PER_S for turn in turns] for turns in by_session(drawn(spec).requests)]
    pauses = [after - before for times in starts for before, after in itertools.pairwise(times)]
    assert min(pauses) >= 5
    assert fmean(pauses) == pytest.approx(20, rel=0.05)
    assert float(np.std(pauses)) == pytest.approx(15, rel=0.1)


def test_sessions_begin_and_end_with_their_phase() -> None:
    """Nothing arrives outside the phase, and the rate that is known beforehand is that within it."""
    load = drawn(sessions(**{"from": "10min", "until": "30min", "tenant": "agents"}))
    times_s = [request.t_ns / NS_PER_S for request in load.requests]
    assert 600 <= min(times_s) < 700
    assert 1700 < max(times_s) < 1800
    assert load.arrival_per_s == pytest.approx(len(times_s) / 1200)
    assert {request.tenant for request in load.requests} == {"agents"}


def test_pauses_do_not_change_what_is_said() -> None:
    """With longer pauses the same prompts come later."""
    first = {"mu": 8, "sigma": 1, "low": 512, "high": 65536}
    quick, slow = (
        by_session(drawn(sessions(think=think, first=first), max_tokens=131_072).requests)
        for think in ("1ms", "20s")
    )
    for early, late in zip(quick[:100], slow[:100], strict=True):
        assert [turn.input_tokens for turn in early] == [turn.input_tokens for turn in late]


@given(
    seed=st.integers(min_value=0, max_value=2**32),
    first=st.integers(min_value=1, max_value=3000),
    increment=st.integers(min_value=1, max_value=1500),
    shared=st.none() | st.integers(min_value=512, max_value=3000),
    max_tokens=st.integers(min_value=6000, max_value=9000),
)
@settings(deadline=None, max_examples=50)
def test_an_id_names_a_whole_prefix(
    seed: int, first: int, increment: int, shared: int | None, max_tokens: int
) -> None:
    """Ids are numbered by first use, cover the prompt, and each stands behind one prefix only.

    Whatever the lengths, the rest behind the last full block is never shared, and no prompt is too long.
    """
    spec = sessions(
        first={"mu": 6, "sigma": 2, "low": 1, "high": first},
        increment=fixed(increment),
        shared=shared and {"tokens": shared, "prefixes": 3},
    )
    requests = drawn(spec, HOUR_NS // 6, max_tokens, seed).requests
    used = list(dict.fromkeys(block for request in requests for block in request.hash_ids))
    assert used == list(range(len(used)))
    before: dict[int, tuple[int, ...]] = {}
    for request in requests:
        assert request.input_tokens <= max_tokens
        assert len(request.hash_ids) == -(-request.input_tokens // BLOCK_TOKENS)
        for place, block in enumerate(request.hash_ids):
            assert before.setdefault(block, request.hash_ids[:place]) == request.hash_ids[:place]
    uses = Counter(block for request in requests for block in request.hash_ids)
    assert all(uses[r.hash_ids[-1]] == 1 for r in requests if r.input_tokens % BLOCK_TOKENS)
    assert [request.t_ns for request in requests] == sorted(request.t_ns for request in requests)
    assert [request.id for request in requests] == list(range(len(requests)))


def test_increments_are_what_a_cache_leaves_to_compute() -> None:
    """Full blocks of the turn before are known: 1000, then 1400 without one block, 1800 without two."""
    load = drawn(sessions(turns=1000, rate="0.001/s"), 10 * HOUR_NS, max_tokens=1800)
    assert sorted(set(load.length_quantiles)) == [1000, 1400, 1800]
    assert sorted(set(load.increment_quantiles)) == [1800 - 1024, 1400 - 512, 1000]


TEXTS = st.lists(
    st.tuples(st.lists(st.integers(min_value=0, max_value=1), max_size=4), st.sampled_from([0, 1, 511])),
    max_size=12,
)


@given(TEXTS)
@settings(deadline=None)
def test_increments_agree_with_texts(texts: list[tuple[list[int], int]]) -> None:
    """Prompts written out block by block: what is left is what lies behind the longest common prefix.

    The rest of a prompt has the id of its text, but does not count, even where the whole prompt comes again.
    """
    names: dict[tuple[int, ...], int] = {}
    requests = []
    expected = []
    for number, (blocks, rest) in enumerate(texts):
        common = max((_common(blocks, earlier) for earlier, _ in texts[:number]), default=0)
        prefixes = [tuple(blocks[: n + 1]) for n in range(len(blocks))]
        last = [(*blocks, -rest)] if rest else []
        ids = tuple(names.setdefault(prefix, len(names)) for prefix in prefixes + last)
        tokens = len(blocks) * BLOCK_TOKENS + rest
        requests.append(Request(id=number, t_ns=number, input_tokens=tokens, output_tokens=1, hash_ids=ids))
        expected.append(max(tokens - common * BLOCK_TOKENS, 1))
    assert increments(requests) == tuple(expected)


def _common(one: list[int], other: list[int]) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
