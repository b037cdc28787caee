"""A self-contained page, and the frame around a chart: what all reports have in common."""

from __future__ import annotations

from importlib.resources import files

from testbed.report.markup import Markup, element
from testbed.report.svg import Chart, Curve


def document(title: str, body: Markup, *styles: Markup) -> str:
    """The page as a text: no request leaves it. `styles` come after those of all reports."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", asset("report.css"), *styles),
    )
    return "<!doctype html>\n" + element("html", head, element("body", body), lang="en") + "\n"


def asset(name: str, package: str = "testbed.report") -> Markup:
    """A file that lies beside the modules of a package."""
    return Markup(files(package).joinpath(name).read_text(encoding="utf-8"))


def badge(word: str, note: str, status: str) -> Markup:
    """What came out, large and with a note beside it, in the colour of a `status`."""
    return element(
        "div", element("strong", word), element("span", note), class_=f"badge {status}", role="status"
    )


def panel(chart: Chart, keys: list[Markup], drawing: Markup) -> Markup:
    """A chart below its title and the keys of its curves."""
    head = element("div", element("b", f"{chart.title}, {chart.unit}"), " ", keys, class_="panel-head")
    return element("div", head, drawing, class_="panel")


def key(curve: Curve, output: str | None) -> Markup:
    """What a curve looks like and what it is; `output`: the id of the element for the value at the cursor."""
    look: str = curve.shape if curve.shape in ("band", "dots", "squares", "marks") else ""
    look += " dashed" if curve.dashed else " faint" if curve.faint else ""
    return element(
        "span", element("i", class_=look.strip() or None, style=f"color:var(--{curve.colour})"), curve.label,
        element("output", id=output, aria_live="off") if output else None, class_="key",
    )  # fmt: skip
