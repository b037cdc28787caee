"""Check a scenario without running it: `python -m testbed.check scenarios/congestion.yaml`.

Prints what would be run in brief, and warnings, and exits with 0; or prints every problem and exits with 3.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agents.compute_profile import ComputeProfile
from testbed.command import run_command, terminal
from testbed.errors import Problem, ScenarioError
from testbed.kernel.choose import KERNELS, STOCK
from testbed.plan import DIRECTIONS, LinkState, Loss, Plan
from testbed.profiles.ranges import beyond, decode_range, prefill_range
from testbed.resolve import load_and_resolve
from testbed.resolve.conditions import Jitter
from testbed.resolve.describe import described
from testbed.resolve.lint import lint
from testbed.units import format_duration_ns, format_rate_bps, format_size_bytes

app = typer.Typer(add_completion=False)


@app.command()
def check(
    scenario: Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)],
    *,
    seed: Annotated[int | None, typer.Option(help="Replaces the scenario's seed.")] = None,
    scale: Annotated[float | None, typer.Option(help="Multiplies link rates and sizes alike.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Replaces one value.")
    ] = None,
    traces: Annotated[Path | None, typer.Option(help="Directory of request traces.")] = None,
    kernel: Annotated[str | None, typer.Option(help="The kernel of the run, for its warnings.")] = None,
    clock: Annotated[str | None, typer.Option(help="The clock of the run, for its warnings.")] = None,
) -> None:
    """Validate a scenario and show the plan in brief."""
    _refuse_unknown("--kernel", kernel, ("auto", *KERNELS))
    _refuse_unknown("--clock", clock, ("virtual", "real"))
    loaded, plan = load_and_resolve(
        scenario, overrides=overrides or [], seed=seed, scale=scale, traces=traces
    )
    console = terminal()
    show(plan, console)
    real = clock == "real" or (clock is None and kernel in STOCK)
    for warning in lint(loaded, plan, kernel=kernel, clock="real" if real else "virtual"):
        console.print(Text(f"warning: {warning}"), soft_wrap=True)


def _refuse_unknown(option: str, chosen: str | None, known: tuple[str, ...]) -> None:
    if chosen is not None and chosen not in known:
        raise ScenarioError(Problem(option, f"unknown {chosen!r}", allowed=", ".join(known)))


def show(plan: Plan, console: Console) -> None:
    """Print the plan in brief."""
    console.print(f"{plan.name}: {plan.question}", markup=False, highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, text in _summary(plan):
        table.add_row(Text(name), Text(text))
    console.print(table, highlight=False)


def _summary(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        ("seed, scale", f"{plan.seed}, {plan.scale:g}"),
        (
            "time",
            f"{format_duration_ns(plan.duration_ns)}, then up to {format_duration_ns(plan.drain_ns)} to end",
        ),
        *((f"link {direction}", _state(plan.link[direction])) for direction in DIRECTIONS),
        ("packets", f"MTU {plan.mtu_bytes}, offload {plan.offload}"),
        (
            "guest",
            f"{format_size_bytes(plan.memory_bytes)} memory, TCP windows to {plan.window_bytes >> 20} MiB",
        ),
    ]
    if plan.agents:
        agents = [agent for agent in plan.agents if agent.role != "reference"]
        roles = Counter(f"{agent.role} {agent.profile}".strip() for agent in agents)
        rows.append(("model", plan.model))
        rows.append(("compute", _compute(plan)))
        rows.append(("agents", ", ".join(f"{number} {role}" for role, number in roles.items())))
        rows += [("profile", f"{name}: {_covers(profile)}") for name, profile in plan.profiles.items()]
        rows.append(("policy", f"{plan.policy.name}, threshold {plan.policy.threshold_tokens} tokens"))
    if plan.requests:
        mean = fmean(request.input_tokens for request in plan.requests)
        rows.append(("requests", f"{len(plan.requests)}, {mean:.0f} input tokens on average"))
    rows += [("trace", note) for note in plan.traces]
    rows += [
        ("bulk", f"{t.source} to {t.sink}: {format_size_bytes(t.size_bytes)} at {format_duration_ns(t.t_ns)}")
        for t in plan.bulk
    ]
    changes = Counter(change.direction for change in plan.changes if change.t_ns)
    rows += [(f"changes {direction}", str(number)) for direction, number in sorted(changes.items())]
    if plan.bursts:
        total = format_size_bytes(sum(burst.size_bytes for burst in plan.bursts))
        rows.append(("other tenants", f"{len(plan.bursts)} bursts, {total} in all"))
    rows += [
        ("tenants", f"{t.source} to {t.sink}: {t.flows} flows, {_span(t.t_ns, t.until_ns)}")
        for t in plan.tenants
    ]
    rows += [
        ("microbursts", f"{m.source} to {m.sink}: {format_rate_bps(m.rate_bps)}, {_span(m.t_ns, m.until_ns)}")
        for m in plan.microbursts
    ]
    rows += [(f"program {one.name}", f"on {one.host}: {shlex.join(one.command)}") for one in plan.programs]
    rows += [("capture", f"{c.device}: {c.filter or 'everything'}") for c in plan.captures]
    if plan.events and plan.scale != 1:
        rows.append(("timeline", f"as written: the run has rates and sizes times {plan.scale:g}"))
    rows += [(format_duration_ns(event.t_ns), f"{event.name}: {event.detail}") for event in plan.events]
    rows += [("expect", expectation.name) for expectation in plan.expectations]
    return rows


def _compute(plan: Plan) -> str:
    """Who computes, and what becomes of it."""
    if plan.compute == "replay":
        return "replay: profiles say how long it takes"
    return (
        f"real: kernels with random weights of seed {plan.seed}, in real time; "
        "one process computes all answers once more"
    )


def _covers(profile: ComputeProfile) -> str:
    """A profile from a file: whose it is, and what was measured."""
    return (
        f"{profile.source}; prefill {prefill_range(profile)}; decode {decode_range(profile)}; "
        f"outside {beyond(profile)}"
    )


def _span(t_ns: int, until_ns: int) -> str:
    return f"{format_duration_ns(t_ns)} to {format_duration_ns(until_ns)}"


def _state(state: LinkState) -> str:
    """Rate, buffer and delay, and whatever else is not as it is by default."""
    parts = [
        format_rate_bps(state.rate_bps),
        f"buffer {format_size_bytes(state.buffer_bytes)}",
        f"delay {format_duration_ns(state.delay_ns)}",
    ]
    if state.jitter_ns:
        jitter = Jitter(state.jitter_ns, state.distribution)
        parts.append(f"jitter {described('jitter', jitter)}")
    if state.loss is not None:
        parts.append(f"loss {_loss(state.loss)}")
    parts += [
        f"{name} {ratio:g}" for name in ("reorder", "duplicate", "corrupt") if (ratio := getattr(state, name))
    ]
    if state.slot is not None:
        low, high = format_duration_ns(state.slot.min_ns), format_duration_ns(state.slot.max_ns)
        parts.append(f"slots of {low} to {high}")
    if state.queue.kind != "tail_drop":
        parts.append(f"{state.queue.kind}{' with ECN' if state.queue.ecn else ''}")
    if state.token_bucket is not None:
        budget = format_size_bytes(state.token_bucket.budget_bytes)
        parts.append(f"{format_rate_bps(state.token_bucket.sustained_bps)} once {budget} are spent")
    if state.flow_cap_bps is not None:
        parts.append(f"at most {format_rate_bps(state.flow_cap_bps)} a flow")
    if state.path_mtu_bytes is not None:
        parts.append(f"path MTU {state.path_mtu_bytes}")
    if state.black_hole_bytes is not None:
        parts.append(f"nothing above {state.black_hole_bytes} bytes")
    if state.limit_packets is not None:
        parts.append(f"limit {state.limit_packets} packets")
    return ", ".join(parts)


def _loss(loss: Loss) -> str:
    match loss.model:
        case "random":
            return f"{loss.ratio:g}"
        case "periodic":
            return f"of every {loss.every_packets}th packet"
        case _:
            return f"in bursts ({loss.model})"


if __name__ == "__main__":
    sys.exit(run_command(app))
