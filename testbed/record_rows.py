"""From the lines of a journal to the rows of the record's tables.

A row is a dict from column to value; a column that is absent is null. Times become seconds since t0,
cumulative counters become differences between samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, TypeVar

import msgspec

from testbed import journal_lines as lines
from testbed.plan import DIRECTIONS, Plan, Request
from testbed.units import NS_PER_S

Row = dict[str, Any]
L = TypeVar("L", bound=lines.Line)

BITS_PER_BYTE = 8
CUT_OFF = "no end before the deadline"
"""What `agents/client.py` gives as the cause of a request that had no end when the run had to end."""


class SortedJournal:
    """Lines by type, in order of time, and the time scale of the run."""

    def __init__(self, content: lines.JournalContent) -> None:
        self._by_type: dict[type[lines.Line], list[lines.Noted]] = defaultdict(list)
        for noted in content.lines:
            self._by_type[type(noted.line)].append(noted)
        starts = self.of(lines.Start)
        # Without a start line nothing says where t0 is; the earliest line is the best that is left, and
        # the judge reports the missing line.
        first_ns = content.lines[0].line.t_ns if content.lines else 0
        self.t0_ns = starts[0].t_ns if starts else first_ns

    def of(self, kind: type[L]) -> list[L]:
        """All lines of a type."""
        return [line for _, line in self.noted(kind)]

    def noted(self, kind: type[L]) -> list[tuple[str, L]]:
        """All lines of a type with their writers."""
        return [(noted.writer, noted.line) for noted in self._by_type[kind] if isinstance(noted.line, kind)]

    def seconds(self, t_ns: int | None) -> float | None:
        """Seconds since t0."""
        return None if t_ns is None else (t_ns - self.t0_ns) / NS_PER_S


def kills(journal: SortedJournal) -> dict[str, list[int]]:
    """When each agent was killed, in order of time; one that was started again later counts, too."""
    found: dict[str, list[int]] = defaultdict(list)
    for line in journal.of(lines.Fault):
        if line.active and line.fault in ("kill", "restart"):
            found[line.target].append(line.t_ns)
    return found


def requests(journal: SortedJournal, plan: Plan) -> list[Row]:
    """One row for every planned request, joined over client, router, prefill and decode.

    Of a request that was tried again, the client saw all attempts; everything else is that of the last one.
    """
    clients = {line.id: line for line in journal.of(lines.Request)}
    answers = Counter(line.id for line in journal.of(lines.Request))
    decisions = {line.id: line for line in journal.of(lines.Decision)}
    retries: dict[int, list[lines.Retry]] = defaultdict(list)
    for retry in journal.of(lines.Retry):
        retries[retry.id].append(retry)
    prefills = {(line.id, line.attempt): (writer, line) for writer, line in journal.noted(lines.Prefill)}
    kvs = {(line.id, line.attempt): line for line in journal.of(lines.Kv)}
    decodes = {(line.id, line.attempt): (writer, line) for writer, line in journal.noted(lines.Decode)}
    fetched = {line.request: line.tokens for line in journal.of(lines.Fetch) if line.arrived}
    rows = []
    for request in plan.requests:
        row = _planned(request)
        last = request.id, max((retry.attempt for retry in retries[request.id]), default=0)
        if request.id in decisions:
            row |= _routed(decisions[request.id], retries[request.id])
        if request.id in clients:
            row |= _seen_by_client(journal, clients[request.id])
            more = (row["tokens"] or 0) > request.output_tokens
            row["served_twice"] = answers[request.id] > 1 or more
        if last in prefills:
            row |= _prefilled(journal, *prefills[last])
            row["cached_tokens"] = request.input_tokens - row["computed_tokens"]
            row["fetched_tokens"] = fetched.get(request.id, 0)
            row["ttft_over_prefill"] = _over_prefill(row)
        if last in kvs:
            kv = kvs[last]
            prefill_end_ns = prefills[last][1].t_end_ns if last in prefills else None
            row |= {
                "kv_done_s": journal.seconds(kv.t_ns),
                "kv_transfer_s": between(prefill_end_ns, kv.t_ns),
                "damaged": kv.damaged_chunks > 0,
            }
        if last in decodes:
            row |= _decoded(journal, *decodes[last])
        rows.append(row)
    return rows


def _planned(request: Request) -> Row:
    return {
        "id": request.id,
        "tenant": request.tenant,
        "arrival_s": request.t_ns / NS_PER_S,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "state": "unfinished",
        "attempts": 0,
        "recomputed": False,
        "retried": False,
        "damaged": False,
        "served_twice": False,
        "cut_off": False,
    }


def _routed(decision: lines.Decision, retries: list[lines.Retry]) -> Row:
    again = [retry for retry in retries if retry.action != "fail"]
    placed = again[-1] if again else decision
    return {
        "route": placed.route,
        "prefill": placed.prefill,
        "decode": placed.decode,
        "uncached_tokens": decision.uncached_tokens,
        "threshold_tokens": decision.threshold_tokens,
        "attempts": (decision.prefill is not None) + len(again),
        "recomputed": any(retry.action == "recompute" for retry in again),
        "retried": any(retry.action == "retry" for retry in again),
    }


def _seen_by_client(journal: SortedJournal, client: lines.Request) -> Row:
    return {
        "sent_s": journal.seconds(client.t_ns),
        "first_token_s": journal.seconds(client.t_first_ns),
        "last_token_s": journal.seconds(client.t_last_ns),
        "end_s": journal.seconds(client.t_end_ns),
        "ttft_s": between(client.t_ns, client.t_first_ns),
        "e2e_s": between(client.t_ns, client.t_end_ns),
        "tokens": client.tokens,
        "state": client.state,
        "cause": client.cause,
        "cut_off": client.cause == CUT_OFF,
    }


def _prefilled(journal: SortedJournal, agent: str, prefill: lines.Prefill) -> Row:
    return {
        "prefill": agent,
        "prefill_start_s": journal.seconds(prefill.t_start_ns),
        "prefill_end_s": journal.seconds(prefill.t_end_ns),
        "queue_s": between(prefill.t_ns, prefill.t_start_ns),
        "prefill_s": between(prefill.t_start_ns, prefill.t_end_ns),
        "computed_tokens": prefill.tokens,
        "kv_bytes": prefill.kv_bytes,
    }


def _over_prefill(row: Row) -> float | None:
    """1 where nothing but the prefill stands before the first token, apart from the queue."""
    ttft_s, queue_s, prefill_s = row.get("ttft_s"), row["queue_s"], row["prefill_s"]
    return (
        (ttft_s - queue_s) / prefill_s if ttft_s is not None and queue_s is not None and prefill_s else None
    )


def _decoded(journal: SortedJournal, agent: str, decode: lines.Decode) -> Row:
    whole_s = between(decode.t_first_ns, decode.t_last_ns)
    return {
        "decode": agent,
        "decode_start_s": journal.seconds(decode.t_ns),
        "itl_s": None if whole_s is None or decode.tokens <= 1 else whole_s / (decode.tokens - 1),
    }


def tcp(journal: SortedJournal) -> list[Row]:
    """Samples of TCP_INFO; byte counters stay cumulative, as the kernel gives them per socket."""
    return [
        {
            "t_s": journal.seconds(line.t_ns),
            "host": line.host,
            "local": line.local,
            "remote": line.remote,
            "use": line.use,
            "cwnd_packets": line.cwnd_packets,
            "rtt_s": line.rtt_ns / NS_PER_S,
            "bytes_acked": line.bytes_acked,
            "bytes_retrans": line.bytes_retrans,
            "delivery_bps": line.delivery_bps,
            "notsent_bytes": line.notsent_bytes,
            "congestion_control": line.congestion_control,
        }
        for line in journal.of(lines.TcpSample)
    ]


def events(journal: SortedJournal, problems: list[str]) -> list[Row]:
    """The bench's own lines; `problems` of the journal itself join them as trust rows without a time."""
    rows: list[Row] = [{"kind": "trust", "name": "trust", "detail": problem} for problem in problems]

    def add(line: lines.Line, kind: str, name: str, detail: str) -> None:
        rows.append({"t_s": journal.seconds(line.t_ns), "kind": kind, "name": name, "detail": detail})

    for start in journal.of(lines.Start):
        add(start, "start", "start", "")
    for event in journal.of(lines.Event):
        add(event, "event", event.name, event.detail)
    for trust in journal.of(lines.Trust):
        add(trust, "trust", "trust", trust.what)
    for end in journal.of(lines.End):
        add(end, "end", "end", end.reason)
    measured: list[tuple[str, lines.LinkSet | lines.Calibration | lines.Settings | lines.Train]] = [
        *(("link_set", line) for line in journal.of(lines.LinkSet)),
        *(("calibration", line) for line in journal.of(lines.Calibration)),
        *(("settings", line) for line in journal.of(lines.Settings)),
        *(("train", line) for line in journal.of(lines.Train)),
    ]
    for kind, about in measured:
        add(about, kind, about.direction, _fields(about, "sizes", "left_ns", "arrived"))
    for capture in journal.of(lines.Capture):
        add(capture, "capture", capture.device, _fields(capture))
    for captured in journal.of(lines.Captured):
        add(captured, "captured", captured.device, _fields(captured))
    for program in journal.of(lines.Program):
        add(program, f"program_{program.state}", program.name, program.detail)
    return rows


