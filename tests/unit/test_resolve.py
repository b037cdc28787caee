"""Resolving: a scenario and a seed become one plan, the same every time, with nothing left to decide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import ScenarioError
from testbed.metrics import METRICS
from testbed.plan import DIRECTIONS, LinkChange, LinkState, Loss, Plan
from testbed.resolve import load_and_resolve
from testbed.resolve.seeds import derive_seed
from testbed.tables import TABLES

ROOT = Path(__file__).parents[2]
BASE = ROOT / "tests/data/base.yaml"
S = 1_000_000_000
MIB = 2**20


def planned(*overrides: str, path: Path = BASE, seed: int | None = None, scale: float | None = None) -> Plan:
    """The plan of the base scenario with some values changed."""
    return load_and_resolve(path, overrides=overrides, seed=seed, scale=scale)[1]


def refused(*overrides: str) -> str:
    """The message with which the base scenario is refused after some changes."""
    with pytest.raises(ScenarioError) as caught:
        planned(*overrides)
    return str(caught.value)


def changes(plan: Plan, direction: str = "a_to_b") -> list[LinkChange]:
    """The changes of one direction."""
    return [change for change in plan.changes if change.direction == direction]


def test_the_same_seed_gives_the_same_plan() -> None:
    """A plan depends on scenario and seed alone."""
    assert planned() == planned()


def test_another_seed_gives_other_dice_only() -> None:
    """The seed changes requests and the link's seeds, and nothing else."""
    one, two = planned(seed=1), planned(seed=2)
    assert one.requests != two.requests
    assert {change.seed for change in one.changes}.isdisjoint({change.seed for change in two.changes})
    assert one.expectations == two.expectations
    assert [change.state for change in one.changes] == [change.state for change in two.changes]


def test_seeds_are_stable() -> None:
    """The derivation of seeds must never change: recorded runs depend on it."""
    assert derive_seed(1, "link", "a_to_b", 0) == 4139465602283735386


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """What is written is read back the same."""
    planned().write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == planned()


@pytest.mark.parametrize("name", ["congestion", "congestion_static", "full_rate"])
def test_our_scenarios_resolve(name: str) -> None:
    """Every scenario we ship makes a plan, in small, too."""
    path = ROOT / f"scenarios/{name}.yaml"
    assert planned(path=path, scale=0.1).link["a_to_b"].rate_bps == 10**10


@pytest.mark.parametrize(
    "path", sorted((ROOT / "scenarios/links").glob("*.yaml")), ids=lambda path: path.stem
)
def test_our_links_resolve(path: Path) -> None:
    """Every example of a link makes a plan whatever the seed, with transfers and expectations on them."""
    for seed in range(4):
        plan = planned(path=path, seed=seed)
        assert len(plan.expectations) > 1
        assert plan.bulk


def test_the_two_congestion_scenarios_differ_in_the_policy_only() -> None:
    """A control that differs in more would prove nothing."""
    main = planned(path=ROOT / "scenarios/congestion.yaml")
    control = planned(path=ROOT / "scenarios/congestion_static.yaml")
    assert main.policy.name != control.policy.name
    assert main.requests == control.requests
    assert main.changes == control.changes
    assert main.bursts == control.bursts
    assert [e.metric for e in main.expectations] == [e.metric for e in control.expectations]


def test_every_state_is_full_and_every_change_has_a_seed() -> None:
    """A change carries what it does not change as well, under a seed of its own."""
    plan = planned("timeline.0.set={loss: 1%}")
    drop = next(change for change in changes(plan) if change.t_ns == 5 * S)
    assert drop.state == LinkState(
        rate_bps=10**10,
        buffer_bytes=12_500_000,
        delay_ns=5_000_000,
        jitter_ns=0,
        loss=Loss(model="random", ratio=0.01),
    )
    assert len({change.seed for change in plan.changes}) == len(plan.changes)


def test_the_run_begins_with_a_change_of_each_direction() -> None:
    """At 0 both directions take their initial state under a seed."""
    plan = planned()
    first = [change for change in plan.changes if change.t_ns == 0]
    assert [(change.direction, change.state) for change in first] == [(d, plan.link[d]) for d in DIRECTIONS]


def test_a_set_at_the_start_is_the_first_change() -> None:
    """Two changes of one direction never share a time."""
    plan = planned("timeline.0.at=0s")
    assert [change.state.rate_bps for change in changes(plan) if change.t_ns == 0] == [10**9]
    assert plan.link["a_to_b"].rate_bps == 10**10


