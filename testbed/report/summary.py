"""The report as Markdown, for the page of a change: verdict, measured values and margins, main numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from testbed.lettering import shown as letters
from testbed.markdown import escaped, table
from testbed.plan import Plan
from testbed.report.numbers import Number
from testbed.report.provenance import command
from testbed.report.tables import shown
from testbed.verdict import Verdict


def text(
    plan: Plan, verdict: Verdict, numbers: Sequence[Number], manifest: Mapping[str, object], link: str
) -> str:
    """`link`: where report.html is, from the place where the text will stand."""
    results = [
        (
            one.status,
            one.name,
            shown(one.measured, one.unit),
            one.bound,
            shown(one.margin, one.unit),
        )
        for one in verdict.results
    ]
    heads = ("status", "expectation", "measured", "allowed", "margin")
    main = [(one.name, f"{one.value}{one.rest}") for one in numbers]
    parts = [
        f"### {verdict.status}: {escaped(plan.name)}, {escaped(verdict.note)}\n",
        f"{escaped(plan.question)}\n" if plan.question else "",
        "".join(f"- not trusted: {escaped(reason)}\n" for reason in verdict.trust),
        table(heads, results) if results else "",
        "".join(
            f"- {escaped(one.name)}: {escaped(one.sentence)}\n"
            for one in verdict.results
            if one.status != "PASS"
        ),
        table(("number", "value"), main),
        f"Again: {_code(command(plan, manifest))}\n",
        f"Report: [{escaped(link)}](<{_target(link)}>)\n",
    ]
    return "\n".join(part for part in parts if part)


def _code(words: str) -> str:
    """As code, whatever backquotes are in it."""
    words, fence = " ".join(letters(words).splitlines()), "`"
    while fence in words:
        fence += "`"
    return f"{fence} {words} {fence}" if "`" in words else f"`{words}`"


def _target(link: str) -> str:
    """A path as the target of a link: no scheme, and whatever is not plain in hexadecimal."""
    quoted = quote(os.fsencode(link), safe="/:@ ")
    return f"./{quoted}" if ":" in quoted.partition("/")[0] else quoted
