"""aiperf's `mooncake_trace`: Mooncake's format, with turns of sessions and less that has to be there.

    {"timestamp": 27000, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}
    {"session_id": "a", "timestamp": 28000.5, "input_length": 300, "output_length": 40}
    {"session_id": "a", "delay": 2000, "input_length": 150, "output_length": 20}

`timestamp` and `delay` are milliseconds. The rows of a session are its turns, in the order of the file. As
aiperf does, each one's `input_length` is what it adds: its prompt is all that was said before in the session,
answers included, and that. aiperf sends a turn `delay` after the answer to the one before; how long an answer
takes is not known beforehand, so here it counts from the arrival of the one before. What names no lengths
(`text_input`, `messages`, `payload`) is refused, as it would have to be tokenized.
Source: https://github.com/ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md, dataset/loader/models.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from agents.cache.pool import BLOCK_TOKENS
from testbed.workload.trace_file import TraceFile, TraceRow

ALLOWED: Final = (
    'such as {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [0, 1]}, '
    'or with session_id and, in later turns, "delay": 2000 for timestamp'
)
WITHOUT_LENGTH: Final = ("text_input", "messages", "payload")
MAX_PROMPT_TOKENS: Final = 2**22
"""Longer than any model reads; a file of long histories would otherwise become a flood of block ids."""
NS_PER_MS: Final = 1_000_000

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Line(msgspec.Struct, frozen=True):
    """One line of a trace; what cannot be missing differs with the rest of the line."""

    timestamp: _Milliseconds | None = None
    delay: _Milliseconds | None = None
    session_id: str | int | None = None
    input_length: _Tokens | None = None
    output_length: _Tokens | None = None
    hash_ids: tuple[_Id, ...] | None = None
    text_input: Any = None
    messages: Any = None
    payload: Any = None


class _Session:
    """What was said so far: when the last turn came, the tokens, the full blocks of the last prompt."""

    def __init__(self) -> None:
        self.t_ns: int | None = None
        self.tokens = 0
        self.blocks: list[int] = []

    def arrival_ns(self, line: Line) -> int | None:
        """When the next turn comes; None when its line does not say it."""
        if line.timestamp is not None:
            return round(line.timestamp * NS_PER_MS)
        if line.delay is None or self.t_ns is None:
            return None
        return self.t_ns + round(line.delay * NS_PER_MS)

    def prompt(self, line: Line, ids: Iterator[int]) -> tuple[int, tuple[int, ...]]:
        """Tokens and prefix blocks of the next turn.

        A block that the line names can be in common with other sessions only where nothing stands before it:
        in a first turn.
        """
        named = (line.hash_ids or ()) if self.t_ns is None else ()
        tokens = self.tokens + (line.input_length or 0)
        full, rest = divmod(tokens, BLOCK_TOKENS)
        self.blocks += named[:full]
        self.blocks += itertools.islice(ids, full - len(self.blocks))
        last = (named[full : full + 1] or (next(ids),)) if rest else ()
        return tokens, (*self.blocks, *last)


def read(file: TraceFile) -> list[TraceRow]:
    """All rows, in the order of the file; wrong ones are noted there."""
    own_ids = itertools.count(-1, -1)  # negative until the highest id of the file is known
    highest = 0
    sessions: dict[str | int, _Session] = {}
    rows: list[TraceRow] = []
    for number, line in file.objects(Line, ALLOWED):
        session = _Session()
        if line.session_id is not None:
            session = sessions.setdefault(line.session_id, session)
        t_ns = session.arrival_ns(line)
        wrong = _wrong(line, t_ns, first=session.t_ns is None)
        if wrong:
            file.refuse(number, wrong, ALLOWED)
        if session.tokens + (line.input_length or 0) > MAX_PROMPT_TOKENS:
            file.refuse(
                number, "the prompt is too long with its session's history", f"{MAX_PROMPT_TOKENS} tokens"
            )
            file.raise_if_any()
        if t_ns is None:
            continue
        if line.session_id is None:
            tokens, hash_ids = line.input_length or 0, line.hash_ids or ()
        else:
            tokens, hash_ids = session.prompt(line, own_ids)
        answer = line.output_length or 0
        session.t_ns, session.tokens = t_ns, tokens + answer
        highest = max(highest, *(line.hash_ids or (0,)))
        name = None if line.session_id is None else str(line.session_id)
        rows.append(TraceRow(t_ns, tokens, answer, hash_ids, name))
    return [
        msgspec.structs.replace(
            row, hash_ids=tuple([one if one >= 0 else highest - one for one in row.hash_ids])
        )
        if row.session is not None
        else row
        for row in rows
    ]


def _wrong(line: Line, t_ns: int | None, *, first: bool) -> str:
    """Why a line cannot be served; empty when it can."""
    for key in WITHOUT_LENGTH:
        if getattr(line, key) is not None:
            return f"{key} says nothing of how many tokens there are"
    for key in ("input_length", "output_length"):
        if getattr(line, key) is None:
            return f"{key} is missing"
    if t_ns is not None:
        return ""
    return "timestamp is missing, where no turn came before" if first else "timestamp or delay is missing"
