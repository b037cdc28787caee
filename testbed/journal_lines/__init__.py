"""The lines of the journal as types, and the reader that turns files into them.

`journal.py` says in words what every line means; this is the same in a form that is checked: a line
with an unknown kind, a missing field or a value of the wrong type is malformed. Further fields are
welcome and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed.journal_lines.agents import (
    Blocks,
    Connection,
    Control,
    Conversion,
    Decision,
    Decode,
    Fetch,
    Health,
    Held,
    Kv,
    KvDropped,
    OfAttempt,
    PolicyFailed,
    Prefill,
    Produced,
    Reference,
    Request,
    Retry,
    Role,
    Transfer,
    TransferBegin,
)
from testbed.journal_lines.bench import (
    Bulk,
    Burst,
    Calibration,
    Capture,
    Captured,
    Counters,
    End,
    Event,
    Fault,
    LinkSample,
    LinkSet,
    Microburst,
    Program,
    Settings,
    Start,
    TcpSample,
    Tenant,
    Train,
    Trust,
)
from testbed.journal_lines.line import Line

__all__ = [
    "Blocks", "Bulk", "Burst", "Calibration", "Capture", "Captured", "Connection", "Control",
    "Conversion", "Counters", "Decision", "Decode", "End", "Event", "Fault", "Fetch", "Health", "Held",
    "JournalContent", "Kv", "KvDropped", "Line", "LinkSample", "LinkSet", "Microburst", "Noted",
    "OfAttempt", "PolicyFailed", "Prefill", "Produced", "Program", "Reference", "Request", "Retry",
    "Role", "Settings", "Start", "TcpSample", "Tenant", "Train", "Transfer", "TransferBegin", "Trust",
    "read",
]  # fmt: skip

AnyLine = (
    Start | Event | LinkSet | Calibration | Train | Settings | Counters | Trust | Capture | Captured | End
    | LinkSample | TcpSample | Burst | Bulk | Tenant | Microburst | Fault | Program
    | Request | Decision | Retry | Health | Control | PolicyFailed | Fetch | Role | Conversion
    | Prefill | TransferBegin | Produced | Transfer | Kv | KvDropped | Held | Connection | Decode | Reference
)  # fmt: skip


@dataclass(frozen=True)
class Noted:
    """A line and who wrote it: the stem of its file, which is the agent's name."""

    writer: str
    line: Line


@dataclass(frozen=True)
class JournalContent:
    """All lines of a run in order of time (file name breaks ties), and what could not be read."""

    lines: tuple[Noted, ...]
    problems: tuple[str, ...]


def read(directory: Path) -> JournalContent:
    """All of `directory`/*.jsonl; an absent directory is an empty journal.

    A last line without its newline is where a killed writer stopped: dropped without a word. Any other
    line that cannot be read is a problem, one per file, with the first such line's number.
    """
    lines: list[Noted] = []
    problems: list[str] = []
    decoder = msgspec.json.Decoder(AnyLine)
    for path in sorted(directory.glob("*.jsonl")):
        if not path.is_file():
            problems.append(f"journal/{path.name} is not a regular file")
            continue
        whole_lines = path.read_bytes().split(b"\n")[:-1]
        malformed: list[str] = []
        for number, text in enumerate(whole_lines, start=1):
            try:
                text.decode()  # what is kept as it is (`seen`) is not decoded
                lines.append(Noted(path.stem, decoder.decode(text)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                malformed.append(f"line {number}: {error}")
        if malformed:
            problems.append(f"journal/{path.name}: {len(malformed)} malformed line(s), first {malformed[0]}")
    lines.sort(key=lambda noted: noted.line.t_ns)
    return JournalContent(tuple(lines), tuple(problems))
