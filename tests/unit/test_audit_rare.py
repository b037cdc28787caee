"""The audit where a link leaves little to measure, breaks frames, doubles packets or changes late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from testbed import tables as record
from testbed.plan import LinkState, Loss, Plan, Slot
from tests.unit.synthetic_plan import S, make_plan
from tests.unit.synthetic_run import write_run
from tests.unit.test_audit import Tables, edited, of_the_run, probed, starting_with

END = (pl.col("direction") == "a_to_b") & (pl.col("moment") == "end")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(requests=20)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Tables:
    return record.build(write_run(tmp_path_factory.mktemp("runs") / "run", plan, tcp_lines=64), plan)


def throughout(plan: Plan, **fields: Any) -> Plan:
    """The plan whose link from A to B has these fields in every state."""

    def other(state: LinkState) -> LinkState:
        return msgspec.structs.replace(state, **fields)

    changes = tuple(
        msgspec.structs.replace(one, state=other(one.state)) if one.direction == "a_to_b" else one
        for one in plan.changes
    )
    link = {**plan.link, "a_to_b": other(plan.link["a_to_b"])}
    return msgspec.structs.replace(plan, link=link, changes=changes)


@pytest.mark.parametrize(
    ("fields", "place", "ok"),
    [
        ({"corrupt": 0.001}, "far_device", True),
        ({"corrupt": 0.001}, "wan_device", False),
        ({}, "far_device", False),
    ],
)
def test_only_behind_a_stage_that_corrupts_a_device_may_drop(
    plan: Plan, good: Tables, fields: dict[str, Any], place: str, ok: bool
) -> None:
    """A frame with a broken EtherType is dropped where it arrives; anywhere else a drop is a miss."""
    tables = edited(good, "counters", END & (pl.col("place") == place), drops=3)
    assert of_the_run(throughout(plan, **fields), tables)["counters"].ok is ok


@pytest.mark.parametrize(("share", "ok"), [(0.01, True), (0.009, False), (0.011, False)])
def test_copies_in_the_run_are_as_many_as_asked(plan: Plan, good: Tables, share: float, ok: bool) -> None:
    """What left the delay stage or was lost there, beyond what came: 1 % of a million."""
    moment = pl.col("place").is_in(["delay", "delay_device", "far_device"])
    more = round(999_000 * share)
    tables = edited(
        good, "counters", END & moment, packets=pl.col("packets") + more, bytes=pl.col("bytes") + 9000 * more
    )
    found = of_the_run(throughout(plan, duplicate=0.01, loss=None), tables)["duplicates in the run"]
    assert found.measured == f"{more} of 999000"
    assert found.ok is ok


@pytest.mark.parametrize(
    ("fields", "kept", "ok"),
    [
        ({"loss": Loss(model="random", ratio=1.0)}, 0, True),
        ({"loss": Loss(model="random", ratio=0.5)}, 0, False),
        ({"duplicate": 1.0}, 2, True),
        ({"duplicate": 0.5}, 2, False),
    ],
)
def test_where_nothing_can_be_measured_nothing_is_missed(
    tmp_path: Path, plan: Plan, fields: dict[str, Any], kept: int, ok: bool
) -> None:
    """No single probe arrives of a link that loses or doubles all, and only of such a link."""

    def change(train: dict[str, Any]) -> None:
        train["arrived"] = sorted(train["arrived"] * kept, key=lambda one: one[1])

    plan = starting_with(plan, **fields)
    found = of_the_run(plan, probed(tmp_path / "run", plan, change))
    assert found["delay"].ok is ok


def test_rare_events_are_said_to_be_too_rare(tmp_path: Path, plan: Plan) -> None:
    """0.1 % of 2000 probes may be none, which proves nothing; of 2 % it may not."""
    rare = starting_with(plan, loss=Loss(model="random", ratio=1e-3), duplicate=1e-3, corrupt=1e-3)
    found = of_the_run(rare, probed(tmp_path / "rare", rare, lambda _: None))
    for what in ("loss", "duplicates", "corruption"):
        assert (found[what].ok, found[what].measured) == (True, "0 of 2000")
        assert found[what].more == "so rare that 2000 packets may show none: read back from the kernel"
    often = starting_with(plan, corrupt=0.02)
    found = of_the_run(often, probed(tmp_path / "often", often, lambda _: None))
    assert (found["corruption"].ok, found["corruption"].more) == (False, "")


def test_slots_say_that_jitter_is_not_judged(tmp_path: Path, plan: Plan) -> None:
    """A row that judges nothing says so."""
    slotted = starting_with(plan, jitter_ns=100_000, slot=Slot(min_ns=1_000_000, max_ns=2_000_000))
    assert of_the_run(slotted, probed(tmp_path / "run", slotted, lambda _: None))["jitter"].measured == (
        "not judged"
    )


@pytest.mark.parametrize(("late_ns", "ok"), [(4_000_000, True), (7_000_000, False)])
def test_a_late_change_is_a_miss(tmp_path: Path, plan: Plan, late_ns: int, ok: bool) -> None:
    """5 ms in virtual time, and the finding names the change that was latest."""
    noted = record.build(write_run(tmp_path / "run", plan, tcp_lines=64), plan)
    here = (pl.col("kind") == "link_set") & (pl.col("name") == "a_to_b") & (pl.col("t_s") == 30.0)
    tables = edited(noted, "events", here, t_s=30.0 + late_ns / S)
    found = of_the_run(plan, tables)["changes"]
    assert found.ok is ok
    assert found.measured == f"change at 30 s came {late_ns // 10**6} ms late"


def test_a_super_packet_that_still_waits_at_the_end_is_many_packets(plan: Plan, good: Tables) -> None:
    """20 packets that neither left nor were lost are accounted for only if something waits."""
    gone = edited(good, "counters", END & pl.col("place").is_in(["delay", "delay_device", "far_device"]),
                  packets=pl.col("packets") - 20, bytes=pl.col("bytes") - 20 * 9000)  # fmt: skip
    assert not of_the_run(plan, gone)["counters"].ok
    waits = edited(gone, "counters", END & (pl.col("place") == "delay"), queue_packets=1)
    assert of_the_run(plan, waits)["counters"].ok
