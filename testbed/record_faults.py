"""The rows of the tables about failures: what was done, who was given up, what pools and sockets held."""

from __future__ import annotations

from testbed import journal_lines as lines
from testbed.record_rows import Row, SortedJournal, between, kills


def faults(journal: SortedJournal) -> list[Row]:
    """Everything that was done to agents and hosts, with its end where the run saw it."""
    noted = journal.of(lines.Fault)
    rows = []
    for index, begun in enumerate(noted):
        if not begun.active:
            continue
        same = (
            line for line in noted[index + 1 :] if (line.fault, line.target) == (begun.fault, begun.target)
        )
        end = next((line for line in same if not line.active), None)
        rows.append({
            "t_s": journal.seconds(begun.t_ns),
            "end_s": journal.seconds(end.t_ns if end else None),
            "fault": begun.fault,
            "target": begun.target,
            "detail": begun.detail,
        })  # fmt: skip
    return rows


def health(journal: SortedJournal) -> list[Row]:
    """Whom the router gave up and took back; who is not taken back is down to the end of the run."""
    noted = journal.of(lines.Health)
    run_end_ns = next((line.t_ns for line in journal.of(lines.End)), None)
    rows = []
    for index, line in enumerate(noted):
        later = (other for other in noted[index + 1 :] if other.instance == line.instance)
        up_ns = next((other.t_ns for other in later if other.up), run_end_ns)
        rows.append({
            "t_s": journal.seconds(line.t_ns),
            "instance": line.instance,
            "up": line.up,
            "down_s": None if line.up else between(line.t_ns, up_ns),
            "cause": line.cause,
        })  # fmt: skip
    return rows


def pools(journal: SortedJournal) -> list[Row]:
    """What pools held after each change; the pools of an agent that is killed go with it."""
    rows: list[Row] = [
        {
            "t_s": journal.seconds(line.t_ns),
            "instance": instance,
            "pool": line.pool,
            "held_bytes": line.size_bytes,
            "transfers": line.transfers,
        }
        for instance, line in journal.noted(lines.Held)
    ]
    for instance, moments in kills(journal).items():
        names = sorted({row["pool"] for row in rows if row["instance"] == instance})
        rows += [
            {
                "t_s": journal.seconds(t_ns),
                "instance": instance,
                "pool": pool,
                "held_bytes": 0,
                "transfers": 0,
            }
            for t_ns in moments
            for pool in names
        ]
    return rows


def connections(journal: SortedJournal) -> list[Row]:
    """Every connection for KV that was opened or closed, as its sender noted it."""
    return [
        {
            "t_s": journal.seconds(line.t_ns),
            "instance": instance,
            "peer": line.peer,
            "opened": line.opened,
            "sockets": line.sockets,
            "cause": line.cause,
        }
        for instance, line in journal.noted(lines.Connection)
    ]
