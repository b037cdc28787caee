"""The audit in the guest: links with every impairment are found to be as asked, and not as anything else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from rich.console import Console

from testbed import audit, expect
from testbed import tables as record
from testbed.calibrate import link_only
from testbed.kernel.uml import Uml
from testbed.plan import (
    Burst,
    Direction,
    LinkChange,
    LinkState,
    Loss,
    Microbursts,
    Plan,
    Queue,
    Slot,
    TokenBucket,
)
from testbed.run import carry_out, new_run_dir
from testbed.shaping import distributions
from tests.unit.synthetic_plan import make_plan

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]
TABLES = {name: distributions.table(name) for name in ("uniform", "normal", "pareto")}
BURSTS = tuple(
    Burst(
        t_ns=0, source=source, sink=sink, flows=2, size_bytes=20_000_000, congestion_control="cubic"
    )
    for source, sink in (("tenant-a", "tenant-b"), ("tenant-b", "tenant-a"))
)  # fmt: skip
CALM = LinkState(rate_bps=10**10, buffer_bytes=12_500_000, delay_ns=5_000_000)


def state(**fields: Any) -> LinkState:
    """10 Gbps over 5 ms and something else."""
    return msgspec.structs.replace(CALM, **fields)


@dataclass(frozen=True)
class Case:
    """A state of each direction, and what else could be asked of it, with the finding that must miss then."""

    a_to_b: LinkState
    b_to_a: LinkState
    otherwise: tuple[tuple[Direction, LinkState, str], ...]


CASES = {
    "loss": Case(
        state(loss=Loss(model="random", ratio=0.02), duplicate=0.01),
        state(loss=Loss(model="gilbert_elliott", p=0.01, r=0.1, loss_bad=0.8, loss_good=0.001)),
        (
            ("a_to_b", state(loss=Loss(model="random", ratio=0.05), duplicate=0.01), "loss"),
            ("a_to_b", state(loss=Loss(model="random", ratio=0.02)), "duplicates"),
            ("b_to_a", state(), "loss"),
        ),
    ),
    "order": Case(
        state(reorder=0.05, jitter_ns=300_000, distribution="normal"),
        state(jitter_ns=300_000, distribution="pareto", corrupt=0.01),
        (
            ("a_to_b", state(jitter_ns=300_000, distribution="normal"), "order"),
            ("a_to_b", state(reorder=0.05, jitter_ns=400_000, distribution="normal"), "jitter"),
            ("b_to_a", state(jitter_ns=300_000, distribution="normal", corrupt=0.01), "jitter"),
            ("b_to_a", state(jitter_ns=300_000, distribution="pareto"), "corruption"),
        ),
    ),
    "every": Case(
        state(loss=Loss(model="periodic", every_packets=50), black_hole_bytes=1400),
        state(loss=Loss(model="four_state", p13=0.01, p31=0.3, p32=0.2, p23=0.4, p14=0.005)),
        (
            ("a_to_b", state(loss=Loss(model="periodic", every_packets=49)), "loss"),
            ("a_to_b", state(loss=Loss(model="random", ratio=0.1)), "loss"),
            ("b_to_a", state(delay_ns=5_020_000), "delay, mean"),
        ),
    ),
    "slot": Case(
        state(slot=Slot(min_ns=1_000_000, max_ns=2_000_000, packets=32)),
        state(path_mtu_bytes=1400),
        (
            ("a_to_b", state(), "delay, range"),
            ("b_to_a", state(black_hole_bytes=1399), "packets of 1400 B"),
            ("b_to_a", state(slot=Slot(min_ns=1_000_000, max_ns=2_000_000, packets=32)), "delay, range"),
            ("b_to_a", state(slot=Slot(min_ns=0, max_ns=2_000_000)), "delay, mean"),
        ),
    ),
    "cut": Case(
        state(partitioned=True, duplicate=0.5, loss=Loss(model="random", ratio=0.1)),
        state(
            queue=Queue(kind="fq_codel", ecn=True, target_ns=5_000_000, interval_ns=100_000_000),
            flow_cap_bps=10**9,
            jitter_ns=2_000_000,
        ),
        (("a_to_b", state(), "loss"), ("b_to_a", state(partitioned=True), "partition")),
    ),
    "bucket": Case(
        state(token_bucket=TokenBucket(sustained_bps=10**9, budget_bytes=10**9)),
        state(queue=Queue(kind="red", min_bytes=2_500_000, max_bytes=7_500_000, probability=0.1)),
        (("a_to_b", state(rate_bps=9 * 10**9), "rate"),),
    ),
    "all": Case(
        state(loss=Loss(model="random", ratio=1.0)),
        state(duplicate=1.0),
        (("a_to_b", state(), "loss"), ("b_to_a", state(), "duplicates")),
    ),
    "skipping": Case(
        state(reorder=1.0),
        state(flow_cap_bps=100_000),
        (("a_to_b", state(), "delay, mean"), ("b_to_a", state(delay_ns=5_020_000), "delay, mean")),
    ),
    "asymmetric": Case(
        state(rate_bps=16_000, buffer_bytes=65_536),
        state(rate_bps=10**9, duplicate=0.01),
        (("a_to_b", state(rate_bps=10**9), "rate"), ("b_to_a", state(rate_bps=9 * 10**8), "rate")),
    ),
    "short": Case(
        state(delay_ns=200_000, jitter_ns=200_000, reorder=0.3),
        state(loss=Loss(model="gilbert_elliott", p=0.02, r=0.1), duplicate=0.3),
        (
            ("a_to_b", state(delay_ns=200_000, jitter_ns=200_000), "delay, mean"),
            ("b_to_a", state(loss=Loss(model="gilbert_elliott", p=0.02, r=0.1)), "duplicates"),
        ),
    ),
}
IN_THE_RUN = {
    "loss": ("a_to_b", state(loss=Loss(model="random", ratio=0.1), duplicate=0.01), "loss in the run"),
    "every": (
        "a_to_b", state(loss=Loss(model="periodic", every_packets=49)), "loss ahead of the delay stage",
    ),
    "bucket": (
        "a_to_b",
        state(token_bucket=TokenBucket(sustained_bps=10**8, budget_bytes=10**7)),
        "token bucket",
    ),
}  # fmt: skip
"""What else could be asked of the link in use, and what must miss then."""


def asking(plan: Plan, **states: LinkState) -> Plan:
    """The plan with other states of the link from its beginning."""
    link = {name: states.get(name, one) for name, one in plan.link.items()}
    changes = [
        LinkChange(t_ns=0, direction=direction, state=one, seed=number)
        for number, (direction, one) in enumerate(link.items())
    ]
    return msgspec.structs.replace(plan, link=link, changes=tuple(changes))


def measured(out: Path, plan: Plan) -> dict[str, pl.DataFrame]:
    """The record of a guest that had this link and nobody to use it."""
    run = new_run_dir(out, plan)
    plan.write(run.plan)
    carry_out(run, plan, Uml(), "virtual", Console(quiet=True), quiet=True)
    return record.build(run, plan)


@pytest.mark.parametrize("name", CASES)
def test_a_link_is_found_to_be_what_it_is(tmp_path: Path, name: str) -> None:
    """As asked when that was asked; a miss, and the right one, when something else was."""
    case = CASES[name]
    whole = msgspec.structs.replace(make_plan(requests=0), delay_tables=TABLES, mtu_bytes=1500)
    plan = asking(
        link_only(msgspec.structs.replace(whole, topology_params={"prefill_hosts": 1, "pd_hosts": 1})),
        a_to_b=case.a_to_b,
        b_to_a=case.b_to_a,
    )
    if name in IN_THE_RUN:  # somebody uses it, either way
        plan = msgspec.structs.replace(plan, bursts=BURSTS, duration_ns=6 * 10**9)
    tables = measured(tmp_path, plan)
    assert [one.sentence for one in audit.judge(plan, tables) if not one.ok] == []
    for direction, other, what in case.otherwise:
        misses = {
            (one.direction, one.what)
            for one in audit.judge(asking(plan, **{direction: other}), tables)
            if not one.ok
        }
        assert (direction, what) in misses
    if name in IN_THE_RUN:
        used, other, what = IN_THE_RUN[name]
        findings = audit.judge(asking(plan, **{used: other}), tables)
        assert (used, what) in {(one.direction, one.what) for one in findings if not one.ok}
        (lost,) = [one for one in findings if (one.direction, one.what) == ("a_to_b", "counters")]
        assert lost.ok


def test_broken_frames_are_nobodys_overflow(tmp_path: Path) -> None:
    """Corrupted microbursts and transfers: the devices may drop them, and no socket is blamed."""
    whole = msgspec.structs.replace(make_plan(requests=0), mtu_bytes=1500)
    spoilt = state(rate_bps=10**9, corrupt=0.005)
    plan = asking(
        link_only(msgspec.structs.replace(whole, topology_params={"prefill_hosts": 1, "pd_hosts": 1})),
        a_to_b=spoilt,
        b_to_a=spoilt,
    )
    bursts = Microbursts(
        source="tenant-a", sink="b1", t_ns=0, until_ns=3 * 10**9, every_ns=10**8, length_ns=10**7,
        rate_bps=5 * 10**8, packet_bytes=1000,
    )  # fmt: skip
    plan = msgspec.structs.replace(plan, bursts=BURSTS, microbursts=(bursts,), duration_ns=3 * 10**9)
    run = new_run_dir(tmp_path, plan)
    plan.write(run.plan)
    carry_out(run, plan, Uml(), "virtual", Console(quiet=True), quiet=True)
    tables = record.build(run, plan)
    findings = audit.judge(plan, tables)
    assert expect.trust(run, tables, findings) == []
    came = tables["transfers"].filter(pl.col("use") == "microburst")
    assert "partial" in came["state"].to_list()
