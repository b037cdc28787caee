"""The rows of the table about transfers: the ledger of KV, traffic of other tenants, bulk transfers.

Every attempt to move KV has one fate. What it produced is

    superseded   its request was tried again, whatever became of this attempt
    delivered    its sink counted all of it
    dropped      by the word of the source, or of the sink; with the source; or when the run ended

and it has none where nobody said a word: `ledger` calls that a violation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed import journal_lines as lines
from testbed.record_rows import Row, SortedJournal, kills, rate_bps
from testbed.units import NS_PER_S

RUN_ENDED = "the run ended"
LAST_MOMENT_NS = 2 * NS_PER_S
"""What was under way when its request ended so shortly before the run need not have been told of it. The
bench waits a second for last words."""


@dataclass(slots=True)
class _Attempt:
    """One attempt to move KV, by the words of both ends."""

    source: str
    begun: lines.TransferBegin | lines.Transfer
    word: lines.Transfer | None = None
    produced_bytes: int = 0
    arrivals: list[lines.Kv] = field(default_factory=list)
    dropped: lines.KvDropped | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.begun.id, self.begun.attempt

    @property
    def completed(self) -> bool:
        """By the word of its source."""
        return self.word is not None and self.word.state == "completed"

    @property
    def delivered(self) -> bool:
        """Counted by the sink; of a prefix, which no request depends on, the source's word is enough."""
        return bool(self.arrivals) or (self.begun.use == "cache" and self.completed)

    @property
    def sink_end_ns(self) -> int | None:
        if self.arrivals:
            return self.arrivals[0].t_ns
        return self.dropped.t_ns if self.dropped else None


class _Ledger:
    """What decides the fate of attempts, besides the words of their two ends."""

    def __init__(self, journal: SortedJournal) -> None:
        self._journal = journal
        self._kills = kills(journal)
        self._ended_ns = next((line.t_ns for line in journal.of(lines.End)), None)
        self._requests_ended_ns = {line.id: line.t_end_ns for line in journal.of(lines.Request)}
        self._prefilled_ns = {(line.id, line.attempt): line.t_end_ns for line in journal.of(lines.Prefill)}
        self._retries = {
            (line.id, line.attempt): line for line in journal.of(lines.Retry) if line.action != "fail"
        }

    def fate(self, one: _Attempt) -> tuple[str | None, str | None]:
        """What became of all that it produced, and why it was not delivered."""
        cause = one.word.cause if one.word else None
        retry = self._retries.get((one.begun.id, one.begun.attempt + 1))
        if one.begun.use == "kv" and retry is not None:
            return "superseded", cause or (one.dropped.cause if one.dropped else retry.cause)
        if one.delivered:
            return "delivered", cause
        cause = self._why_dropped(one)
        return ("dropped" if cause else None), cause

    def _why_dropped(self, one: _Attempt) -> str | None:
        if one.word is not None and one.word.state != "completed":
            return one.word.cause or "failed"
        if one.dropped is not None:
            return one.dropped.cause
        killed_ns = self._killed_ns(one, one.source)
        if killed_ns is not None:
            return f"{one.source} was killed at {(killed_ns - self._journal.t0_ns) / NS_PER_S:.1f} s"
        return RUN_ENDED if self._open_at_the_end(one) else None

    def _killed_ns(self, one: _Attempt, agent: str) -> int | None:
        return next((t_ns for t_ns in self._kills.get(agent, ()) if t_ns >= one.begun.t_ns), None)

    def _open_at_the_end(self, one: _Attempt) -> bool:
        """Whether it may have been under way then: a request's, as long as that is open."""
        ended_ns = self._requests_ended_ns.get(one.begun.id)
        if self._ended_ns is None or one.begun.use != "kv" or ended_ns is None:
            return True
        return ended_ns > self._ended_ns - LAST_MOMENT_NS

    def legs_apart_s(self, one: _Attempt) -> float | None:
        """How long after one end the other gave the attempt up; None where it arrived, or an end never did.

        An end that was killed gave it up then.
        """
        killed_ns = [self._killed_ns(one, agent) for agent in (one.source, one.begun.peer)]
        words_ns = [one.word.t_end_ns if one.word else None, one.sink_end_ns]
        ends_ns = [_earliest(*both) for both in zip(words_ns, killed_ns, strict=True)]
        first_ns, second_ns = ends_ns
        if one.arrivals or first_ns is None or second_ns is None:
            return None
        return abs(first_ns - second_ns) / NS_PER_S

    def hidden_ratio(self, one: _Attempt) -> float | None:
        """The share of its time that lies before the end of the prefill."""
        start_ns = (one.word or one.begun).t_ns
        prefilled_ns = self._prefilled_ns.get(one.key)
        if not one.arrivals or prefilled_ns is None or one.arrivals[0].t_ns <= start_ns:
            return None
        whole_ns = one.arrivals[0].t_ns - start_ns
        return min(max(prefilled_ns - start_ns, 0), whole_ns) / whole_ns