def test_a_buffer_in_time_follows_the_rate() -> None:
    """10 ms are ten times fewer bytes at a tenth of the rate; a buffer in bytes stays."""
    assert changes(planned())[1].state.buffer_bytes == 1_250_000
    assert changes(planned("link.a_to_b.buffer=3MB"))[1].state.buffer_bytes == 3_000_000


def test_scale_multiplies_bytes_and_not_times() -> None:
    """Rates, buffers and bursts shrink; delays, times and requests do not."""
    full, small = planned("link.a_to_b.buffer=30MB"), planned("link.a_to_b.buffer=30MB", scale=0.1)
    assert small.link["a_to_b"] == LinkState(
        rate_bps=10**9, buffer_bytes=3_000_000, delay_ns=5_000_000, jitter_ns=0
    )
    assert small.link["b_to_a"].buffer_bytes * 10 == full.link["b_to_a"].buffer_bytes
    assert [burst.size_bytes * 10 for burst in small.bursts] == [burst.size_bytes for burst in full.bursts]
    assert small.requests == full.requests
    assert [change.t_ns for change in small.changes] == [change.t_ns for change in full.changes]


def test_a_ramp_becomes_steps() -> None:
    """One step every 100 ms from the value at its begin, exact at its end."""
    ramp = [change for change in changes(planned()) if 10 * S < change.t_ns <= 12 * S]
    assert [change.t_ns for change in ramp] == [10 * S + n * S // 10 for n in range(1, 21)]
    assert ramp[0].state.rate_bps == 10**9 + 9 * 10**9 // 20
    assert ramp[-1].state.rate_bps == 10**10


@given(
    start=st.integers(min_value=10**9 // 8, max_value=10**11 // 8).map(lambda byte_rate: 8 * byte_rate),
    end=st.integers(min_value=10**9 // 8, max_value=10**11 // 8).map(lambda byte_rate: 8 * byte_rate),
    over_ms=st.integers(min_value=50, max_value=5000),
    steps=st.integers(min_value=1, max_value=50),
)
@settings(max_examples=25, deadline=None)
def test_ramps_are_monotone_and_arrive(start: int, end: int, over_ms: int, steps: int) -> None:
    """A ramp never turns back, keeps between its ends, and arrives at its end on time."""
    ramp = f"{{at: 10s, link: a_to_b, ramp: {{rate: {end}bit}}, over: {over_ms}ms, steps: {steps}}}"
    plan = planned(f"timeline.0.set.rate={start}bit", f"timeline.1={ramp}", "expect=[]", "timeline.2.at=19s")
    steps_taken = [change for change in changes(plan) if 10 * S < change.t_ns < 19 * S]
    rates = [start, *(change.state.rate_bps for change in steps_taken)]
    assert rates == sorted(rates, reverse=end < start)
    assert (steps_taken[-1].t_ns, rates[-1]) == (10 * S + over_ms * 1_000_000, end)
    assert len(steps_taken) == steps


def test_a_ramp_of_several_values() -> None:
    """Delay, buffer and loss move together, the partition after it is unharmed."""
    overrides = ("timeline.1.ramp={delay: 9ms, buffer: 20ms, loss: 1%}", "timeline.1.steps=2")
    half, end = (change.state for change in changes(planned(*overrides))[2:4])
    assert (half.delay_ns, half.loss) == (7_000_000, Loss(model="random", ratio=0.005))
    assert (end.delay_ns, end.loss) == (9_000_000, Loss(model="random", ratio=0.01))
    assert (half.buffer_bytes, end.buffer_bytes) == (1_875_000, 2_500_000)


def test_a_partition_begins_and_ends() -> None:
    """Both directions stop and go on with the values they have by then."""
    plan = planned()
    for direction in DIRECTIONS:
        cut, healed = changes(plan, direction)[-2:]
        assert (cut.t_ns, cut.state.partitioned) == (15 * S, True)
        assert (healed.t_ns, healed.state) == (16 * S, plan.link[direction])


def test_a_partition_without_end() -> None:
    """Without `for`, nothing passes until the end of the run."""
    plan = planned("timeline.2={at: 15s, link: a_to_b, partition: true}")
    assert changes(plan)[-1].state.partitioned


def test_gilbert_elliott_comes_through() -> None:
    """All four probabilities reach the plan."""
    plan = planned("link.a_to_b.loss={model: gilbert_elliott, p: 0.1%, r: 10%, bad: 0.5, good: 1e-9}")
    assert plan.link["a_to_b"].loss == Loss(
        model="gilbert_elliott", p=0.001, r=0.1, loss_bad=0.5, loss_good=1e-9
    )


def test_bursts_come_regularly() -> None:
    """From `at` on, every `every`, before `until`."""
    assert [burst.t_ns for burst in planned().bursts] == [1 * S, 3 * S, 5 * S]


def test_too_many_bursts_are_refused() -> None:
    """A typing error must not fill the memory."""
    assert "makes too many bursts" in refused("timeline.3.background.every=1us")


def test_too_many_requests_are_refused() -> None:
    """A typing error must not fill the memory."""
    assert "requests within the run" in refused("workload.rate=1000000/s")


def test_events_have_their_names() -> None:
    """Named entries keep their name, and what lasts has an end."""
    names = [(event.t_ns // S, event.name) for event in planned().events]
    assert names == [
        (1, "background"), (5, "drop"), (7, "background.end"), (10, "climb"), (12, "climb.end"), (15, "cut"),
        (16, "cut.end"),
    ]  # fmt: skip


def test_agents_have_their_places() -> None:
    """One agent a host: prefill of DC A, then prefill and decode of DC B in order."""
    places = {agent.name: agent.host for agent in planned().agents}
    assert places == {
        "router": "router", "client": "client", "prfaas-1": "a1", "prfaas-2": "a2",
        "prefill-1": "b1", "decode-1": "b2", "decode-2": "b3",
    }  # fmt: skip


def test_windows_and_memory_follow_from_the_link() -> None:
    """Twice, or four times, the bandwidth-delay product and the buffer of the fastest state."""
    plan = planned("link.a_to_b.rate=100gbit")
    need_bytes = 100 * 10**9 // 8 // 100 + 125_000_000
    assert plan.window_bytes == 2 * need_bytes
    assert plan.memory_bytes == 3 * 1024 * MIB + -(-4 * need_bytes // MIB) * MIB


def test_windows_have_limits() -> None:
    """16 MiB at least; at most what the kernel's ints hold."""
    thin = planned("link.a_to_b.buffer=100MB", "link.b_to_a.buffer=100MB", scale=0.001)
    assert thin.window_bytes == 16 * MIB
    fat = planned("link.a_to_b={rate: 100gbit, buffer: 2GiB, delay: 40ms}")
    assert fat.window_bytes == 2**31 - 1


def test_a_longer_way_back_needs_a_larger_window() -> None:
    """The round trip is both delays at the same time, whichever direction changes."""
    message = refused(
        "link.a_to_b.rate=100gbit",
        "timeline.0={at: 5s, link: b_to_a, set: {delay: 1s}}",
        "transport.connections=2",
    )
    assert "too few connections (2) to fill 100gbit at a round trip of 1.005s" in message
    assert "set transport.connections to 12 or more" in message


def test_connections_as_told_are_enough() -> None:
    """The number that the message names is accepted, one less is not."""
    link = "link.a_to_b={rate: 100gbit, buffer: 10ms, delay: 300ms}"
    assert "to 4 or more" in refused(link, "transport.connections=3")
    assert planned(link, "transport.connections=4").transport.connections == 4


def test_expectations_have_times_and_names() -> None:
    """Events become times, windows get their defaults, and a name says what is expected."""
    reaction = "{reaction: threshold_tokens, after: drop, crosses: above, level: 22000, within: 3s}"
    recovery = "{recovery: link.a_to_b.backlog_bytes, after: climb.end, max: 1MB, within: 3s, to: 18s}"
    stability = "{stability: threshold_tokens, max_direction_changes: 6, ignore_moves_below: 500}"
    bound = "{bound: ttft_s.p90, from: 1s, max: 20s}"
    plan = planned(f"expect=[{reaction}, {recovery}, {stability}, {bound}]")
    assert [(e.kind, e.from_ns // S, e.to_ns // S) for e in plan.expectations] == [
        ("reaction", 5, 8), ("recovery", 12, 18), ("stability", 0, 20), ("bound", 1, 20),
    ]  # fmt: skip
    assert [e.name for e in plan.expectations] == [
        "threshold_tokens crosses above 22000 tokens within 3s of drop",
        "link.a_to_b.backlog_bytes at most 1MB within 3s of climb.end",
        "threshold_tokens turns at most 6 times",
        "ttft_s.p90 at most 20s",
    ]
    assert [(e.low, e.high, e.level) for e in plan.expectations] == [
        (None, None, 22_000.0), (None, 1e6, None), (None, 6.0, 500.0), (None, 20.0, None),
    ]  # fmt: skip


def test_checksums_of_bulk_transfers_are_refused() -> None:
    """Bulk bytes are not checked, so an expectation on their checksums could not be judged."""
    overrides = ["expect=[{bound: transfers.checksum_errors, max: 0}]", "transport.payload=verified"]
    with pytest.raises(ScenarioError, match="the bytes of bulk transfers are not checked"):
        planned(*overrides, path=ROOT / "scenarios/full_rate.yaml")


def test_expectations_know_their_line() -> None:
    """Messages of the verdict can point into the file."""
    line = planned().expectations[0].line
    assert BASE.read_text().splitlines()[line - 1].strip().startswith("- {bound: requests")


def test_every_metric_has_its_columns() -> None:
    """The vocabulary names columns that the record has."""
    for name, metric in METRICS.items():
        columns = {
            metric.column,
            metric.time,
            metric.whole or metric.column,
            *(column for column, _ in metric.where + metric.counted),
        }
        assert columns <= set(TABLES[metric.table]), name


def test_traces_by_option_variable_or_neighbourhood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--traces wins over TESTBED_TRACES, which wins over the scenario's own directory."""
    workload = "workload={kind: mooncake, trace: t.jsonl, clamp: true}"
    row = '{"timestamp": 0, "input_length": %d, "output_length": 1, "hash_ids": []}\n'
    scenario = tmp_path / "own/base.yaml"
    for number, name in enumerate(("own", "variable", "option"), start=1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.jsonl").write_text(row % number)
    scenario.write_bytes(BASE.read_bytes())

    def tokens(traces: Path | None = None) -> int:
        plan = load_and_resolve(scenario, overrides=[workload], traces=traces)[1]
        return plan.requests[0].input_tokens

    monkeypatch.delenv("TESTBED_TRACES", raising=False)
    assert tokens() == 1
    monkeypatch.setenv("TESTBED_TRACES", os.fspath(tmp_path / "variable"))
    assert tokens() == 2
    assert tokens(tmp_path / "option") == 3
    (tmp_path / "variable/t.jsonl").unlink()
    assert tokens() == 1, "a directory of traces does not hide the one beside the scenario"


def test_a_trace_with_too_long_a_name_is_a_finding() -> None:
    """It is the scenario that is wrong, not the machine."""
    with pytest.raises(ScenarioError, match=r"workload\.trace: cannot be looked for: File name too long"):
        planned(f"workload={{kind: mooncake, trace: {'t' * 300}}}")


def test_a_bulk_workload_has_no_agents() -> None:
    """Transfers that measure the link run without the system under test."""
    plan = planned(path=ROOT / "scenarios/full_rate.yaml")
    assert (plan.agents, plan.requests, plan.model, plan.policy.name) == ((), (), "", "")
    assert [transfer.size_bytes for transfer in plan.bulk] == [8 * 2**30]


@pytest.mark.parametrize(
    ("seed", "scale"), [(-1, None), (2**63, None), (None, 0.0), (None, 2.0), (None, float("nan"))]
)
def test_wrong_options_are_refused(seed: int | None, scale: float | None) -> None:
    """Seed and scale from the command line have the same limits as in the file."""
    with pytest.raises(ScenarioError, match=r"^--(seed|scale) "):
        planned(seed=seed, scale=scale)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["scenarios/congestion.yaml", "--scale", "0.1"], 0, "10gbit"),
        (
            ["scenarios/congestion.yaml", "--set", "duration=5"],
            3,
            "--set duration=5: duration: 5 has no unit",
        ),
        (["scenarios/congestion.yaml", "--scale", "much"], 3, "arguments: "),
        ([], 3, "arguments: "),
    ],
)
def test_the_check_command(arguments: list[str], code: int, says: str) -> None:
    """`python -m testbed.check` ends with 0 or 3, and never with a traceback."""
    command = [sys.executable, "-m", "testbed.check", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    assert (result.returncode, says in output, "Traceback" in output) == (code, True, False)
