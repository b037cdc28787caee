"""Traces of the simulator Vidur: CSV with arrived_at (seconds), num_prefill_tokens and num_decode_tokens.

Some have a session_id; other columns are ignored. Files of lengths alone, without arrived_at, are no traces.
Source: https://github.com/microsoft/vidur, data/processed_traces and trace_replay_request_generator.py.
"""

from __future__ import annotations

from testbed.workload.trace_file import TraceFile, TraceRow, parse_seconds_ns, parse_session, parse_tokens


def read(file: TraceFile) -> list[TraceRow]:
    """All rows, in the order of the file; wrong ones are noted there."""
    columns = {
        "arrived_at": parse_seconds_ns,
        "num_prefill_tokens": parse_tokens,
        "num_decode_tokens": parse_tokens,
    }
    return [
        TraceRow(t_ns, prefill, decode, session=session)
        for t_ns, prefill, decode, session in file.table(columns, {"session_id": parse_session})
    ]
