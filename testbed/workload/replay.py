"""From the rows of a trace to requests, the same way for every format: sample, window, phase of the run."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np

from agents.cache.pool import BLOCK_TOKENS
from testbed.errors import Problem, ScenarioError
from testbed.plan import Request
from testbed.scenario.workload import TraceWorkload
from testbed.units import format_duration_ns
from testbed.workload import Load, aiperf, azure, burstgpt, drawn_load, mooncake, vidur
from testbed.workload.trace_file import TraceFile, TraceRow

FORMATS: Final[dict[str, Callable[[TraceFile], list[TraceRow]]]] = {
    "mooncake": mooncake.read,
    "azure": azure.read,
    "burstgpt": burstgpt.read,
    "aiperf": aiperf.read,
    "vidur": vidur.read,
}
"""Readers by the `kind` of the workload."""
ANY_LENGTH: Final = 10**12
"""For `max_tokens`: longer than any input that a row may have."""


def read_rows(kind: str, file: TraceFile) -> list[TraceRow]:
    """All rows by time, those of one time in the file's order; raises ScenarioError with what is wrong."""
    rows = FORMATS[kind](file)
    file.raise_if_any()
    return sorted(rows, key=attrgetter("t_ns"))


def replay(
    spec: TraceWorkload,
    duration_ns: int,
    file: TraceFile,
    *,
    max_tokens: int,
    where: str,
    draws: np.random.Generator,
) -> Load:
    """The requests of the spec's window, at their times in the run; inputs have at most `max_tokens`.

    The window begins with the spec's phase, and is as long when the spec gives no length; requests that
    would come after the phase are left out, and so are rows without input or output tokens, which are
    requests that failed. `draws` decides what is sampled, and is used for nothing else: a session, or a row
    that names none, is in or out whatever the window is. Raises ScenarioError: the file's problems, inputs
    that are too long, or (at `where`, the spec's place) a window without requests.
    """
    start_ns = spec.window.start
    begin_ns, end_ns = spec.phase(duration_ns)
    length_ns = spec.window.length or round((end_ns - begin_ns) / spec.time_scale)
    rows = read_rows(spec.kind, file)
    served = [row for row in rows if row.input_tokens and row.output_tokens]
    drawn = _sampled(served, spec.sample, draws)
    requests: list[Request] = []
    too_long: list[TraceRow] = []
    for row in drawn:
        since_ns = row.t_ns - start_ns
        t_ns = begin_ns + round(since_ns * spec.time_scale)
        if not 0 <= since_ns < length_ns or t_ns >= end_ns:
            continue
        if row.input_tokens > max_tokens:
            too_long.append(row)
        requests.append(_request(len(requests), t_ns, row, max_tokens, spec.tenant))
    if too_long and not spec.clamp:
        raise ScenarioError(_too_long(file, too_long, max_tokens))
    if not requests:
        raise ScenarioError(_nothing(file, drawn, where, start_ns, start_ns + length_ns))
    note = f"{spec.trace}: {len(rows)} rows"
    if len(served) < len(rows):
        note += f", {len(rows) - len(served)} without tokens left out"
    if spec.sample < 1:
        note += f", {len(drawn)} drawn"
    note += f", {len(requests)} in the window"
    if too_long:
        note += f", {len(too_long)} shortened to {max_tokens} tokens"
    load = drawn_load(tuple(requests), min(round(length_ns * spec.time_scale), end_ns - begin_ns))
    return msgspec.structs.replace(load, notes=(note,))


def _sampled(rows: list[TraceRow], share: float, draws: np.random.Generator) -> list[TraceRow]:
    """Each session, and each row without one, with the probability `share`; a session by its first row."""
    if share == 1:
        return rows
    chosen: dict[str, bool] = {}
    return [
        row
        for row, lucky in zip(rows, (draws.random(len(rows)) < share).tolist(), strict=True)
        if (lucky if row.session is None else chosen.setdefault(row.session, lucky))
    ]


def _request(number: int, t_ns: int, row: TraceRow, max_tokens: int, tenant: str) -> Request:
    tokens = min(row.input_tokens, max_tokens)
    return Request(
        id=number,
        t_ns=t_ns,
        input_tokens=tokens,
        output_tokens=row.output_tokens,
        hash_ids=row.hash_ids[: -(-tokens // BLOCK_TOKENS)],
        tenant=tenant,
    )


def _too_long(file: TraceFile, rows: list[TraceRow], max_tokens: int) -> Problem:
    longest = max(row.input_tokens for row in rows)
    return Problem(
        str(file.path),
        f"{len(rows)} of the window's inputs are too long, up to {longest} tokens",
        f"at most {max_tokens} tokens, where the compute profiles end",
        "set clamp: true beside the trace to shorten them, or give a profile from a file extrapolate: true",
    )


def _nothing(file: TraceFile, rows: list[TraceRow], where: str, start_ns: int, end_ns: int) -> Problem:
    span = f"{format_duration_ns(start_ns)} to {format_duration_ns(end_ns)}"
    there = "it has none at all"
    if rows:
        first, last = format_duration_ns(rows[0].t_ns), format_duration_ns(rows[-1].t_ns)
        there = f"its requests lie from {first} to {last}"
    return Problem(where, f"{file.path} has no request from {span}", "a window with requests", there)
