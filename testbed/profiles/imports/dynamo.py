"""What the SLA profiler of NVIDIA Dynamo leaves behind: raw_data.npz of prefill and of decode.

Names and units are those that its planner reads (perf_interpolation.py): `prefill_isl` tokens,
`prefill_ttft` ms; `x_kv_usage` share of the KV cache in use, `y_context_length` tokens, `z_itl` ms,
`max_kv_tokens` one number. A share of the cache is a batch: x_kv_usage * max_kv_tokens / y_context_length,
rounded. The planner's JSON files have the same names. Throughputs are not read: they follow.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.profiles.table import Row

MS_PER_S: Final = 1000.0
PREFILL: Final = ("prefill_isl", "prefill_ttft")
DECODE: Final = ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens")

Arrays = dict[str, list[float]]


def rows(path: Path) -> list[Row]:
    """The points of one file, of prefill or decode or, where it has both, of both.

    Raises:
        ScenarioError: it cannot be read, has neither, or numbers that cannot be so.
    """
    arrays = _load(path)
    has_prefill, has_decode = (set(names) <= arrays.keys() for names in (PREFILL, DECODE))
    if not has_prefill and not has_decode:
        found = f"has the arrays {', '.join(arrays) or 'none'}"
        allowed = f"{', '.join(PREFILL)} (prefill) or {', '.join(DECODE)} (decode)"
        raise ScenarioError(Problem(str(path), found, allowed))
    return [*(_prefill(path, arrays) if has_prefill else []), *(_decode(path, arrays) if has_decode else [])]


def _load(path: Path) -> Arrays:
    """The arrays that have a meaning here, as they are or as lists of JSON."""
    import numpy as np  # noqa: PLC0415 - 0.1 s, which other formats do not need

    try:
        if path.suffix == ".json":
            raw = json.loads(path.read_text(encoding="utf-8"))
            known = {name: raw[name] for name in (*PREFILL, *DECODE) if name in raw}
        else:
            with np.load(path, allow_pickle=False) as raw:
                known = {name: raw[name] for name in (*PREFILL, *DECODE) if name in raw}
        return {name: np.asarray(values, dtype=float).ravel().tolist() for name, values in known.items()}
    except OSError as error:
        problem = Problem(str(path), f"cannot be read: {error.strerror or error}", "a file of arrays")
    except Exception as error:  # noqa: BLE001 - zip, header, pickle, JSON: numpy raises what comes up
        problem = Problem(str(path), f"not a file of arrays: {error}", "raw_data.npz, or the same as JSON")
    raise ScenarioError(problem)


def _same_length(path: Path, arrays: Arrays, names: tuple[str, ...]) -> None:
    counts = {name: len(arrays[name]) for name in names}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ScenarioError(Problem(str(path), found, "equally many of each"))


def _check(path: Path, arrays: Arrays, names: tuple[str, ...]) -> None:
    """All numbers above 0 (NaN and infinity are not)."""
    wrong = [
        Problem(f"{path}: {name}[{index}]", f"{value:g}", "a number above 0")
        for name in names
        for index, value in enumerate(arrays[name])
        if not 0 < value < float("inf")
    ]
    if wrong:
        raise ScenarioError(*wrong[:10])


def _prefill(path: Path, arrays: Arrays) -> list[Row]:
    _same_length(path, arrays, PREFILL)
    _check(path, arrays, PREFILL)
    return [
        Row(kind="prefill", tokens=round(tokens), median_s=ttft_ms / MS_PER_S)
        for tokens, ttft_ms in zip(arrays["prefill_isl"], arrays["prefill_ttft"], strict=True)
    ]


def _decode(path: Path, arrays: Arrays) -> list[Row]:
    points = DECODE[:3]
    _same_length(path, arrays, points)
    _check(path, arrays, DECODE)
    if len(arrays["max_kv_tokens"]) != 1:
        raise ScenarioError(Problem(f"{path}: max_kv_tokens", "more than one number", "one"))
    steps_s: dict[tuple[int, int], list[float]] = defaultdict(list)
    for usage, context, itl_ms in zip(*(arrays[name] for name in points), strict=True):
        batch = max(1, round(usage * arrays["max_kv_tokens"][0] / context))
        steps_s[batch, round(context)].append(itl_ms / MS_PER_S)
    return [
        Row(kind="decode", tokens=context, batch=batch, median_s=statistics.median(times_s))
        for (batch, context), times_s in sorted(steps_s.items())
    ]
