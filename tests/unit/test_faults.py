"""Faults: entries become faults of the plan, and those that a seed draws could have been written."""

from __future__ import annotations

import asyncio
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import AgentError
from testbed.faults.freezer import Freezer
from testbed.faults.orders import BEAT_S, beat, orders
from testbed.plan import DIRECTIONS, Fault, LinkChange, Plan
from testbed.resolve import load_and_resolve, resolve
from testbed.resolve.faults import clash
from testbed.scenario.faults import KINDS, LINK_KINDS
from testbed.scenario.load import load

ROOT = Path(__file__).parents[2]
BASE = ROOT / "tests/data/base.yaml"
S = 1_000_000_000
VERIFIED = "transport={payload: verified}"
FAULTS = (
    "timeline=[{at: 5s, kill: prfaas-1}, {at: 1s, restart: router, after: 1s}, "
    "{at: 5s, pause: decode-1, for: 3s}, {at: 4s, slow: prefill-1, factor: 4, for: 5s}, "
    "{at: 5s, corrupt: prfaas-2, chunks: 3}, {at: 5s, fill: decode-2, for: 5s}, "
    "{at: 6s, exhaust_ports: a1, for: 5s}]"
)
WRITTEN = (
    "timeline=[{at: 2s, link: both, partition: true, for: 2s}, {at: 3s, link: a_to_b, set: {loss: 1%}}, "
    "{at: 3s, kill: prfaas-1}, {at: 6s, pause: decode-1, for: 4s}, {at: 9s, idle: 2s}, "
    "{at: 5s, link: b_to_a, wave: {black_hole_above: 1400}, shape: square, period: 1s, until: 8s}]"
)


def planned(*overrides: str, seed: int | None = None) -> Plan:
    """The plan of the base scenario with some values changed."""
    return load_and_resolve(BASE, overrides=overrides, seed=seed)[1]


def test_entries_become_faults() -> None:
    """By time, with their end, and with how much of it there is."""
    assert planned(VERIFIED, FAULTS).faults == (
        Fault(t_ns=1 * S, kind="restart", target="router", until_ns=2 * S),
        Fault(t_ns=4 * S, kind="slow", target="prefill-1", until_ns=9 * S, amount=4.0),
        Fault(t_ns=5 * S, kind="kill", target="prfaas-1"),
        Fault(t_ns=5 * S, kind="pause", target="decode-1", until_ns=8 * S),
        Fault(t_ns=5 * S, kind="corrupt", target="prfaas-2", amount=3),
        Fault(t_ns=5 * S, kind="fill", target="decode-2", until_ns=10 * S),
        Fault(t_ns=6 * S, kind="exhaust_ports", target="a1", until_ns=11 * S),
    )


