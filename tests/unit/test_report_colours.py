"""The colours of reports can be read, and told apart by those who see fewer of them."""

from __future__ import annotations

import math
import re
from itertools import combinations

import pytest

from testbed.report.connections import COLOURS
from testbed.report.document import asset

CURVES = (*COLOURS, "grey")
SIGHTS = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
"""Linear RGB as seen with one kind of cone missing: Machado, Oliveira and Fernandes 2009, severity 1."""
TOLD_APART = 14.0
"""A distance in CIELAB of about 2 is just noticed side by side; thin lines need several times that."""


def scheme(dark: bool) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", asset("report.css"), re.DOTALL)
    wanted = blocks[:2] if dark else blocks[:1]
    return {name: value for block in wanted for name, value in re.findall(r"--([\w-]+): (#\w{6})", block)}


def linear(colour: str) -> list[float]:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    weights = (0.2126, 0.7152, 0.0722)
    low, high = sorted(
        sum(weight * part for weight, part in zip(weights, linear(colour), strict=True))
        for colour in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def lab(red: float, green: float, blue: float) -> tuple[float, float, float]:
    """CIELAB, for the white of a screen."""

    def root(value: float) -> float:
        return value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116

    x = root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047)
    y = root(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_stand_out(dark: bool) -> None:
    """WCAG AA: 4.5 to 1 for text, on cards and on the page; 3 to 1 for curves, bars and the focus."""
    colours = scheme(dark)
    for text in ("ink", "soft", "event", "pass", "fail", "unknown", "blue"):
        assert min(contrast(colours[text], colours[place]) for place in ("card", "page")) >= 4.5, text
    for status in ("pass", "fail", "unknown"):
        assert contrast(colours[status], colours[f"{status}-back"]) >= 4.5, status
    for curve in CURVES:
        assert contrast(colours[curve], colours["card"]) >= 3, curve


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SIGHTS)
def test_curves_are_told_apart_without_a_kind_of_cone(dark: bool, sight: str) -> None:
    """Each pair of curves' colours stays apart, whatever part of the colours is seen."""
    colours = scheme(dark)
    seen = {}
    for name in CURVES:
        parts = linear(colours[name])
        left = (sum(weight * part for weight, part in zip(row, parts, strict=True)) for row in SIGHTS[sight])
        seen[name] = lab(*(min(1.0, max(0.0, part)) for part in left))
    near = {pair: math.dist(seen[pair[0]], seen[pair[1]]) for pair in combinations(CURVES, 2)}
    assert {pair: distance for pair, distance in near.items() if distance < TOLD_APART} == {}