def transfers(journal: SortedJournal) -> list[Row]:
    """KV transfers, traffic of other tenants and bulk transfers."""
    return _kv_transfers(journal) + _flows(journal) + _tenants(journal) + _microbursts(journal)


def _kv_transfers(journal: SortedJournal) -> list[Row]:
    ledger = _Ledger(journal)
    return [_kv_transfer(journal, ledger, one) for one in _attempts(journal)]


def _kv_transfer(journal: SortedJournal, ledger: _Ledger, one: _Attempt) -> Row:
    word, begun = one.word, one.begun
    fate, cause = ledger.fate(one)
    delivered_bytes = sum(kv.size_bytes for kv in one.arrivals) if one.arrivals else begun.size_bytes
    state = word.state if word else "completed" if fate == "delivered" else "failed"
    start_ns, end_ns = (word or begun).t_ns, word.t_end_ns if word else None
    return {
        "id": begun.id,
        "attempt": begun.attempt,
        "source": one.source,
        "sink": begun.peer,
        "use": begun.use,
        "wan": begun.wan,
        "size_bytes": begun.size_bytes,
        "chunks": begun.chunks,
        "start_s": journal.seconds(start_ns),
        "end_s": journal.seconds(end_ns),
        "goodput_bps": rate_bps(begun.size_bytes, start_ns, end_ns) if one.completed else None,
        "state": state,
        "cause": cause,
        "fate": fate,
        "produced_bytes": one.produced_bytes,
        "delivered_bytes": delivered_bytes if fate == "delivered" else 0,
        "dropped_bytes": one.produced_bytes if fate == "dropped" else 0,
        "superseded_bytes": one.produced_bytes if fate == "superseded" else 0,
        "resent_bytes": word.resent_bytes if word else None,
        "resumed": one.completed and bool(word and word.resent_bytes),
        "source_bytes": word.produced_bytes if word else None,
        "acked_bytes": word.acked_bytes if word else None,
        "source_end_s": journal.seconds(end_ns),
        "sink_end_s": journal.seconds(one.sink_end_ns),
        "legs_apart_s": ledger.legs_apart_s(one),
        "hidden_ratio": ledger.hidden_ratio(one),
        **_at_the_sink(one),
    }


def _at_the_sink(one: _Attempt) -> Row:
    if one.arrivals:
        return {
            "sink_bytes": sum(kv.size_bytes for kv in one.arrivals),
            "checksum_errors": sum(kv.checksum_errors for kv in one.arrivals),
            "damaged_chunks": sum(kv.damaged_chunks for kv in one.arrivals),
        }
    if one.dropped is not None:
        return {"sink_bytes": one.dropped.received_bytes, "checksum_errors": one.dropped.checksum_errors}
    return {}


