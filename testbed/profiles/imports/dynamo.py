"""What the SLA profiler of NVIDIA Dynamo leaves behind: raw_data.npz of prefill and of decode.

Names and units are those that its planner reads (perf_interpolation.py): `prefill_isl` tokens,
`prefill_ttft` ms; `x_kv_usage` share of the KV cache in use, `y_context_length` tokens, `z_itl` ms,
`max_kv_tokens` one number. A share of the cache is a batch: x_kv_usage * max_kv_tokens / y_context_length,
rounded. The planner's JSON files have the same names. Throughputs are not read: they follow.
"""

from __future__ import annotations

import io
import json
import math
import statistics
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import IO, Any, Final

from agents.compute_profile import FURTHEST_TOKENS
from testbed.errors import Problem, ScenarioError
from testbed.profiles.cells import LEAST_S, LONGEST_S, MAX_ROWS, content, printable
from testbed.profiles.table import Row

MS_PER_S: Final = 1000.0
PREFILL: Final = ("prefill_isl", "prefill_ttft")
DECODE: Final = ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens")
LIMITS: Final = {
    "prefill_isl": (1.0, float(FURTHEST_TOKENS)),
    "prefill_ttft": (LEAST_S * MS_PER_S, LONGEST_S * MS_PER_S),
    "x_kv_usage": (1e-12, 1.0),
    "y_context_length": (1.0, float(FURTHEST_TOKENS)),
    "z_itl": (LEAST_S * MS_PER_S, LONGEST_S * MS_PER_S),
    "max_kv_tokens": (1.0, 1e12),
}
"""Least and most of each."""
MAX_JSON_BYTES: Final = 16 * 2**20
MOST_BYTES_EACH: Final = 8
MOST_HEADER_BYTES: Final = 4096
FILES: Final = "raw_data.npz, or the same as JSON"

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
    try:
        if path.suffix == ".json":
            return _from_json(path, content(path, MAX_JSON_BYTES))
        return _from_archive(path, content(path))
    except OSError as error:
        problem = Problem(str(path), f"cannot be read: {error.strerror or error}", FILES)
    except ScenarioError:
        raise
    except Exception:  # noqa: BLE001 - of zip, of numpy's headers, of JSON: what comes up, and says little
        problem = Problem(str(path), "not a file of arrays", FILES)
    raise ScenarioError(problem)


def _from_json(path: Path, data: bytes) -> Arrays:
    raw = json.loads(data.decode("utf-8-sig"), parse_int=float)
    if not isinstance(raw, dict):
        raise ScenarioError(Problem(str(path), "not an object with arrays", FILES))
    known = {name: raw[name] for name in (*PREFILL, *DECODE) if name in raw}
    arrays = {name: value if isinstance(value, list) else [value] for name, value in known.items()}
    for name, values in arrays.items():
        _check_count(f"{path}: {name}", len(values))
        if wrong := [index for index, value in enumerate(values) if not isinstance(value, float)]:
            raise ScenarioError(Problem(f"{path}: {name}[{wrong[0]}]", "not a number", "numbers"))
    return arrays


def _from_archive(path: Path, data: bytes) -> Arrays:
    """What an archive says that it has is looked at before it is unpacked."""
    import numpy as np  # noqa: PLC0415 - 0.1 s, which other formats do not need

    arrays: Arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        there = set(archive.namelist())
        for name in (*PREFILL, *DECODE):
            if f"{name}.npy" not in there:
                continue
            where = f"{path}: {name}"
            member = archive.getinfo(f"{name}.npy")
            _check_count(where, (member.file_size - MOST_HEADER_BYTES) // MOST_BYTES_EACH)
            with archive.open(member) as file:
                _check_header(where, file)
            with archive.open(member) as file:
                values: Any = np.lib.format.read_array(file, allow_pickle=False)
            arrays[name] = values.astype(float).ravel().tolist()
    return arrays


def _check_header(where: str, file: IO[bytes]) -> None:
    """Real numbers, and not too many."""
    import numpy as np  # noqa: PLC0415 - see above

    first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    if kind.kind not in "iuf" or kind.itemsize > MOST_BYTES_EACH:
        raise ScenarioError(Problem(where, f"an array of {printable(str(kind))}", "an array of numbers"))
    _check_count(where, math.prod(shape))


def _check_count(where: str, count: int) -> None:
    if count > MAX_ROWS:
        raise ScenarioError(Problem(where, "too many numbers", f"at most {MAX_ROWS}"))


def _same_length(path: Path, arrays: Arrays, names: tuple[str, ...]) -> None:
    counts = {name: len(arrays[name]) for name in names}
    if len(set(counts.values())) != 1 or not all(counts.values()):
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ScenarioError(Problem(str(path), found, "equally many of each"))


def _check(path: Path, arrays: Arrays, names: tuple[str, ...]) -> None:
    """All numbers within LIMITS (NaN is not)."""
    wrong = [
        Problem(f"{path}: {name}[{index}]", f"{value:g}", f"a number from {least:g} to {most:g}")
        for name in names
        for least, most in (LIMITS[name],)
        for index, value in enumerate(arrays[name])
        if not least <= value <= most
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
        raise ScenarioError(
            Problem(f"{path}: max_kv_tokens", f"{len(arrays['max_kv_tokens'])} numbers", "one")
        )
    steps_s: dict[tuple[int, int], list[float]] = defaultdict(list)
    for usage, context, itl_ms in zip(*(arrays[name] for name in points), strict=True):
        batch = max(1, round(usage * arrays["max_kv_tokens"][0] / context))
        steps_s[batch, round(context)].append(itl_ms / MS_PER_S)
    return [
        Row(kind="decode", tokens=context, batch=batch, median_s=statistics.median(times_s))
        for (batch, context), times_s in sorted(steps_s.items())
    ]
