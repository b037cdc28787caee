"""Replay of request traces in the format of Mooncake (FAST 25): one JSON object a line.

    {"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

`timestamp` counts milliseconds from the trace's start. Traces have coarse clocks: several requests
share a timestamp, and they stay together. Keys beyond these four are ignored, blank lines skipped.
Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from agents.cache.pool import BLOCK_TOKENS
from testbed.errors import Problem, ScenarioError
from testbed.plan import Request
from testbed.scenario.workload import MooncakeWorkload
from testbed.units import format_duration_ns
from testbed.workload import Load, drawn_load

ANY_LENGTH: Final = 10**9
"""For `max_tokens`: longer than any input that a row may have."""
MAX_PROBLEMS: Final = 10
ROW_ALLOWED: Final = (
    'such as {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}'
)
NS_PER_MS: Final = 1_000_000

_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Row(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: _Milliseconds
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_Id, ...]


def read_trace(path: Path) -> tuple[Row, ...]:
    """All rows, by timestamp; raises ScenarioError naming file and line of the first wrong ones."""
    rows: list[Row] = []
    problems: list[Problem] = []
    decoder = msgspec.json.Decoder(Row)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ScenarioError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problems.append(Problem(f"{path}:{number}", f"not a row of a trace: {error}", ROW_ALLOWED))
            if len(problems) == MAX_PROBLEMS:
                break
    if not rows and not problems:
        problems.append(Problem(str(path), "the trace is empty", f"one JSON object a line, {ROW_ALLOWED}"))
    if problems:
        raise ScenarioError(*problems)
    return tuple(sorted(rows, key=lambda row: row.timestamp))


def replay(spec: MooncakeWorkload, duration_ns: int, path: Path, *, max_tokens: int, where: str) -> Load:
    """The requests of the spec's window, at their times in the run; inputs have at most `max_tokens`.

    The window begins with the spec's phase, and is as long when the spec gives no length; requests that
    would come after the phase are left out. Raises ScenarioError: the file's problems, inputs that are too
    long, or (at `where`, the spec's place) a window without requests.
    """
    start_ns = spec.window.start
    begin_ns, end_ns = spec.phase(duration_ns)
    length_ns = spec.window.length or round((end_ns - begin_ns) / spec.time_scale)
    requests: list[Request] = []
    too_long: list[Row] = []
    for row in read_trace(path):
        since_ns = row.timestamp * NS_PER_MS - start_ns
        t_ns = begin_ns + round(since_ns * spec.time_scale)
        if not 0 <= since_ns < length_ns or t_ns >= end_ns:
            continue
        if row.input_length > max_tokens and not spec.clamp:
            too_long.append(row)
        requests.append(_request(len(requests), t_ns, row, max_tokens, spec.tenant))
    if too_long:
        raise ScenarioError(_too_long(path, too_long, max_tokens))
    if not requests:
        span = f"{format_duration_ns(start_ns)} to {format_duration_ns(start_ns + length_ns)}"
        raise ScenarioError(Problem(where, f"{path} has no request from {span}", "a window with requests"))
    return drawn_load(tuple(requests), min(round(length_ns * spec.time_scale), end_ns - begin_ns))


def _request(number: int, t_ns: int, row: Row, max_tokens: int, tenant: str) -> Request:
    tokens = min(row.input_length, max_tokens)
    return Request(
        id=number,
        t_ns=t_ns,
        input_tokens=tokens,
        output_tokens=row.output_length,
        hash_ids=row.hash_ids[: -(-tokens // BLOCK_TOKENS)],
        tenant=tenant,
    )


def _too_long(path: Path, rows: list[Row], max_tokens: int) -> Problem:
    longest = max(row.input_length for row in rows)
    return Problem(
        str(path),
        f"{len(rows)} of the window's inputs are too long, up to {longest} tokens",
        f"at most {max_tokens} tokens, where the compute profiles end",
        "set clamp: true beside the trace to shorten them, or give a profile from a file extrapolate: true",
    )
