"""Azure's LLM inference traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

    2023-11-16 18:15:46.6805900,374,44
    2024-05-10 00:00:00.009930+00:00,2162,5

Times are of the day; a trace begins with its earliest row. Those of 2023 have seven digits behind the point
and no zone, those of 2024 six and one; without a zone a time is taken for UTC.
Source: https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and ...2024.md.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Final

from testbed.units import NS_PER_S, UnitError, shown
from testbed.workload.trace_file import TraceFile, TraceRow, parse_tokens

TIME_ALLOWED: Final = "such as 2023-11-16 18:15:46.6805900 or 2024-05-10 00:00:00.009930+00:00"
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?",
    re.ASCII,
)


def parse_time_ns(text: str) -> int:
    """Nanoseconds from the first day of the calendar to `2023-11-16 18:15:46.6805900`; raises UnitError."""
    match = _TIME.fullmatch(text.strip())
    day = _day(match[1]) if match else None
    if match is None or day is None:
        raise UnitError(f"{shown(text)} is no time", TIME_ALLOWED)
    _, hours, minutes, seconds, fraction, sign, zone_hours, zone_minutes = match.groups()
    t_min = (day * 24 + int(hours)) * 60 + int(minutes)
    if sign:
        east_min = int(zone_hours) * 60 + int(zone_minutes)
        t_min -= east_min if sign == "+" else -east_min
    return (t_min * 60 + int(seconds)) * NS_PER_S + int((fraction or "").ljust(9, "0"))


@lru_cache
def _day(text: str) -> int | None:
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return None


def read(file: TraceFile) -> list[TraceRow]:
    """All rows, in the order of the file; wrong ones are noted there."""
    columns = {"TIMESTAMP": parse_time_ns, "ContextTokens": parse_tokens, "GeneratedTokens": parse_tokens}
    rows = list(file.table(columns, {}))
    first_ns = min((t_ns for t_ns, _, _ in rows), default=0)
    return [TraceRow(t_ns - first_ns, context, generated) for t_ns, context, generated in rows]