def test_events_tell_of_faults() -> None:
    """What begins says for how long, what ends says so, and a death has no end."""
    events = [(event.t_ns // S, event.name, event.detail) for event in planned(VERIFIED, FAULTS).events]
    assert (1, "restart", "router dies, and is started again 1s later") in events
    assert (2, "restart.end", "router is started again") in events
    assert (4, "slow", "prefill-1 is 4 times slower for 5s") in events
    assert (8, "pause.end", "decode-1 goes on") in events
    assert [detail for _, name, detail in events if name.startswith(("kill", "corrupt"))] == [
        "prfaas-1 dies",
        "prfaas-2 sends 3 chunks with a bit turned over",
    ]


def test_a_fault_can_be_referred_to() -> None:
    """The end of a restart is a named moment, as that of a partition is."""
    plan = planned(
        "timeline=[{at: 1s, event: gone, restart: router, after: 2s}]",
        "expect=[{recovery: goodput_bps, after: gone.end, min: 1mbit, max: 1gbit, within: 3s}]",
    )
    assert plan.expectations[0].from_ns == 3 * S


def test_a_set_for_a_while_is_taken_back() -> None:
    """What held before comes back at its end, also what another entry had set, and nothing else changes."""
    plan = planned(
        "timeline=[{at: 2s, link: a_to_b, set: {loss: 1%}}, "
        "{at: 4s, event: storm, link: a_to_b, set: {loss: 5%, black_hole_above: 1400}, for: 3s}, "
        "{at: 5s, link: a_to_b, set: {rate: 1gbit}}]"
    )
    states = {change.t_ns // S: change.state for change in plan.changes if change.direction == "a_to_b"}
    ratios = {t_s: state.loss.ratio if state.loss else 0 for t_s, state in states.items()}
    assert ratios == {0: 0, 2: 0.01, 4: 0.05, 5: 0.05, 7: 0.01}
    assert (states[4].black_hole_bytes, states[7].black_hole_bytes) == (1400, None)
    assert states[7].rate_bps == 10**9
    details = {event.name: event.detail for event in plan.events}
    assert details["storm"] == "a_to_b: loss 0.05, black_hole_above 1400 for 3s"
    assert details["storm.end"] == "a_to_b: loss, black_hole_above as before"


def test_nobody_asks_for_a_while() -> None:
    """Requests of that time are left out; the others, and what a scheduler may know, stay as they are."""
    whole, part = planned(), planned("timeline=[{at: 5s, idle: 3s}, {at: 12s, idle: 1s}]")
    assert part.requests == tuple(
        request
        for request in whole.requests
        if not (5 * S <= request.t_ns < 8 * S or 12 * S <= request.t_ns < 13 * S)
    )
    assert 0 < len(part.requests) < len(whole.requests)
    assert part.policy == whole.policy


@pytest.mark.parametrize(
    ("one", "other", "clashes"),
    [
        (("pause", 1, 3), ("kill", 2, None), True),
        (("pause", 1, 3), ("kill", 3, None), True),
        (("pause", 1, 3), ("kill", 4, None), False),
        (("kill", 1, None), ("fill", 9, 10), True),
        (("slow", 1, 3), ("fill", 2, 4), False),
        (("slow", 1, 3), ("slow", 2, 4), True),
        (("corrupt", 1, None), ("corrupt", 2, None), False),
        (("corrupt", 1, None), ("corrupt", 1, None), True),
        (("restart", 1, 3), ("pause", 6, 7), True),
        (("restart", 1, 3), ("pause", 7, 8), False),
        (("exhaust_ports", 1, 3), ("pause", 2, 3), False),
    ],
)
def test_what_cannot_be_done_at_once(
    one: tuple[str, int, int | None], other: tuple[str, int, int | None], *, clashes: bool
) -> None:
    """Deaths and pauses exclude the rest on the same target, everything excludes its own kind, both ways.

    Here an agent that does not answer is given up after 2 s.
    """
    first, second = (
        Fault(t_ns=t_s * S, kind=kind, target="router", until_ns=None if end_s is None else end_s * S)  # type: ignore[arg-type]
        for kind, t_s, end_s in (one, other)
    )
    assert clash(first, second, 2 * S) == clash(second, first, 2 * S) == clashes


drawn = st.fixed_dictionaries({
    "low": st.integers(0, 8),
    "more": st.integers(1, 30),
    "from_ms": st.integers(0, 9000),
    "length_us": st.integers(1000, 11_000_000),
    "longest": st.floats(0.01, 1),
    "kinds": st.sets(st.sampled_from(KINDS), min_size=1),
})  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(spec=drawn, seed=st.integers(0, 2**63 - 1), written=st.sampled_from((WRITTEN, FAULTS, "timeline=[]")))
def test_drawn_faults_are_always_valid(spec: dict, seed: int, written: str) -> None:  # type: ignore[type-arg]
    """Whatever is drawn resolves beside what is written, ends in time, and leaves somebody of each role."""
    from_us, until_us = spec["from_ms"] * 1000, spec["from_ms"] * 1000 + spec["length_us"]
    longest_us = max(1000, int(spec["length_us"] * spec["longest"]))
    low, high = spec["low"], spec["low"] + spec["more"]
    section = (
        f"faults={{count: [{low}, {high}], from: {from_us}us, until: {until_us}us, longest: {longest_us}us, "
        f"kinds: [{', '.join(sorted(spec['kinds']))}]}}"
    )
    plan, plain = planned(VERIFIED, written, section, seed=seed), planned(VERIFIED, written, seed=seed)
    assert plan == planned(VERIFIED, written, section, seed=seed)
    new = list(plan.events)
    for event in plain.events:
        new.remove(event)
    assert all(from_us * 1000 <= event.t_ns <= until_us * 1000 for event in new)
    assert sum(not event.name.endswith(".end") for event in new) <= high
    silence_ns = plan.failures.silence_ns
    assert not any(clash(one, other, silence_ns) for one, other in combinations(plan.faults, 2))
    assert plan.requests
    dead = {fault.target for fault in plan.faults if fault.kind == "kill"}
    assert len({(a.cluster, a.role) for a in plan.agents if a.name not in dead}) == 5
    assert not dead & {"router", "client"}


def test_every_kind_is_drawn_at_some_time() -> None:
    """With room for all of them, every kind that there is comes, and its direction or target varies."""
    section = "faults={count: [100, 100], until: 20s, longest: 200ms}"
    plans = [planned(VERIFIED, "timeline=[]", section, seed=seed) for seed in range(5)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {fault.kind for fault in faults} == {*KINDS} - {*LINK_KINDS, "idle"}
    assert {fault.target for fault in faults if fault.kind == "pause"} > {"router", "decode-1", "prfaas-2"}
    names = {event.name for plan in plans for event in plan.events}
    assert {"idle", "flap", "partition", "set"} <= names
    details = [event.detail for plan in plans for event in plan.events if event.name == "partition"]
    assert {detail.split(":")[0] for detail in details} == {"both", *DIRECTIONS}
    losses = {change.state.loss.ratio for plan in plans for change in plan.changes if change.state.loss}
    assert min(losses) >= 0.001
    assert max(losses) <= 0.05


def test_kinds_that_a_scenario_cannot_have_are_left_out() -> None:
    """By default nothing is drawn that would be refused; a bulk workload gets trouble with the link only."""
    section = "faults={count: [50, 50], until: 20s, longest: 200ms}"
    assert "corrupt" not in {fault.kind for fault in planned("timeline=[]", section).faults}
    bulk = load_and_resolve(ROOT / "scenarios/full_rate.yaml", overrides=[section.replace("20s", "5s")])[1]
    assert bulk.faults == ()
    assert changed(bulk) > 10


def changed(plan: Plan) -> int:
    """How often the link changes during the run."""

    def counts(change: LinkChange) -> bool:
        return change.t_ns > 0

    return sum(map(counts, plan.changes))


def test_a_seed_draws_the_same_and_another_one_something_else() -> None:
    """The faults of a run are as repeatable as its requests, and written ones do not depend on the seed."""
    section = "faults={count: [5, 5], until: 20s, longest: 1s}"
    loaded = load(BASE, [section])
    plans = [resolve(loaded, seed=s, scale=None, base_dir=ROOT, traces=None) for s in (1, 1, 2)]
    assert plans[0].events == plans[1].events != plans[2].events


def test_orders_to_agents() -> None:
    """What an agent's stdin gets, as it reads it; the router reads none."""
    made = [
        Fault(t_ns=0, kind="slow", target="x", until_ns=1, amount=2.5),
        Fault(t_ns=0, kind="slow", target="router", until_ns=1, amount=2.5),
        Fault(t_ns=0, kind="corrupt", target="x", amount=3),
        Fault(t_ns=0, kind="fill", target="x", until_ns=1),
        Fault(t_ns=0, kind="pause", target="x", until_ns=1),
    ]
    assert [orders(fault) for fault in made] == [
        ("slow 2.5", "slow 1"),
        ("", ""),
        ("corrupt 3", ""),
        ("fill on", "fill off"),
        ("", ""),
    ]


@given(st.floats(1.01, 50))
def test_a_beat_leaves_its_share(factor: float) -> None:
    """Of each 100 ms an agent runs 1/factor."""
    still_s, running_s = beat(factor)
    assert still_s + running_s == pytest.approx(BEAT_S)
    assert running_s * factor == pytest.approx(BEAT_S)


def group(tmp_path: Path, frozen: str) -> Freezer:
    """A freezer over plain files, whose kernel always says the same."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text("12:cpu:/other\n0::/testbed-1/decode-1\n")
    directory = tmp_path / "testbed-1/decode-1"
    directory.mkdir(parents=True)
    (directory / "cgroup.freeze").write_text("0")
    (directory / "cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")
    return Freezer("decode-1", 7, root=tmp_path, processes=tmp_path)


def test_freezing_is_believed_when_the_kernel_says_so(tmp_path: Path) -> None:
    """The group of version 2 is written to; one that never stands still is an error that names the agent."""
    asyncio.run(group(tmp_path, "1").freeze())
    assert (tmp_path / "testbed-1/decode-1/cgroup.freeze").read_text() == "1"


def test_freezing_in_vain_is_an_error(tmp_path: Path) -> None:
    """A group that does not come to a stand says so, with the agent's name."""
    with pytest.raises(AgentError, match=r"agent decode-1: .*frozen 0.* after 1 s"):
        asyncio.run(group(tmp_path, "0").freeze())


def test_where_version_1_has_a_freezer_it_does(tmp_path: Path) -> None:
    """Its own words, read back from the same file; the group of version 2 is that of everybody, and stays."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text("4:freezer,other:/testbed-1/decode-1\n0::/\n")
    directory = tmp_path / "freezer/testbed-1/decode-1"
    directory.mkdir(parents=True)
    state = directory / "freezer.state"
    state.write_text("THAWED")
    freezer = Freezer("decode-1", 7, root=tmp_path, processes=tmp_path)
    asyncio.run(freezer.freeze())
    assert state.read_text() == "FROZEN"
    asyncio.run(freezer.thaw())
    assert state.read_text() == "THAWED"


def test_without_groups_of_version_2_nothing_can_be_frozen(tmp_path: Path) -> None:
    """The message says what the kernel lacks."""
    with pytest.raises(AgentError, match="control groups of version 2"):
        Freezer("decode-1", 7, root=tmp_path, processes=tmp_path)
