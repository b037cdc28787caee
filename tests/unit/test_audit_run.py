"""The audit of what the samples of a run show: rates, losses, buckets and limits that change as they go."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from testbed import audit
from testbed import tables as record
from testbed.journal import Journal
from testbed.plan import DIRECTIONS, LinkChange, LinkState, Loss, Plan, TokenBucket
from testbed.rundir import RunDir
from tests.unit import synthetic_link
from tests.unit.synthetic_plan import S, make_plan
from tests.unit.synthetic_run import T0_NS

Tables = dict[str, pl.DataFrame]
CALM = LinkState(rate_bps=10**10, buffer_bytes=12_500_000, delay_ns=5_000_000)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(requests=0)


Step = tuple[float, dict[str, Any]]
"""From when on which fields of the state are others."""


def driven(
    directory: Path, plan: Plan, steps: list[Step], samples: list[dict[str, Any]]
) -> tuple[Plan, Tables]:
    """A plan whose link takes these steps from A to B, 1 ms late each, and the record of these samples."""
    changes = [
        LinkChange(
            t_ns=round(t_s * S), direction="a_to_b", seed=1, state=msgspec.structs.replace(CALM, **fields)
        )
        for t_s, fields in steps
    ]
    plan = msgspec.structs.replace(plan, link={"a_to_b": CALM, "b_to_a": CALM}, changes=tuple(changes))
    run = RunDir(directory)
    run.journal.mkdir(parents=True)
    with closing(Journal(run.journal / "bench.jsonl")) as bench:
        bench.note("start", T0_NS)
        for change in changes:
            state = change.state
            bench.note(
                "link_set", T0_NS + change.t_ns + S // 1000, direction="a_to_b", rate_bps=state.rate_bps,
                buffer_bytes=state.buffer_bytes, delay_ns=state.delay_ns, jitter_ns=0, loss_ratio=0.0,
                partitioned=state.partitioned, limit_packets=state.limit_packets or 10**6,
            )  # fmt: skip
    with closing(Journal(run.journal / "audit.jsonl")) as proof:
        for direction in DIRECTIONS:
            proof.note("calibration", T0_NS - S, **synthetic_link.calibration(plan, direction))
    nothing = {"tx_bytes": 0, "tx_packets": 0, "lost_packets": 0, "filtered_packets": 0}
    shown = {"rate_bps": 1, "delay_ns": 1, "jitter_ns": 0, "loss_ratio": 0.0, "drops": 0, "backlog_bytes": 0}
    with closing(Journal(run.journal / "link.jsonl")) as link:
        for sample in [{"t_s": 0.0}, *samples]:
            values = {"flight_packets": 0, **shown, **nothing, **sample}
            t_ns = T0_NS + round(values.pop("t_s") * S)
            link.note("link", t_ns, direction="a_to_b", **values)
    return plan, record.build(run, plan)


def of_the_run(plan: Plan, tables: Tables) -> dict[str, audit.Finding]:
    """What the samples from A to B show."""
    return {one.what: one for one in audit.judge(plan, tables) if one.direction == "a_to_b"}


def every(step_s: float, count: int, **per_sample: int) -> list[dict[str, Any]]:
    """Samples with counters that grow by so much in each."""
    return [
        {"t_s": number * step_s, **{name: number * value for name, value in per_sample.items()}}
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.93, False), (1.07, False)])
def test_a_rate_that_changes_faster_than_samples_is_judged(
    tmp_path: Path, plan: Plan, share: float, ok: bool
) -> None:
    """The trace is integrated over the stretch in which something waited, and over each sample."""
    steps = [(0.01 * number, {"rate_bps": (1 + number % 2) * 10**10}) for number in range(100)]
    size_bytes = round(0.1 * 1.5e10 / 8 * share)
    samples = every(0.1, 10, tx_bytes=size_bytes)
    samples[4] |= {
        "busy_from_ns": T0_NS + 4 * S // 10, "busy_ns": S // 10, "busy_bytes": size_bytes,
    }  # fmt: skip
    found = of_the_run(*driven(tmp_path / "run", plan, steps, samples))
    assert found["rate while busy"].ok is ok
    assert found["rate in the run"].ok is (share <= 1)
    assert "1 look" in found["rate while busy"].more
    assert "10 samples" in found["rate in the run"].more


@pytest.mark.parametrize(("lost", "ok"), [(100, True), (0, False), (400, False)])
def test_ratios_that_change_faster_than_samples_are_judged(
    tmp_path: Path, plan: Plan, lost: int, ok: bool
) -> None:
    """Of a loss trace all samples are one finding, from what the least ratios take to what the highest do."""
    steps = [
        (0.01 * number, {"loss": Loss(model="random", ratio=0.0008 + number * 1e-5)}) for number in range(100)
    ]
    samples = every(0.1, 10, tx_packets=10_000, lost_packets=lost // 10)
    plan, tables = driven(tmp_path / "run", plan, steps, samples)
    (found,) = [one for one in audit.judge(plan, tables) if one.what == "loss in the run"]
    assert found.ok is ok
    assert found.asked == "what 100 loss processes take"


def test_a_chain_that_begins_anew_within_a_sample_says_nothing(tmp_path: Path, plan: Plan) -> None:
    """Samples that cannot be judged are counted, with the reason."""
    burst = Loss(model="gilbert_elliott", p=0.01, r=0.1)
    steps = [(0.01 * number, {"delay_ns": 5_000_000 + number, "loss": burst}) for number in range(50)]
    found = of_the_run(
        *driven(tmp_path / "run", plan, steps, every(0.1, 10, tx_packets=1000, lost_packets=90))
    )
    assert found["samples with loss"].measured == "5 of 10"
    assert "began anew" in found["samples with loss"].more
    assert found["loss in the run"].ok


@pytest.mark.parametrize(("lost", "ok"), [(1000, True), (990, False), (1010, False)])
def test_every_nth_is_exact_in_the_run(tmp_path: Path, plan: Plan, lost: int, ok: bool) -> None:
    """Every 50th of what left the rate stage, but for a super-packet in between."""
    steps: list[Step] = [(0.0, {"loss": Loss(model="periodic", every_packets=50)})]
    samples = every(0.1, 10, tx_packets=5000, lost_packets=lost // 10, filtered_packets=lost // 10)
    samples.insert(0, {"t_s": 0.002})
    found = of_the_run(*driven(tmp_path / "run", plan, steps, samples))
    assert found["loss ahead of the delay stage"].ok is ok
    assert found["loss in the run"].ok


def test_what_a_filter_took_is_no_step_of_the_dice(tmp_path: Path, plan: Plan) -> None:
    """Of 100,000 packets 90,000 vanish ahead of the delay stage, which loses 1 % of the rest."""
    steps: list[Step] = [(0.0, {"loss": Loss(model="random", ratio=0.01), "black_hole_bytes": 1400})]
    samples = [{"t_s": 0.002}, *every(0.1, 10, tx_packets=10_000, lost_packets=9_010, filtered_packets=9_000)]
    found = of_the_run(*driven(tmp_path / "run", plan, steps, samples))
    assert found["loss in the run"].ok
    assert found["loss in the run"].measured == "100 of 10000"


def test_copies_are_lost_too(tmp_path: Path, plan: Plan) -> None:
    """With half of the packets doubled and 10 % lost, (1-d)B + dAB are dropped: 9.5 %, neither 5 nor 10."""
    steps: list[Step] = [(0.0, {"loss": Loss(model="random", ratio=0.1), "duplicate": 0.5})]
    for lost, ok in ((9_500, True), (5_000, False), (10_500, False)):
        samples = [{"t_s": 0.002}, *every(0.1, 10, tx_packets=10_000, lost_packets=lost // 10)]
        found = of_the_run(*driven(tmp_path / str(lost), plan, steps, samples))
        assert found["loss in the run"].ok is ok


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1.05, False)])
def test_a_token_bucket_gives_no_more_than_it_has(
    tmp_path: Path, plan: Plan, factor: float, ok: bool
) -> None:
    """Since it was set: the budget and what it sustains, at most."""
    bucket = TokenBucket(sustained_bps=10**9, budget_bytes=500_000_000)
    samples = [
        {"t_s": 0.002},
        *(
            {"t_s": 0.1 * number, "tx_bytes": round(factor * min(1.25e8 * number, 5e8 + 1.25e7 * number))}
            for number in range(1, 30)
        ),
    ]
    found = of_the_run(*driven(tmp_path / "run", plan, [(0.0, {"token_bucket": bucket})], samples))
    assert found["token bucket"].ok is ok


def test_a_limit_counts_only_while_it_is_in_force(tmp_path: Path, plan: Plan) -> None:
    """Without a counter of its drops a full delay stage is a miss, and one that was as full before is not."""
    steps: list[Step] = [(0.0, {}), (0.5, {"limit_packets": 100})]
    for name, t_s, ok in (("before", 0.3, True), ("in force", 0.7, False)):
        plan_of, tables = driven(tmp_path / name, plan, steps, [{"t_s": t_s, "flight_packets": 150}])
        here = synthetic_link.train(plan_of, "a_to_b", T0_NS, 2)
        told = {"clock": "virtual", "tells_limit_drops": False, "missed": 0, **here}
        event = {"t_s": -1.0, "kind": "train", "name": "a_to_b", "detail": ""}
        event["detail"] = msgspec.json.encode({**told, "tells_limit_drops": False}).decode()
        row = pl.DataFrame([event], schema=tables["events"].schema)
        found = of_the_run(plan_of, {**tables, "events": pl.concat([tables["events"], row])})
        assert ("limit of the delay stage" not in found) is ok


def test_a_flow_cap_is_no_excuse_for_a_slow_link(tmp_path: Path, plan: Plan) -> None:
    """Capped flows wait ahead of the rate stage: what waits in it goes at full rate."""
    busy = {"busy_from_ns": T0_NS + S // 2, "busy_ns": S // 10, "busy_bytes": 10**8}
    steps: list[Step] = [(0.0, {"flow_cap_bps": 10**9})]
    plan, tables = driven(tmp_path / "run", plan, steps, [{"t_s": 1.0, "tx_bytes": 10**9, **busy}])
    found = of_the_run(plan, tables)["rate while busy"]
    assert not found.ok
    assert found.measured == "8 Gbps at 0.5 s"
