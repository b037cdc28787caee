"""The guard: whatever a policy does wrong is said in words, and what it does right passes unchanged."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policies import POLICIES, limits
from agents.policies.failure import PolicyFailure
from agents.policies.guard import LONGEST_REASON, Guarded
from agents.policies.view import Config, Decision, Request, State, View
from tests.unit.policy_bench import CONFIG, view

GOOD = Decision("pd", 19_600, "as told")
REST = State(19_600, None, "as told")
ASKED = Request("1", 1000, 8)
NOW = view(1.0)


@dataclass
class Told:
    """A policy that answers what the test says, or calls it."""

    decision: Any = GOOD
    state: Any = REST

    def start(self, config: Config) -> State:  # noqa: ARG002 - a policy's signature
        return self._answer(self.state)

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:  # noqa: ARG002 - same
        return self._answer(self.decision)

    def update(self, config: Config, state: State, view: View) -> State:  # noqa: ARG002 - same
        return self._answer(self.state)

    @staticmethod
    def _answer(told: Any) -> Any:
        return told() if callable(told) else told


def routed(decision: Any, config: Config = CONFIG, now: View = NOW, state: State = REST) -> Decision:
    """What the guard lets through of a decision."""
    return Guarded(Told(decision)).route(config, state, now, ASKED)


def updated(state: Any, *, own: bool = False) -> State:
    """What it lets through of a state."""
    return Guarded(Told(state=state), own=own).update(CONFIG, REST, NOW)


WRONG_DECISIONS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "route() answers None (NoneType) instead of a Decision"),
    "a word": ("pd", "route() answers 'pd' (str) instead of a Decision"),
    "no route": ({"route": "here"}, "route() answers route 'here' (str), not prfaas or pd"),
    "an array": ({"route": np.zeros(2)}, "route() answers route array([0., 0.]) (ndarray), not prfaas or pd"),
    "a fraction": ({"threshold_tokens": 1.5}, "threshold_tokens 1.5 (float), not a whole number"),
    "true": ({"threshold_tokens": True}, "threshold_tokens True (bool), not a whole number"),
    "negative": ({"threshold_tokens": -1}, "threshold_tokens -1 (int), not a whole number (int), 0 or more"),
    "huge": ({"threshold_tokens": 2**60}, "not a whole number (int), 0 or more"),
    "numpy": ({"threshold_tokens": np.int64(5)}, "(int64), not a whole number (int)"),
    "no reason": ({"reason": None}, "reason None (NoneType), not a text"),
    "long": ({"reason": "x" * 1001}, f"gives a reason of 1001 characters, not {LONGEST_REASON} at most"),
    "half a letter": ({"reason": "\ud800"}, "not a text that UTF-8 can encode"),
    "cache": ({"cache": "all"}, "cache 'all' (str), not own or best"),
    "compress": ({"compress": 1}, "compress 1 (int), not True or False"),
    "order": ({"order_s": math.nan}, "order_s nan (float), not None or a number of seconds"),
}


@pytest.mark.parametrize("case", WRONG_DECISIONS)
def test_a_wrong_decision_is_said(case: str) -> None:
    """Each field, with what it was and what it may be."""
    given, said = WRONG_DECISIONS[case]
    decision = replace(GOOD, **given) if isinstance(given, dict) else given
    with pytest.raises(PolicyFailure) as caught:
        routed(decision)
    assert said in str(caught.value)


WRONG_STATES: dict[str, tuple[Any, str]] = {
    "nothing": (None, "update() answers None (NoneType) instead of a State"),
    "a decision": (GOOD, "(Decision) instead of a State"),
    "nan": ({"threshold_tokens": math.nan}, "threshold_tokens nan (float), not a whole number"),
    "capacity": ({"capacity_bps": math.nan}, "capacity_bps nan (float), not None or a number of bits"),
    "below 0": ({"capacity_bps": -1.0}, "capacity_bps -1.0 (float)"),
    "regime": ({"regime": "rich"}, "regime 'rich' (str), not scarce or abundant"),
    "more than there are": ({"prefill_instances": 9}, "prefill_instances 9 (int), not None or 0 to 8"),
    "half an instance": ({"prefill_instances": 2.5}, "prefill_instances 2.5 (float)"),
}


@pytest.mark.parametrize("case", WRONG_STATES)
def test_a_wrong_state_is_said(case: str) -> None:
    """Each field, with what it was and what it may be; from start() as from update()."""
    given, said = WRONG_STATES[case]
    state = replace(REST, **given) if isinstance(given, dict) else given
    with pytest.raises(PolicyFailure) as caught:
        updated(state)
    assert said in str(caught.value)
    with pytest.raises(PolicyFailure, match=r"^start\(\) answers"):
        Guarded(Told(state=state)).start(CONFIG)


def test_nobody_is_sent_where_nobody_is() -> None:
    """A cluster that has never had anybody for prefill; one to which instances convert is none of them."""
    no_prfaas = replace(CONFIG, system=replace(CONFIG.system, n_prfaas=0))
    with pytest.raises(PolicyFailure, match="answers prfaas, where no instance does prefill"):
        routed(replace(GOOD, route="prfaas"), no_prfaas)
    no_pd = replace(CONFIG, system=replace(CONFIG.system, n_p=0))
    with pytest.raises(PolicyFailure, match="answers pd, where no instance does prefill"):
        routed(GOOD, no_pd)
    assert routed(GOOD, no_pd, replace(NOW, converting=1)) is GOOD
    assert routed(GOOD, no_pd, replace(NOW, n_p=1)) is GOOD
    assert routed(GOOD, no_pd, state=replace(REST, prefill_instances=1)) is GOOD


def test_compression_has_to_be_there() -> None:
    """Without a profile of compression nothing can be compressed."""
    compressed = replace(GOOD, route="prfaas", compress=True)
    assert routed(compressed) is compressed
    with pytest.raises(PolicyFailure, match="compresses, and the transport has no compression"):
        routed(compressed, replace(CONFIG, system=replace(CONFIG.system, compression=None)))


class Unspeakable(Exception):  # noqa: N818 - a user's
    def __repr__(self) -> str:
        raise ValueError


def raising(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("oops"), "update() raised KeyError('oops') at test_guard.py:"),
        (KeyboardInterrupt(), "update() raised KeyboardInterrupt() at test_guard.py:"),
        (SystemExit(0), "update() raised SystemExit(0) at test_guard.py:"),
        (ValueError("domain"), "update() raised ValueError('domain') at"),
        (Unspeakable(), "update() raised Unspeakable at test_guard.py:"),
        (RuntimeError("\ud800" + "x" * 9999), "..."),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_whatever_is_raised_is_a_failure_with_its_place(
    error: BaseException, said: str, *, own: bool
) -> None:
    """Also what ends programs, and what cannot be printed; shortly, and in a text that can be written."""
    with pytest.raises(PolicyFailure) as caught:
        updated(raising(error), own=own)
    text = str(caught.value)
    assert said in text
    assert len(text.encode()) < 5000


def test_a_failure_that_a_policy_reports_itself_is_passed_on() -> None:
    """One that asks somebody else knows best what went wrong."""
    with pytest.raises(PolicyFailure, match=r"^nobody answers$"):
        updated(raising(PolicyFailure("nobody answers")))


def for_ever() -> None:
    while True:
        pass


def standing_still() -> None:
    while True: pass  # fmt: skip  # noqa: E701


def in_one_line() -> bool:
    return all(number >= 0 for number in iter(int, 1))


def by_calls() -> None:
    for _ in iter(int, 1):
        str.upper("")


def stubbornly() -> State:
    try:
        for_ever()
    except BaseException:  # noqa: BLE001 - what it must not get away with
        return REST


@pytest.mark.parametrize("endless", [for_ever, standing_still, in_one_line, by_calls, stubbornly])
def test_an_endless_loop_of_a_users_policy_ends(
    monkeypatch: pytest.MonkeyPatch, endless: Callable[[], Any]
) -> None:
    """After so many lines, whatever is in the loop; and whoever traces goes on tracing."""
    monkeypatch.setattr(limits, "MOST_LINES", 10_000)
    before = sys.gettrace()
    with pytest.raises(PolicyFailure, match=r"update\(\) ran for more than 10,000 lines at test_guard\.py:"):
        updated(endless, own=True)
    assert sys.gettrace() is before


def test_lines_are_counted_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that computes a lot each time is not one that hangs."""
    monkeypatch.setattr(limits, "MOST_LINES", 1000)
    for _ in range(5):
        assert updated(lambda: max([REST for _ in range(200)], key=id), own=True) is REST


@given(st.integers(0, 2**53), st.none() | st.floats(0, 1e15), st.integers(0, 8), st.text(max_size=100))
def test_what_is_in_range_passes_unchanged(
    tokens: int, capacity_bps: float | None, instances: int, reason: str
) -> None:
    """The very same object, own or not."""
    state = State(tokens, capacity_bps, reason, prefill_instances=instances)
    assert updated(state) is state
    assert updated(state, own=True) is state
    decision = Decision("prfaas", tokens, reason, order_s=capacity_bps)
    assert routed(decision) is decision


def test_parameters_may_be_refused() -> None:
    """A ValueError of start() is an answer."""
    with pytest.raises(ValueError, match="takes no parameters"):
        Guarded(POLICIES["static_threshold"]).start(replace(CONFIG, params={"gain": 1.0}))