def contradictions(journal: SortedJournal, plan: Plan) -> list[str]:
    """What the journal says that cannot be so."""
    planned = {request.id for request in plan.requests}
    ended = Counter(line.id for line in journal.of(lines.Request))
    unplanned = sorted(request for request in ended if request not in planned)
    repeated = sorted(request for request, count in ended.items() if count > 1)
    problems = []
    if unplanned:
        problems.append(f"the client noted requests that the plan does not have: {unplanned[:5]}")
    if repeated:
        problems.append(f"requests that ended more than once: {repeated[:5]}")
    if len(journal.of(lines.Start)) > 1:
        problems.append("the journal has more than one start line")
    problems += _unplanned_changes(journal, plan)
    previous: dict[str, lines.LinkSample] = {}
    for line in journal.of(lines.LinkSample):
        before = previous.get(line.direction)
        previous[line.direction] = line
        if before is not None and went_backwards(before, line):
            t_s = journal.seconds(line.t_ns)
            problems.append(f"link counters of {line.direction} went backwards at {t_s:.3f} s")
    return problems


def _unplanned_changes(journal: SortedJournal, plan: Plan) -> list[str]:
    """Directions whose changes are noted more often than planned or, in a run that ended, less often.

    Those of its last second may not have come.
    """
    end_ns = next((end.t_ns - journal.t0_ns for end in journal.of(lines.End)), 0)
    problems = []
    for direction in DIRECTIONS:
        planned_ns = [change.t_ns for change in plan.changes if change.direction == direction]
        due = sum(t_ns < end_ns - NS_PER_S for t_ns in planned_ns)
        noted = sum(line.direction == direction for line in journal.of(lines.LinkSet))
        if not due <= noted <= len(planned_ns):
            problems.append(f"link {direction}: {noted} changes noted where {len(planned_ns)} were planned")
    return problems


def _fields(line: lines.Line, *without: str) -> str:
    """The fields of a line as JSON, without those that are columns already."""
    fields = msgspec.to_builtins(line)
    left_out = {"kind", "t_ns", "direction", *without}
    kept = {name: value for name, value in fields.items() if name not in left_out}
    return msgspec.json.encode(kept).decode()


def between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_S


def rate_bps(size_bytes: int, start_ns: int, end_ns: int | None) -> float | None:
    if end_ns is None or end_ns <= start_ns:
        return None
    return size_bytes * BITS_PER_BYTE * NS_PER_S / (end_ns - start_ns)


def went_backwards(before: lines.LinkSample, after: lines.LinkSample) -> bool:
    return (
        after.tx_bytes < before.tx_bytes
        or after.drops < before.drops
        or after.lost_packets < before.lost_packets
    )
