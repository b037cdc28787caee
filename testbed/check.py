"""Check a scenario without running it: `python -m testbed.check scenarios/congestion.yaml`.

Prints what would be run in brief and exits with 0, or prints every problem and exits with 3.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.command import run_command
from testbed.plan import DIRECTIONS, LinkState, Plan
from testbed.resolve import load_and_resolve
from testbed.units import format_duration_ns, format_rate_bps, format_size_bytes

app = typer.Typer(add_completion=False)


@app.command()
def check(
    scenario: Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)],
    seed: Annotated[int | None, typer.Option(help="Replaces the scenario's seed.")] = None,
    scale: Annotated[float | None, typer.Option(help="Multiplies link rates and sizes alike.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Replaces one value.")
    ] = None,
    traces: Annotated[Path | None, typer.Option(help="Directory of request traces.")] = None,
) -> None:
    """Validate a scenario and show the plan in brief."""
    _, plan = load_and_resolve(scenario, overrides=overrides or [], seed=seed, scale=scale, traces=traces)
    show(plan, Console())


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
        (
            "guest",
            f"{format_size_bytes(plan.memory_bytes)} memory, TCP windows to {plan.window_bytes >> 20} MiB",
        ),
    ]
    if plan.agents:
        roles = Counter(f"{agent.role} {agent.profile}".strip() for agent in plan.agents)
        rows.append(("agents", ", ".join(f"{number} {role}" for role, number in roles.items())))
        rows.append(("policy", f"{plan.policy.name}, threshold {plan.policy.threshold_tokens} tokens"))
    if plan.requests:
        mean = fmean(request.input_tokens for request in plan.requests)
        rows.append(("requests", f"{len(plan.requests)}, {mean:.0f} input tokens on average"))
    rows += [
        ("bulk", f"{t.source} to {t.sink}: {format_size_bytes(t.size_bytes)} at {format_duration_ns(t.t_ns)}")
        for t in plan.bulk
    ]
    if plan.bursts:
        total = format_size_bytes(sum(burst.size_bytes for burst in plan.bursts))
        rows.append(("other tenants", f"{len(plan.bursts)} bursts, {total} in all"))
    rows += [(format_duration_ns(event.t_ns), f"{event.name}: {event.detail}") for event in plan.events]
    rows += [("expect", expectation.name) for expectation in plan.expectations]
    return rows


def _state(state: LinkState) -> str:
    text = f"{format_rate_bps(state.rate_bps)}, buffer {format_size_bytes(state.buffer_bytes)}, "
    text += f"delay {format_duration_ns(state.delay_ns)}, jitter {format_duration_ns(state.jitter_ns)}"
    return text if state.loss is None else f"{text}, loss {state.loss.model}"


if __name__ == "__main__":
    sys.exit(run_command(app))
