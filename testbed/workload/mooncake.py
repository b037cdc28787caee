"""Traces in the format of Mooncake (FAST 25): one JSON object a line.

    {"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

`timestamp` counts milliseconds from the trace's start. Traces have coarse clocks: several requests
share a timestamp, and they stay together. Each id is of a block of 512 tokens. Keys beyond these
four are ignored, blank lines skipped.
Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from agents.cache.pool import BLOCK_TOKENS
from testbed.workload.trace_file import TraceFile, TraceRow

ALLOWED: Final = 'such as {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}'
NS_PER_MS: Final = 1_000_000

_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Line(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: _Milliseconds
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_Id, ...]


def read(file: TraceFile) -> list[TraceRow]:
    """All rows, in the order of the file; wrong ones are noted there."""
    rows = []
    for number, line in file.objects(Line, ALLOWED):
        if len(line.hash_ids) > -(-line.input_length // BLOCK_TOKENS):
            found = f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens"
            file.refuse(number, found, f"one for each {BLOCK_TOKENS} tokens begun")
        rows.append(
            TraceRow(line.timestamp * NS_PER_MS, line.input_length, line.output_length, line.hash_ids)
        )
    return rows
