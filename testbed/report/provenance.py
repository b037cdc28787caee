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

NS_PER_S = 1_000_000_000
MOST_STEPS = 12
COMPARED = ("rate_bps", "buffer_bytes", "delay_ns", "jitter_ns", "partitioned")
NOT_MODELLED = (
    "GPU computation: prefill and decode take the time that a profile from the paper gives; no kernel runs.",
    "Cost of CPU work: in virtual time the clock stands still while a program computes.",
    "NIC and PCIe: no DMA, no interrupt moderation, no RDMA; a datacenter's own network is plain Ethernet.",
    "The WAN's inside: one path per direction with one queue; no ECMP, no routing convergence, no middlebox.",
    "Other tenants: real TCP flows, but only the bursts that the scenario asks for.",
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
    heads = ["direction", "from", "read back from the kernel", "rate", "buffer", "delay", "jitter", "loss"]
    note = element("p", f"and {left_out} further steps", class_="soft") if left_out else None
    return joined(grid(heads, rows, left=3), note)


def calibration(tables: Tables) -> Markup:
    """What the idle link gave before the workload began."""
    rows: list[list[Child]] = []
    for name, detail in (
        tables["events"].filter(pl.col("kind") == "calibration").select("name", "detail").rows()
    ):
        values = json.loads(detail)
        share = 100 * values["goodput_bps"] / values["wanted_bps"] if values["wanted_bps"] else 0
        rows.append([
            _arrow(name),
            quantity(values["wanted_bps"], "bps"),
            quantity(values["goodput_bps"], "bps"),
            f"{share:.1f} %",
            quantity(values["wanted_rtt_ns"] / NS_PER_S, "s"),
            quantity(values["rtt_ns"] / NS_PER_S, "s"),
        ])  # fmt: skip
    heads = ["direction", "rate asked", "goodput measured", "share", "RTT asked", "RTT measured"]
    return grid(heads, rows, empty="the link was not calibrated")


def reproduce(plan: Plan, manifest: Mapping[str, object], digest: str) -> Markup:
    """The command, and all that the result depends on."""
    asked = manifest.get("command")
    parts = [str(part) for part in asked] if isinstance(asked, list | tuple) else None
    command = shlex.join(parts) if parts else str(asked or _default_command(plan))
    facts: list[list[Child]] = [
        [key, element("code", value)] for key, value in _flat(manifest).items() if key != "command"
    ]
    facts += [["record digest, from this record", element("code", digest)]]
    return joined(
        element("p", "The same seed on the same kernel gives the same record, digest for digest:"),
        element("pre", command),
        grid(["what", "value"], facts, left=2),
    )


def not_modelled() -> Markup:
    """What a reader must not conclude from the page."""
    more = element("p", "More, with numbers: ", element("code", "docs/limitations.md"), ".")
    return joined(element("ul", [element("li", text) for text in NOT_MODELLED]), more)


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
            "span", f"differs: {differs}" if wrong else "as asked", class_="FAIL" if wrong else "PASS"
        )
    loss = readback.get("loss_ratio") if readback else None
    return [
        _arrow(direction),
        f"{number(t_s, 5)} s",
        agreement,
        "partitioned" if state.partitioned else quantity(state.rate_bps, "bps"),
        quantity(state.buffer_bytes, "bytes"),
        quantity(state.delay_ns / NS_PER_S, "s"),
        quantity(state.jitter_ns / NS_PER_S, "s"),
        _loss(state, loss),
    ]


def _loss(state: LinkState, readback: object) -> str:
    if state.loss is None:
        return DASH
    model = {"random": "random", "gilbert_elliott": "bursts"}[state.loss.model]
    return f"{shown(readback)} ({model})"


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
            flat[name] = ", ".join(map(str, value))
        else:
            flat[name] = str(value)
    return flat