def _attempts(journal: SortedJournal) -> list[_Attempt]:
    """All attempts, in the order in which they began, with all that was said of them."""
    found = _begun(journal)
    by_source: dict[tuple[str, int, int], _Attempt] = {}
    by_sink: dict[tuple[str, int, int], _Attempt] = {}
    for one in found:
        by_source.setdefault((one.source, *one.key), one)
        by_sink.setdefault((one.begun.peer, *one.key), one)
    for source, produced in journal.noted(lines.Produced):
        if at_source := by_source.get((source, produced.id, produced.attempt)):
            at_source.produced_bytes += produced.size_bytes
    for sink, kv in journal.noted(lines.Kv):
        if at_sink := by_sink.get((sink, kv.id, kv.attempt)):
            at_sink.arrivals.append(kv)
    for sink, dropped in journal.noted(lines.KvDropped):
        if at_sink := by_sink.get((sink, dropped.id, dropped.attempt)):
            at_sink.dropped = dropped
    return found


def _begun(journal: SortedJournal) -> list[_Attempt]:
    """All attempts, each with the last word of its source, if there is one.

    A beginning or a last word that is there once more is a row of its own, for `ledger` to wonder at.
    """
    found = [_Attempt(source, line) for source, line in journal.noted(lines.TransferBegin)]
    without_word: dict[tuple[str, int, int], _Attempt] = {}
    for one in found:
        without_word.setdefault((one.source, *one.key), one)
    for source, word in journal.noted(lines.Transfer):
        if begun := without_word.pop((source, word.id, word.attempt), None):
            begun.word = word
        else:
            found.append(_Attempt(source, word, word))
    return sorted(found, key=lambda one: one.begun.t_ns)


def _earliest(*times_ns: int | None) -> int | None:
    return min((t_ns for t_ns in times_ns if t_ns is not None), default=None)


def _flows(journal: SortedJournal) -> list[Row]:
    flows: list[tuple[str, lines.Burst | lines.Bulk]] = [
        *(("tenant", burst) for burst in journal.of(lines.Burst)),
        *(("bulk", bulk) for bulk in journal.of(lines.Bulk)),
    ]
    return [
        {
            "source": flow.source,
            "sink": flow.sink,
            "use": use,
            "wan": True,
            "size_bytes": flow.size_bytes,
            "start_s": journal.seconds(flow.t_ns),
            "end_s": journal.seconds(flow.t_end_ns),
            "goodput_bps": rate_bps(flow.size_bytes, flow.t_ns, flow.t_end_ns),
            "state": "failed" if flow.t_end_ns is None else "completed",
            "cause": "did not end" if flow.t_end_ns is None else None,
        }
        for use, flow in flows
    ]


def _tenants(journal: SortedJournal) -> list[Row]:
    return [
        {
            "source": line.source,
            "sink": line.sink,
            "use": "tenant",
            "wan": True,
            "size_bytes": line.size_bytes,
            "start_s": journal.seconds(line.t_ns),
            "end_s": journal.seconds(line.t_end_ns),
            "goodput_bps": rate_bps(line.size_bytes, line.t_ns, line.t_end_ns),
            "state": line.state,
            "cause": f"{line.cause}; {line.received_bytes} bytes were in" if line.cause else None,
        }
        for line in journal.of(lines.Tenant)
    ]


def _microbursts(journal: SortedJournal) -> list[Row]:
    """UDP has no end to wait for and nothing to fail: lost packets are what the link did to a burst.

    Its goodput is that between the first and the last arrival, so of all packets but one.
    """
    rows = []
    for line in journal.of(lines.Microburst):
        lost = line.sent_packets - line.received_packets
        missing = "lost" if line.waited else "had not arrived when the run ended"
        later_bytes = (line.received_packets - 1) * line.packet_bytes
        rows.append({
            "source": line.source,
            "sink": line.sink,
            "use": "microburst",
            "wan": True,
            "size_bytes": line.sent_packets * line.packet_bytes,
            "start_s": journal.seconds(line.t_ns),
            "end_s": journal.seconds(line.t_end_ns),
            "goodput_bps": None if line.t_first_ns is None else rate_bps(
                later_bytes, line.t_first_ns, line.t_end_ns
            ),
            "state": "partial" if lost else "completed",
            "cause": f"{lost} of {line.sent_packets} packets {missing}" if lost else None,
        })  # fmt: skip
    return rows
