"""The picture of a profile: four panels with logarithmic axes, a file of its own that any browser shows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from agents.shapes import SHAPES
from testbed.profiles.cells import printable
from testbed.profiles.table import About, Row
from testbed.readable import quantity
from testbed.report.markup import Markup, element
from testbed.report.svg import nice_step

T = TypeVar("T")

WIDTH, HEIGHT, HEAD = 1100, 700, 54
PANEL_WIDTH, PANEL_HEIGHT = WIDTH // 2, (HEIGHT - HEAD) // 2
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 44, 36
PAD: Final = 1.15
"""Room around the data, as a factor."""
MOST_POINTS: Final = 200
"""Of a series: more than can be told apart."""
LEAST_TICKS: Final = 3
TICK_WIDTH: Final = 46
COLOURS: Final = ("#0072b2", "#d55e00", "#007a5a", "#a0508a", "#6b7785", "#b3261e")
STYLE: Final = (
    "text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#5a6675}"
    ".head{font-size:17px;font-weight:650;fill:#16202c}.title{font-size:14px;font-weight:650;fill:#16202c}"
    ".grid{stroke:#e9edf1}.line{fill:none;stroke-width:2}.spread{stroke-width:5;opacity:.35}.dot{stroke-width:0}"
)


@dataclass(frozen=True)
class Series:
    """Points (tokens, value), and where quartiles are known (tokens, first, third)."""

    label: str
    points: Sequence[tuple[int, float]]
    spreads: Sequence[tuple[int, float, float]] = ()


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    series: Sequence[Series]


class _Axis:
    """A logarithmic axis from pixel `start` to pixel `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = min(values) / PAD, max(values) * PAD
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = math.log(value / self._low) / math.log(self._high / self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; where that is too few, equal steps."""
        powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        inside = [tick for tick in found if self._low <= tick <= self._high]
        if len(inside) >= LEAST_TICKS:
            return inside if len(inside) <= 3 * LEAST_TICKS else [one for one in inside if _is_power(one)]
        step = nice_step(self._high - self._low, LEAST_TICKS)
        first = math.ceil(self._low / step)
        return [index * step for index in range(first, math.floor(self._high / step) + 1)]


def picture(rows: Sequence[Row], about: About) -> str:
    """The profile as SVG; a panel without data is left out."""
    panels = [panel for panel in _panels(rows, about) if panel.series]
    of = f", {about.layers} of {about.of_layers} layers measured" if about.layers < about.of_layers else ""
    head = printable(f"{about.model or 'unknown model'} on {about.device_name or about.source}{of}")
    drawn = [
        _draw(panel, (number % 2) * PANEL_WIDTH, HEAD + (number // 2) * PANEL_HEIGHT)
        for number, panel in enumerate(panels)
    ]
    height = HEAD + -(-len(panels) // 2) * PANEL_HEIGHT
    return element(
        "svg",
        element("style", Markup(STYLE)),
        element("rect", width=WIDTH, height=height, fill="#ffffff"),
        element("text", head, x=20, y=30, class_="head"),
        drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=head,
    )


def _panels(rows: Sequence[Row], about: About) -> list[Panel]:
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.tokens):
        by_kind[row.kind].append(row)
    batches = sorted({row.batch for row in by_kind["decode"] if row.batch is not None})
    decode = [
        _timed(f"batch {batch}", [row for row in by_kind["decode"] if row.batch == batch])
        for batch in batches[:: -(-len(batches) // len(COLOURS)) or 1]
    ]
    prefill = [_timed("median, bar: quartiles", by_kind["prefill"])] if by_kind["prefill"] else []
    sizes = [(row.tokens, float(row.size_bytes)) for row in _thinned(by_kind["kv"]) if row.size_bytes]
    return [
        Panel("Prefill of a prompt", "s", prefill),
        Panel("KV cache of a prompt", "bytes", [Series("all layers", sizes)] if sizes else []),
        Panel("Prefill of one layer, mean of its kind", "s", _layers(by_kind["layer"], about)),
        Panel("Decode step, over the context", "s", decode),
    ]


def _layers(rows: Sequence[Row], about: About) -> list[Series]:
    """Mean over the layers of each kind; of an unknown model all are of one."""
    shape = SHAPES.get(about.model)
    times_s: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.median_s is not None and row.layer is not None:
            kind = shape.layers[row.layer].kind if shape and row.layer < len(shape.layers) else "all"
            times_s[kind][row.tokens].append(row.median_s)
    return [
        Series(kind, [(tokens, sum(some) / len(some)) for tokens, some in _thinned(list(by_tokens.items()))])
        for kind, by_tokens in times_s.items()
    ]


def _thinned(some: Sequence[T]) -> Sequence[T]:
    """Evenly picked ones with both ends, where there are more than MOST_POINTS."""
    if len(some) <= MOST_POINTS:
        return some
    return [some[index * (len(some) - 1) // (MOST_POINTS - 1)] for index in range(MOST_POINTS)]


def _timed(label: str, rows: Sequence[Row]) -> Series:
    rows = _thinned(rows)
    points = [(max(1, row.tokens), row.median_s) for row in rows if row.median_s is not None]
    spreads = [
        (max(1, row.tokens), row.p25_s, row.p75_s)
        for row in rows
        if row.p25_s is not None and row.p75_s is not None
    ]
    return Series(label, points, spreads)


def _draw(panel: Panel, x: int, y: int) -> Markup:
    tokens = [point[0] for series in panel.series for point in series.points]
    values = [point[1] for series in panel.series for point in series.points]
    across = _Axis(tokens, x + LEFT, x + PANEL_WIDTH - RIGHT)
    up = _Axis(values, y + PANEL_HEIGHT - BOTTOM, y + TOP)
    return element(
        "g",
        element("text", panel.title, x=x + 20, y=y + 16, class_="title"),
        _legend(panel, x, y),
        [_level(up.at(tick), quantity(tick, panel.unit), x) for tick in up.ticks()],
        _token_ticks(sorted(set(tokens)), across, y),
        [_series(series, across, up, colour) for series, colour in _coloured(panel)],
    )


def _coloured(panel: Panel) -> list[tuple[Series, str]]:
    return [(one, COLOURS[index % len(COLOURS)]) for index, one in enumerate(panel.series)]


def _series(series: Series, across: _Axis, up: _Axis, colour: str) -> Markup:
    places = [(across.at(tokens), up.at(value)) for tokens, value in series.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return element(
        "g",
        [
            element(
                "line", x1=across.at(at), x2=across.at(at), y1=up.at(low), y2=up.at(high), class_="spread"
            )
            for at, low, high in series.spreads
        ],
        element("path", d=path, class_="line"),
        [element("circle", cx=x, cy=y, r=3, fill=colour, class_="dot") for x, y in places],
        stroke=colour,
    )


def _legend(panel: Panel, x: int, y: int) -> list[Markup]:
    """Names of the series in their colours, one after the other."""
    drawn, at = [], x + 20.0
    for series, colour in _coloured(panel):
        drawn.append(element("circle", cx=at + 4, cy=y + 28, r=4, fill=colour))
        drawn.append(element("text", series.label, x=at + 13, y=y + 32))
        at += 30 + 6.6 * len(series.label)
    return drawn


def _level(y: float, label: str, x: int) -> Markup:
    return element(
        "g",
        element("line", x1=x + LEFT, x2=x + PANEL_WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
        element("text", label, x=x + LEFT - 8, y=y + 4, text_anchor="end"),
    )


def _token_ticks(tokens: Sequence[int], across: _Axis, y: int) -> list[Markup]:
    """The measured lengths, as many as have room."""
    drawn: list[Markup] = []
    free = 0.0
    for one in tokens:
        place = across.at(one)
        if place >= free:
            free = place + TICK_WIDTH
            text = f"{one // 1024}K" if one % 1024 == 0 and one else str(one)
            drawn.append(
                element("text", text, x=place, y=y + PANEL_HEIGHT - BOTTOM + 18, text_anchor="middle")
            )
    return drawn


def _is_power(value: float) -> bool:
    return math.isclose(value, 10.0 ** round(math.log10(value)))
