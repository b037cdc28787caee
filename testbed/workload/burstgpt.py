"""BurstGPT's traces: CSV, seconds from the first midnight, with and without sessions.

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type

Only time, tokens and session are read. Requests that failed have 0 response tokens; rows of the API name no
session. Source: https://github.com/HPMLL/BurstGPT (arXiv 2401.17644).
"""

from __future__ import annotations

from testbed.workload.trace_file import TraceFile, TraceRow, parse_seconds_ns, parse_session, parse_tokens


def read(file: TraceFile) -> list[TraceRow]:
    """All rows, in the order of the file; wrong ones are noted there."""
    columns = {
        "Timestamp": parse_seconds_ns,
        "Request tokens": parse_tokens,
        "Response tokens": parse_tokens,
    }
    return [
        TraceRow(t_ns, request, response, session=session)
        for t_ns, request, response, session in file.table(columns, {"Session ID": parse_session})
    ]
