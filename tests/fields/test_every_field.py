"""Every field of the link's state changes what the kernel reports, and something that is measured."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.plan import LinkState, Loss, Queue, Slot, TokenBucket

Results = dict[str, Any]

CHECKS: dict[str, tuple[set[str], str]] = {
    "LinkState.rate_bps": (
        {"rate: rate", "rate: sustained", "rate: burst_ticks", "rate: budget_ticks", "delay: limit"},
        "test_a_full_queue_leaves_at_the_rate",
    ),
    "LinkState.buffer_bytes": ({"rate: buffer"}, "test_the_buffer_keeps_its_bytes"),
    "LinkState.delay_ns": ({"delay: delay"}, "test_a_datagram_takes_the_delay"),
    "LinkState.jitter_ns": ({"delay: jitter"}, "test_delays_have_their_distribution"),
    # the kernel does not report its table
    "LinkState.distribution": (set(), "test_delays_have_their_distribution"),
    "LinkState.loss": ({"delay: loss"}, "test_each_loss_model_loses_its_share"),
    "LinkState.reorder": (
        {"delay: gap", "delay: reorder", "rate stage: segments"},
        "test_reordered_doubled_and_damaged_are_their_shares",
    ),
    "LinkState.duplicate": (
        {"delay: duplicate", "rate stage: segments"},
        "test_reordered_doubled_and_damaged_are_their_shares",
    ),
    "LinkState.corrupt": (
        {"delay: corrupt", "rate stage: segments"},
        "test_reordered_doubled_and_damaged_are_their_shares",
    ),
    "LinkState.slot": ({"delay: slot", "rate stage: segments"}, "test_slots_pause_and_let_bunches_through"),
    "LinkState.queue": (
        {"feed: segments", "rate: queue", "rate: buffer", "rate: buffer_packets", "rate: ecn", "rate: flows"}
        | {"rate: target_us", "rate: interval_us", "rate: memory_bytes", "rate: quantum_bytes"}
        | {"rate: quantum", "rate: burst_ticks", "rate: budget_ticks"},
        "test_a_newcomer_waits_as_the_queue_has_it",
    ),
    "LinkState.token_bucket": (
        {"rate: budget_ticks", "rate: sustained"},
        "test_a_budget_lasts_as_long_as_it_should",
    ),
    "LinkState.flow_cap_bps": ({"flow_cap: FLOW_MAX_RATE"}, "test_each_flow_has_its_cap"),
    "LinkState.path_mtu_bytes": ({"mtu: path_mtu"}, "test_a_transfer_finds_the_path_mtu"),
    "LinkState.black_hole_bytes": (
        {"drops: black_hole", "rate stage: segments"},
        "test_a_black_hole_swallows_what_is_too_large",
    ),
    "LinkState.limit_packets": ({"delay: limit"}, "test_a_forced_limit_drops_the_rest"),
    "LinkState.partitioned": ({"delay: loss"}, "test_a_partition_lets_nothing_through"),
    "Loss.model": ({"delay: loss_model"}, "test_each_loss_model_loses_its_share"),
    "Loss.ratio": ({"delay: loss"}, "test_each_loss_model_loses_its_share"),
    **{
        f"Loss.{name}": ({"delay: loss_model"}, "test_each_loss_model_loses_its_share")
        for name in ("p", "r", "loss_bad", "loss_good", "p13", "p31", "p32", "p23", "p14")
    },
    "Loss.every_packets": ({"drops: every"}, "test_every_nth_is_lost"),
    **{
        f"Slot.{name}": ({"delay: slot"}, "test_slots_pause_and_let_bunches_through")
        for name in ("min_ns", "max_ns", "packets", "size_bytes")
    },
    "Queue.kind": (
        {"rate: queue", "rate: flows", "rate: memory_bytes", "rate: quantum_bytes"},
        "test_a_newcomer_waits_as_the_queue_has_it",
    ),
    "Queue.ecn": ({"rate: ecn"}, "test_ecn_marks_and_loses_nothing"),
    "Queue.target_ns": ({"rate: target_us"}, "test_codel_drops_after_target_and_interval"),
    "Queue.interval_ns": ({"rate: interval_us"}, "test_codel_drops_after_target_and_interval"),
    "Queue.min_bytes": ({"rate: min_bytes"}, "test_red_drops_between_min_and_max"),
    "Queue.max_bytes": ({"rate: max_bytes"}, "test_red_drops_between_min_and_max"),
    "Queue.probability": ({"rate: probability"}, "test_red_drops_between_min_and_max"),
    "TokenBucket.sustained_bps": (
        {"rate: budget_ticks", "rate: sustained"},
        "test_a_budget_lasts_as_long_as_it_should",
    ),
    "TokenBucket.budget_bytes": ({"rate: budget_ticks"}, "test_a_budget_lasts_as_long_as_it_should"),
}
"""Per field: what must change in the kernel's report when it alone changes, and the test that measures it."""


def test_no_field_is_without_a_check() -> None:
    """Every field of the state and of what it is made of has a line in the table, and nothing else has."""
    kinds = (LinkState, Loss, Slot, Queue, TokenBucket)
    fields = {f"{kind.__name__}.{one.name}" for kind in kinds for one in msgspec.structs.fields(kind)}
    assert set(CHECKS) == fields


def test_every_check_exists() -> None:
    """The tests that the table names are there."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("test_*.py")]
    tests = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {measured_by for _, measured_by in CHECKS.values()} <= tests


@pytest.mark.parametrize("field", CHECKS)
def test_the_kernel_reports_the_change(delay: Results, field: str) -> None:
    """When one field changes the kernel reports just that; when it changes back all is as before."""
    found = delay["read_backs"][field]
    changed, wanted = set(found["changed"]), CHECKS[field][0]
    if "delay: limit" not in wanted:
        changed -= {"delay: limit"}  # it follows from what can be in flight
    assert changed == wanted
    assert found["stayed"] == []


@pytest.mark.parametrize("name", ["budget", "sustained", "flow_cap", "loss", "red, max"])
def test_the_kernel_has_the_largest_and_we_refuse_more(delay: Results, name: str) -> None:
    """The largest of what it counts in few bits reads back; one more is refused by name, before it is set."""
    found = delay["extremes"][name]
    assert found == {"differences": [], "refused": [f"link a_to_b: {name}"]}
