"""The parts of the page that say whether and how the run can be believed and repeated."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import polars as pl

from testbed.plan import DIRECTIONS, Direction, LinkState, Plan
from testbed.readable import number, quantity
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.signals import Tables
from testbed.report.tables import DASH, grid, shown
from testbed.units import NS_PER_S

MOST_STEPS = 12
COMPARED = ("rate_bps", "buffer_bytes", "delay_ns", "jitter_ns", "partitioned")
REPLAYED = "GPU computation: prefill and decode take the time that a profile gives; no kernel runs."
COMPUTED = (
    "A serving engine: kernels run with random weights, each row of a batch by itself; how long they take "
    "says nothing about an engine on a GPU."
)
VIRTUAL = "Cost of CPU work: in virtual time the clock stands still while a program computes."
REAL = "A machine with nothing else to do: in real time the bench and all agents share its processors."
NOT_MODELLED = (
    "NIC and PCIe: no DMA, no interrupt moderation, no RDMA; a datacenter's own network is plain Ethernet.",
    "The WAN's inside: one path per direction with one queue; no ECMP, no routing convergence, no middlebox.",
    "Other tenants: real TCP and UDP, but only what the scenario asks for.",
)


def link(plan: Plan, tables: Tables) -> Markup:
    """Every state of the link as asked, beside what the kernel said afterwards."""
    rows: list[list[Child]] = []
    left_out = 0
    for direction in DIRECTIONS:
        asked = _asked(plan, direction)
        found = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == direction))
        details = [json.loads(detail) for detail in found["detail"]]
        for index, (t_s, state) in enumerate(asked[:MOST_STEPS]):
            readback = details[index] if index < len(details) else None
            rows.append(_state_row(direction, t_s, state, readback))
        left_out += max(0, len(asked) - MOST_STEPS)
    heads = [
        "direction", "from", "read back from the kernel", "also", "rate", "buffer", "delay", "jitter", "loss",
    ]  # fmt: skip
    note = element("p", f"and {left_out} further steps", class_="soft") if left_out else None
    return joined(grid(heads, rows, left=4), note)


def reproduce(plan: Plan, manifest: Mapping[str, object], digest: str, *, real_time: bool) -> Markup:
    """The command, and all that the result depends on."""
    same = (
        "In real time the same seed gives the same workload, but not the same times and not the same record:"
        if real_time
        else "The same seed on the same kernel gives the same record, digest for digest:"
    )
    facts: list[list[Child]] = [
        [key, element("code", value)] for key, value in _flat(manifest).items() if key != "command"
    ]
    facts += [["record digest, from this record", element("code", digest)]]
    return joined(
        element("p", same),
        element("pre", command(plan, manifest)),
        grid(["what", "value"], facts, left=2),
    )


def command(plan: Plan, manifest: Mapping[str, object]) -> str:
    """The command that made the run, or one that makes it again, ready for a shell."""
    asked = manifest.get("command")
    parts = [str(part) for part in asked] if isinstance(asked, list | tuple) else None
    return shlex.join(parts) if parts else str(asked or _default_command(plan))


def not_modelled(plan: Plan, *, real_time: bool) -> Markup:
    """What a reader must not conclude from the page."""
    computing = COMPUTED if plan.compute == "real" else REPLAYED
    texts = (computing, REAL if real_time else VIRTUAL, *NOT_MODELLED)
    more = element("p", "More, with numbers: ", element("code", "docs/limitations.md"), ".")
    return joined(element("ul", [element("li", text) for text in texts]), more)


def _asked(plan: Plan, direction: Direction) -> list[tuple[float, LinkState]]:
    """The states of a direction in order; the first one is set at 0, like every other, and read back."""
    changes = [change for change in plan.changes if change.direction == direction]
    changes.sort(key=lambda change: change.t_ns)
    return [(change.t_ns / NS_PER_S, change.state) for change in changes]


def _state_row(
    direction: str, t_s: float, state: LinkState, readback: dict[str, object] | None
) -> list[Child]:
    if readback is None:
        agreement: Child = element("span", "never set", class_="FAIL")
    else:
        wrong = [name for name in COMPARED if readback.get(name) != getattr(state, name)]
        differs = ", ".join(f"{name} {readback.get(name)}" for name in wrong)
        agreement = element(
            "span", f"differs: {differs}" if wrong else "the same", class_="FAIL" if wrong else "PASS"
        )
    loss = readback.get("loss_ratio") if readback else None
    return [
        _arrow(direction),
        f"{number(t_s, 5)} s",
        agreement,
        _also(state),
        "partitioned" if state.partitioned else quantity(state.rate_bps, "bps"),
        quantity(state.buffer_bytes, "bytes"),
        quantity(state.delay_ns / NS_PER_S, "s"),
        quantity(state.jitter_ns / NS_PER_S, "s"),
        _loss(state, loss),
    ]


def _loss(state: LinkState, readback: object) -> str:
    if state.loss is None:
        return DASH
    return f"{shown(readback)} ({state.loss.model.replace('_', ' ')})"


def _also(state: LinkState) -> str:
    """What few states have."""
    shares = (("reorder", state.reorder), ("duplicate", state.duplicate), ("corrupt", state.corrupt))
    sizes = (("path MTU", state.path_mtu_bytes), ("black hole above", state.black_hole_bytes))
    parts = [f"{name} {number(share)}" for name, share in shares if share]
    parts += [f"{name} {size} B" for name, size in sizes if size is not None]
    if state.queue.kind != "tail_drop":
        parts.append(f"{state.queue.kind}{' with ECN' if state.queue.ecn else ''}")
    if state.slot is not None:
        parts.append(f"slots of up to {quantity(state.slot.max_ns / NS_PER_S, 's')}")
    if state.token_bucket is not None:
        parts.append(f"token bucket, then {quantity(state.token_bucket.sustained_bps, 'bps')}")
    if state.flow_cap_bps is not None:
        parts.append(f"a flow at most {quantity(state.flow_cap_bps, 'bps')}")
    if state.limit_packets is not None:
        parts.append(f"limit {state.limit_packets}")
    return ", ".join(parts) or DASH


def _arrow(direction: str) -> str:
    return {"a_to_b": "A → B", "b_to_a": "B → A"}.get(direction, direction)


def _default_command(plan: Plan) -> str:
    return f"python -m testbed.run scenarios/{plan.name}.yaml --seed {plan.seed} --scale {plan.scale:g}"


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            flat[name] = ", ".join(map(str, value)) or "none"
        else:
            flat[name] = str(value)
    return flat
