"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.compare.bootstrap import Interval
from testbed.compare.comparison import Judgement, Status
from testbed.compare.decisions import Parted
from testbed.compare.differences import Judged, Row
from testbed.compare.sides import NAMES
from testbed.readable import number, quantity
from testbed.report.tables import DASH

WIDE: Final = 132
"""Columns where there is no terminal, as in the log of a test service."""
WORDS: Final[dict[Judged, str]] = {"worse": "worse > ", "better": "better > "}
SHOWN_UNITS: Final = ("s", "bps", "bytes")
"""Of others the metric's name says enough."""
STATUS_STYLES: Final[dict[Status, str]] = {
    "IDENTICAL": "bold green", "HOLDS": "bold green", "WORSE": "bold red", "UNKNOWN": "bold yellow",
}  # fmt: skip
JUDGED_STYLES: Final[dict[Judged, str]] = {"worse": "bold red", "unclear": "yellow", "better": "green"}


def show(judgement: Judgement, console: Console) -> None:
    """The verdict last, where the eye is when it ends."""
    for side, path, seeds in (
        (NAMES[0], judgement.first, judgement.seeds[0]), (NAMES[1], judgement.second, judgement.seeds[1]),
    ):  # fmt: skip
        console.print(Text(f"{side:10} {path}   {count(len(seeds), 'run')}"), soft_wrap=True)
    lines = [*judgement.left_out, *map(str, judgement.plan_differences), *parting(judgement.parted)]
    for line in lines:
        console.print(Text(f"   {line}"), soft_wrap=True)
    rows, zeros = without_zeros(judgement.rows)
    console.print(_table(rows))
    if zeros:
        console.print(Text(zeros), soft_wrap=True)
    console.print(Text(judgement.method), soft_wrap=True)
    for reason in judgement.unknown:
        console.print(Text(f"not to be relied on: {reason}", style="yellow"), soft_wrap=True)
    conclusion = Text(f"{judgement.status}  {judgement.note}", style=STATUS_STYLES[judgement.status])
    console.print(conclusion, soft_wrap=True)


def parting(parted: Sequence[Parted]) -> list[str]:
    """What became of the decisions, in words; the first ones are those of the first pair that has any."""
    if not parted:
        return []
    same = sum(one.identical for one in parted)
    if same == len(parted):
        return ["identical records" if same == 1 else f"identical records in all {same} pairs"]
    requests, elsewhere = sum(one.requests for one in parted), sum(one.elsewhere for one in parted)
    other = sum(one.other_instance for one in parted)
    lines = [f"identical records in {same} of {len(parted)} pairs"] if same else []
    lines.append(
        f"{elsewhere:,} of {requests:,} requests placed in another cluster, "
        f"{other:,} more at another instance for prefill"
    )
    for what, texts in (
        ("first placed elsewhere", [(one.seed, one.first_request) for one in parted]),
        ("first other threshold or roles", [(one.seed, one.first_interval) for one in parted]),
        ("first difference of the records", [(one.seed, one.first_row) for one in parted]),
    ):
        found = next(((seed, text) for seed, text in texts if text), None)
        if found:
            seed = f", seed {found[0]}" if len(parted) > 1 else ""
            lines.append(f"{what}{seed}: {found[1]}")
    return lines


def without_zeros(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Metrics that were 0 on both sides, and that nobody asked for, take one line together."""
    zeros = [one for one in rows if not one.of_expectation and one.first == 0 and one.second == 0]
    line = f"0 on both sides: {', '.join(one.name for one in zeros)}" if zeros else ""
    return [one for one in rows if one not in zeros], line


def _table(rows: Sequence[Row]) -> Table:
    intervals = any(one.interval for one in rows)
    view = Table()
    view.add_column("", overflow="fold", ratio=1)
    for heading in (*NAMES, "difference", *(["95 % interval"] if intervals else []), "%"):
        view.add_column(heading, justify="right")
    view.add_column("")
    for index, one in enumerate(rows):
        if one.of_expectation and (index == 0 or not rows[index - 1].of_expectation):
            view.add_section()
        cells = [
            *sides(one),
            signed(one.difference, one.unit),
            *([interval(one.interval, one.unit)] if intervals else []),
            percent(one.relative),
        ]
        word = Text(judged(one), style=JUDGED_STYLES.get(one.judged, "dim"))
        view.add_row(Text(one.name), *map(Text, cells), word)
    return view


def sides(one: Row) -> tuple[str, str]:
    """The values of both sides, with what never happened."""
    first, second = (
        side_text(value, one.unit, runs, never)
        for value, runs, never in zip((one.first, one.second), one.runs, one.never, strict=True)
    )
    return first, second


def side_text(value: float | None, unit: str, runs: int, never: int) -> str:
    text = DASH if value is None else amount(value, unit)
    if not never:
        return text
    if value is None:
        return "never" if never == 1 else f"never, {never} runs"
    return f"{text}, never in {never} of {max(runs + never, never)}"


def judged(one: Row) -> str:
    """What the value was judged to be, and by which tolerance."""
    if one.judged in ("shown", "not measured"):
        return "" if one.judged == "shown" else one.judged
    if one.judged in WORDS and one.difference is None:
        return one.judged
    return f"{WORDS.get(one.judged, f'{one.judged} ')}{one.tolerance}"


def amount(value: float, unit: str) -> str:
    return quantity(value, unit) if unit in SHOWN_UNITS else number(value)


def signed(value: float | None, unit: str) -> str:
    """With its sign; a dash for nothing."""
    if value is None:
        return DASH
    return f"{'+' if value > 0 else ''}{amount(value, unit)}"


def interval(both: Interval | None, unit: str) -> str:
    return DASH if both is None else f"{signed(both.low, unit)} to {signed(both.high, unit)}"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{'+' if share > 0 else ''}{number(100 * share, 2)}"


def count(many: int, noun: str) -> str:
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"
