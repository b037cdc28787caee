"""The rows of the tables about the policy: what it was asked, what it answered, which roles changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from testbed import journal_lines as lines
from testbed.record_rows import Row, SortedJournal


def decisions(journal: SortedJournal) -> list[Row]:
    """Every routing of a request, every control interval of the policy, and how it broke, if it did."""
    routes = [
        {
            "t_s": journal.seconds(line.t_ns),
            "kind": "route",
            "step": line.step,
            "id": line.id,
            "route": line.route,
            "threshold_tokens": line.threshold_tokens,
            "uncached_tokens": line.uncached_tokens,
            "cached_prfaas_tokens": line.cached_prfaas_tokens,
            "cached_pd_tokens": line.cached_pd_tokens,
            "cache": line.cache,
            "compress": line.compress,
            "order_s": line.order_s,
            "reason": line.reason,
            "seen": _text(line.seen),
        }
        for line in journal.of(lines.Decision)
    ]
    controls = [
        {
            "t_s": journal.seconds(line.t_ns),
            "kind": "control",
            "step": line.step,
            "threshold_tokens": line.threshold_tokens,
            "previous_tokens": line.previous_tokens,
            "reason": line.reason,
            "capacity_bps": line.capacity_bps,
            "goodput_bps": line.goodput_bps,
            "backlog_bytes": line.backlog_bytes,
            "retrans_ratio": line.retrans_ratio,
            "queue_prfaas": line.queue_prfaas,
            "queue_pd": line.queue_pd,
            "queue_decode": line.queue_decode,
            "regime": line.regime,
            "n_prefill": line.n_prefill,
            "n_decode": line.n_decode,
            "prefill_instances": line.prefill_instances,
            **_blocks(line.cache),
            "seen": _text(line.seen),
        }
        for line in journal.of(lines.Control)
    ]
    failures = [
        {
            "t_s": journal.seconds(line.t_ns),
            "kind": "failed",
            "step": line.step,
            "id": line.id,
            "reason": line.cause,
            "seen": _text(line.seen),
        }
        for line in journal.of(lines.PolicyFailed)
    ]
    return routes + controls + failures


def roles(journal: SortedJournal) -> list[Row]:
    """Every change of role, whether or not the run saw its end."""
    ends = journal.noted(lines.Conversion)
    rows = []
    for told in journal.of(lines.Role):
        end = next((end for writer, end in ends if writer == told.instance and end.t_ns >= told.t_ns), None)
        rows.append({
            "t_s": journal.seconds(told.t_ns),
            "instance": told.instance,
            "role": told.role,
            "drained_s": journal.seconds(end.t_drained_ns if end else None),
            "end_s": journal.seconds(end.t_end_ns if end else None),
        })  # fmt: skip
    return rows


def _blocks(cache: Mapping[Literal["prfaas", "pd"], lines.Blocks]) -> Row:
    return {f"{cluster}_{name}": count for cluster, blocks in cache.items() for name, count in blocks.items()}


def _text(seen: msgspec.Raw) -> str | None:
    text = bytes(seen).decode()
    return None if text == "null" else text
