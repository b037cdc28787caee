"""The rows of the table about answers: what real kernels generated, beside what one process alone does."""

from __future__ import annotations

from itertools import zip_longest

from testbed import journal_lines as lines
from testbed.plan import Plan
from testbed.record_rows import Row, SortedJournal


def answers(journal: SortedJournal, plan: Plan) -> list[Row]:
    """One row for every planned request of a run with real kernels; of its attempts, the last."""
    if plan.compute != "real":
        return []
    clients = {line.id: line for line in journal.of(lines.Request)}
    decodes = {line.id: (writer, line) for writer, line in journal.noted(lines.Decode)}
    references = {line.id: line for line in journal.of(lines.Reference)}
    rows = []
    for request in plan.requests:
        row: Row = {"id": request.id}
        client, reference = clients.get(request.id), references.get(request.id)
        if client is not None:
            row |= {"state": client.state, "received": client.token_ids}
        if request.id in decodes:
            writer, decode = decodes[request.id]
            row |= {"decode": writer, "logits": decode.logits_digest}
        if reference is not None:
            row |= {"reference": reference.token_ids, "reference_logits": reference.logits_digest}
        if client is not None and client.state == "completed" and reference is not None:
            row["parts_at"] = _parts_at(client.token_ids or [], reference.token_ids)
            logits = row.get("logits")
            if row["parts_at"] is not None or logits is not None:
                row["same"] = row["parts_at"] is None and logits == reference.logits_digest
        rows.append(row)
    return rows


def _parts_at(one: list[int], other: list[int]) -> int | None:
    """The first place, from 0, at which two answers differ; None: they are the same."""
    pairs = enumerate(zip_longest(one, other))
    return next((place for place, (left, right) in pairs if left != right), None)
