"""From the samples of `agents.measure` to rows of a profile: missing layers, medians, quartiles."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from agents.measurements import Decode, Kv, Line, Prefill
from agents.shapes import Attention, Shape
from testbed.profiles.table import Row, timed
from testbed.readable import number

MOST_SPREAD: Final = 0.1
"""Middle half of the samples over their median: with more, the machine had something else to do."""


def rows(lines: Iterable[Line], shape: Shape) -> list[Row]:
    """The profile of the whole model, although only its first layers may have been measured.

    In each sample a missing layer takes the mean of the measured ones that are built like it, and the whole
    as much more as its missing layers. So medians and quartiles are those of the whole.
    """
    prefill: dict[int, list[Prefill]] = defaultdict(list)
    decode: dict[tuple[int, int], list[Decode]] = defaultdict(list)
    sizes: dict[int, tuple[int, ...]] = {}
    for line in lines:
        match line:
            case Prefill():
                prefill[line.tokens].append(line)
            case Decode():
                decode[line.batch, line.tokens].append(line)
            case Kv():
                sizes[line.tokens] = line.layers_bytes
            case _:
                pass
    found = [
        timed(Row(kind="prefill", tokens=tokens), _totals(some, shape)) for tokens, some in prefill.items()
    ]
    for tokens, some in prefill.items():
        for layer, times_s in enumerate(zip(*(whole(one.layers_s, shape) for one in some), strict=True)):
            found.append(timed(Row(kind="layer", tokens=tokens, layer=layer), times_s))
    for tokens, layers_bytes in sizes.items():
        found.append(Row(kind="kv", tokens=tokens, size_bytes=round(sum(whole(layers_bytes, shape)))))
    for (batch, tokens), steps in sorted(decode.items()):
        found.append(timed(Row(kind="decode", tokens=tokens, batch=batch), _totals(steps, shape)))
    return found


def whole(measured: Sequence[float], shape: Shape) -> list[float]:
    """A value for each layer of the model from those of its first few, which have each kind of layer."""
    by_kind: dict[Attention, list[float]] = defaultdict(list)
    for kind, value in zip(shape.layers, measured, strict=False):
        by_kind[kind].append(value)
    missing = shape.layers[len(measured) :]
    return [*measured, *(statistics.fmean(by_kind[kind]) for kind in missing)]


def restless(found: Iterable[Row]) -> list[str]:
    """What was measured with a wide spread, in words, the widest first."""
    wide = []
    for row in found:
        if row.kind in ("prefill", "decode") and (spread := spread_of(row)) > MOST_SPREAD:
            batch = "" if row.batch is None else f", batch {row.batch}"
            wide.append((-spread, f"{row.kind} of {row.tokens} tokens{batch}: {number(spread * 100, 2)} %"))
    return [text for _, text in sorted(wide)]


def spread_of(row: Row) -> float:
    """Distance of the quartiles over the median; 0 where there are none."""
    if row.median_s is None or row.p25_s is None or row.p75_s is None:
        return 0.0
    return (row.p75_s - row.p25_s) / row.median_s


def _totals(samples: Sequence[Prefill] | Sequence[Decode], shape: Shape) -> list[float]:
    """Seconds of each sample with the missing layers."""
    return [one.total_s + sum(whole(one.layers_s, shape)[len(one.layers_s) :]) for one in samples]
