"""Whether real kernels gave the answers of one process, request by request."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from testbed import answers
from testbed.plan import Plan
from testbed.report.markup import Child, Markup, element
from testbed.report.signals import Tables
from testbed.report.tables import DASH, grid

MOST_ROWS: Final = 50
CHECKED: Final = (
    "After the run one process without a network computed each request once more, with the same weights and "
    "the same prompt. The tokens that the client received are compared with those of that process, and the "
    "logits behind all of them at the decode instance bit for bit, by a digest."
)
OUTCOMES: Final = ("wrong tokens", "wrong logits", "no reference", "not completed", "the same")
"""What can become of a request, the worst first."""
WRONG: Final = OUTCOMES[:2]


def section(plan: Plan, tables: Tables) -> Markup | None:
    """What was checked, what came of it, and the requests, wrong ones first; None in runs that replay."""
    if plan.compute != "real" or not plan.requests:
        return None
    judged = [(_outcome(row), row) for row in tables["answers"].sort("id").iter_rows(named=True)]
    judged.sort(key=lambda one: OUTCOMES.index(one[0]))
    rows = [_row(outcome, row) for outcome, row in judged[:MOST_ROWS]]
    heads = [
        "request", "outcome", "logits", "decode", "parts at token", "received", "in one process",
    ]  # fmt: skip
    return element(
        "section",
        element("h2", "Answers"),
        element(
            "div",
            element("p", CHECKED),
            _answer(plan, tables),
            grid(heads, rows, left=4),
            _rest([outcome for outcome, _ in judged[MOST_ROWS:]]),
            class_="card",
        ),
    )


def _answer(plan: Plan, tables: Tables) -> Markup:
    result = answers.judge(plan, tables)
    if result is None:
        return element("p", "The run did not end by itself, so the answers are not judged.", class_="soft")
    chip = element("span", result.status, class_=f"chip {result.status}")
    return element("p", chip, f" {result.sentence}")


def _outcome(row: dict[str, Any]) -> str:
    if row["state"] != "completed":
        return "not completed"
    if row["same"] is None:
        return "no reference"
    if row["same"]:
        return "the same"
    return "wrong logits" if row["parts_at"] is None else "wrong tokens"


def _row(outcome: str, row: dict[str, Any]) -> list[Child]:
    both = row["logits"] is not None and row["reference_logits"] is not None
    said = f"{outcome}: {row['state'] or 'unfinished'}" if outcome == "not completed" else outcome
    place = row["parts_at"]
    return [
        str(row["id"]),
        element("span", said, class_="FAIL") if outcome in WRONG else said,
        ("the same" if row["logits"] == row["reference_logits"] else "others") if both else DASH,
        row["decode"] or DASH,
        DASH if place is None else str(place + 1),
        *(_tokens(row[which], place) for which in ("received", "reference")),
    ]


def _tokens(tokens: list[int] | None, place: int | None) -> str:
    """How many there are, and the one at which two answers part."""
    if tokens is None:
        return DASH
    count = f"{len(tokens)} tokens" if len(tokens) != 1 else "1 token"
    if place is None:
        return count
    return f"{tokens[place] if place < len(tokens) else 'none'} of {count}"


def _rest(outcomes: list[str]) -> Markup | None:
    """The requests for which the table has no row, by what became of them."""
    if not outcomes:
        return None
    counted = Counter(outcomes)
    parts = ", ".join(f"{counted[outcome]} {outcome}" for outcome in OUTCOMES if counted[outcome])
    return element("p", f"and {len(outcomes)} more requests: {parts}", class_="soft")
