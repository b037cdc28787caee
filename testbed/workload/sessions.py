"""Conversations and agents at work: prompts that grow turn by turn, and system prompts that many share.

A prompt is all that was said before in its session, the last answer included, and an increment. Sessions of
one group begin with the same system prompt. Requests say by `hash_ids` what they have in common, in the
form of Mooncake's traces, so that drawn and replayed requests are alike to a prefix cache.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from agents.cache.pool import BLOCK_TOKENS
from testbed.plan import Request
from testbed.scenario.workload import SessionsWorkload
from testbed.workload import Load, drawn_load
from testbed.workload.arrivals import arrival_times_ns
from testbed.workload.draws import exponential, geometric, quantile_tokens


class Turn(NamedTuple):
    """One prompt of a session; sorts by time, and turns of one time and session by length."""

    t_ns: int
    session: int
    input_tokens: int
    group: int


def generate(
    spec: SessionsWorkload,
    duration_ns: int,
    *,
    max_tokens: int,
    arrivals: np.random.Generator,
    sessions: np.random.Generator,
    lengths: np.random.Generator,
    pauses: np.random.Generator,
) -> Load:
    """Requests in the spec's phase of [0, duration); the four generators are used for nothing else.

    A session ends early when its next prompt would have more than `max_tokens`; of sessions that outlast
    the phase, the turns after it are left out.
    """
    start_ns, end_ns = spec.phase(duration_ns)
    weights = _weights(spec)
    turns: list[Turn] = []
    times_ns = arrival_times_ns(spec.arrivals, spec.rate, (start_ns, end_ns), arrivals)
    for number, t_ns in enumerate(times_ns):
        group = bisect_right(weights, sessions.random() * weights[-1], hi=len(weights) - 1)
        begin = Turn(
            t_ns, number, _shared_tokens(spec) + quantile_tokens(spec.first, lengths.random()), group
        )
        count = geometric(spec.turns, sessions.random())
        for turn in itertools.islice(_turns(spec, begin, lengths, pauses), count):
            if turn.input_tokens > max_tokens:
                break
            if turn.t_ns < end_ns:
                turns.append(turn)
    return drawn_load(_requests(spec, sorted(turns)), end_ns - start_ns)


def _shared_tokens(spec: SessionsWorkload) -> int:
    return spec.shared.tokens if spec.shared else 0


def _weights(spec: SessionsWorkload) -> list[float]:
    """Cumulated weights of the groups by Zipf's law; one group without a shared prompt."""
    if spec.shared is None:
        return [1.0]
    return list(itertools.accumulate((n + 1) ** -spec.shared.zipf for n in range(spec.shared.prefixes)))


def _turns(
    spec: SessionsWorkload, turn: Turn, lengths: np.random.Generator, pauses: np.random.Generator
) -> Iterator[Turn]:
    """The turns of a session from its first one on, without end."""
    while True:
        yield turn
        pause_ns = spec.think_min + round(exponential(pauses.random()) * (spec.think - spec.think_min))
        grown = spec.output_tokens + quantile_tokens(spec.increment, lengths.random())
        turn = turn._replace(t_ns=turn.t_ns + pause_ns, input_tokens=turn.input_tokens + grown)


def _requests(spec: SessionsWorkload, turns: list[Turn]) -> tuple[Request, ...]:
    """The turns as requests, in their order, with an id for each prefix block in order of first use.

    Full blocks within the system prompt belong to the group, all others to the session. The rest of a
    prompt behind its last full block has an id that no other request uses.
    """
    ids = itertools.count()
    of_group: dict[int, list[int]] = {}
    of_session: dict[int, list[int]] = {}
    requests: list[Request] = []
    for turn in turns:
        if turn.group not in of_group:
            of_group[turn.group] = list(itertools.islice(ids, _shared_tokens(spec) // BLOCK_TOKENS))
        blocks = of_session.setdefault(turn.session, of_group[turn.group].copy())
        full, rest = divmod(turn.input_tokens, BLOCK_TOKENS)
        blocks += itertools.islice(ids, full - len(blocks))
        requests.append(
            Request(
                id=len(requests),
                t_ns=turn.t_ns,
                input_tokens=turn.input_tokens,
                output_tokens=spec.output_tokens,
                hash_ids=(*blocks, next(ids)) if rest else tuple(blocks),
                tenant=spec.tenant,
            )
        )
    return tuple(requests)
