"""The record: Parquet tables made from the journal. Checkers, reports and people read these.

All `*_s` columns are virtual seconds since t0. A null means that it did not happen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import polars as pl
from polars.exceptions import PolarsError

from testbed import (
    journal_lines,
    record_answers,
    record_decisions,
    record_faults,
    record_link,
    record_rows,
    record_transfers,
)
from testbed.errors import Problem, RunError
from testbed.plan import Plan
from testbed.rundir import RunDir

TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "requests": {
        "id": pl.Int64,
        "tenant": pl.String,
        "arrival_s": pl.Float64,  # as planned
        "sent_s": pl.Float64,
        "input_tokens": pl.Int64,
        "uncached_tokens": pl.Int64,  # what the PD cluster would have had to compute
        "computed_tokens": pl.Int64,  # what was computed
        "cached_tokens": pl.Int64,  # what the cache of the chosen cluster gave: the rest of the input
        "fetched_tokens": pl.Int64,  # of these, fetched from the other cluster for this request
        "output_tokens": pl.Int64,  # as asked
        "tokens": pl.Int64,  # as received
        "route": pl.String,  # prfaas | pd
        "prefill": pl.String,
        "decode": pl.String,
        "threshold_tokens": pl.Int64,
        "prefill_start_s": pl.Float64,
        "prefill_end_s": pl.Float64,
        "kv_done_s": pl.Float64,
        "decode_start_s": pl.Float64,
        "first_token_s": pl.Float64,  # at the client
        "last_token_s": pl.Float64,  # at the client
        "end_s": pl.Float64,
        "ttft_s": pl.Float64,  # first token at the client - sent
        "itl_s": pl.Float64,  # (last - first token) / (tokens - 1), at the decode instance
        "e2e_s": pl.Float64,
        "queue_s": pl.Float64,  # queued at the prefill instance -> prefill starts
        "prefill_s": pl.Float64,
        "kv_transfer_s": pl.Float64,  # prefill ends -> KV complete at decode: what is not hidden
        "kv_bytes": pl.Int64,
        "state": pl.String,  # completed | failed | refused | unfinished (no terminal state: a defect)
        "cause": pl.String,
        "attempts": pl.Int64,  # 0: never placed; all columns but the client's describe the last one
        "recomputed": pl.Boolean,  # tried again in the PD cluster
        "retried": pl.Boolean,  # tried again in its own cluster
        "ttft_over_prefill": pl.Float64,  # (ttft_s - queue_s) / prefill_s: 1 where the transfer is hidden
        "damaged": pl.Boolean,  # its KV was taken with a damaged chunk: a defect
        "served_twice": pl.Boolean,  # it ended twice, or got more tokens than it asked for: a defect
        "cut_off": pl.Boolean,  # no end before the run had to: all that a system that hangs may show
    },
    "decisions": {
        "t_s": pl.Float64,
        "kind": pl.String,  # route | control | failed: the policy broke, `reason` says how
        "step": pl.Int64,  # what the policy was asked, in order
        "id": pl.Int64,  # of the request, for route
        "route": pl.String,
        "threshold_tokens": pl.Int64,
        "previous_tokens": pl.Int64,
        "uncached_tokens": pl.Int64,
        "cached_prfaas_tokens": pl.Int64,  # of the prompt's beginning, in each cluster, when it was placed
        "cached_pd_tokens": pl.Int64,
        "cache": pl.String,  # own | best: with a longer prefix from the other cluster, if it has one
        "compress": pl.Boolean,
        "order_s": pl.Float64,  # place in the queue of prefill; null: by arrival
        "reason": pl.String,
        "capacity_bps": pl.Float64,  # what the policy believes the link gives; null: not binding
        "goodput_bps": pl.Float64,
        "backlog_bytes": pl.Int64,
        "retrans_ratio": pl.Float64,
        "queue_prfaas": pl.Int64,
        "queue_pd": pl.Int64,
        "queue_decode": pl.Int64,
        "regime": pl.String,  # scarce | abundant
        "n_prefill": pl.Int64,  # instances of the PD cluster that take new work of this role
        "n_decode": pl.Int64,
        "prefill_instances": pl.Int64,  # how many of prefill the policy wants; null: as they are
        "prfaas_prefix_blocks": pl.Int64,  # of the cluster's cache, in use for prefixes now; null: no cache
        "prfaas_transfer_blocks": pl.Int64,  # held by requests and copies under way
        "prfaas_evicted_blocks": pl.Int64,  # since the start
        "pd_prefix_blocks": pl.Int64,
        "pd_transfer_blocks": pl.Int64,
        "pd_evicted_blocks": pl.Int64,
        "seen": pl.String,  # JSON: what the policy was shown
    },
    "roles": {
        "t_s": pl.Float64,  # told to change
        "instance": pl.String,
        "role": pl.String,  # prefill | decode: what it becomes
        "drained_s": pl.Float64,  # the work of the other role was done
        "end_s": pl.Float64,
    },
    "transfers": {
        "id": pl.Int64,  # null: a bulk transfer
        "attempt": pl.Int64,  # at the request, from 0
        "source": pl.String,
        "sink": pl.String,
        "use": pl.String,  # kv | cache | tenant | microburst | bulk
        "wan": pl.Boolean,
        "size_bytes": pl.Int64,
        "chunks": pl.Int64,
        "start_s": pl.Float64,
        "end_s": pl.Float64,
        "goodput_bps": pl.Float64,
        "checksum_errors": pl.Int64,
        "state": pl.String,  # completed | failed | partial (others' traffic only)
        "cause": pl.String,
        "fate": pl.String,  # delivered | dropped | superseded; all that follow: of KV only
        "produced_bytes": pl.Int64,  # handed to the transport, as noted group by group
        "delivered_bytes": pl.Int64,  # counted by the sink
        "dropped_bytes": pl.Int64,  # produced, for nobody: `cause` says why
        "superseded_bytes": pl.Int64,  # produced by an attempt that another one followed
        "resent_bytes": pl.Int64,  # by the transport, not by TCP
        "resumed": pl.Boolean,  # completed, although a part had to be sent again
        "source_bytes": pl.Int64,  # produced, by the source's last word
        "acked_bytes": pl.Int64,  # of these, acknowledged by the sink, by the same word
        "sink_bytes": pl.Int64,  # received, by the sink's last word
        "source_end_s": pl.Float64,
        "sink_end_s": pl.Float64,
        "legs_apart_s": pl.Float64,  # between these two, of an attempt that failed
        "hidden_ratio": pl.Float64,  # share of its time that lies before the prefill's end
        "damaged_chunks": pl.Int64,  # taken although damaged
    },
    "pools": {
        "t_s": pl.Float64,
        "instance": pl.String,
        "pool": pl.String,  # send | receive
        "held_bytes": pl.Int64,
        "transfers": pl.Int64,
    },
    "connections": {
        "t_s": pl.Float64,
        "instance": pl.String,
        "peer": pl.String,
        "opened": pl.Boolean,
        "sockets": pl.Int64,  # open at the instance after this, to all peers
        "cause": pl.String,
    },
    "health": {
        "t_s": pl.Float64,
        "instance": pl.String,
        "up": pl.Boolean,
        "down_s": pl.Float64,  # until it was up again, or to the end of the run
        "cause": pl.String,
    },
    "faults": {
        "t_s": pl.Float64,
        "end_s": pl.Float64,  # null: it did not end
        "fault": pl.String,
        "target": pl.String,
        "detail": pl.String,
    },
    "answers": {  # of runs with real kernels
        "id": pl.Int64,
        "state": pl.String,
        "decode": pl.String,
        "received": pl.List(pl.Int64),  # token ids, at the client
        "reference": pl.List(pl.Int64),  # what one process without a network answers
        "parts_at": pl.Int64,  # the first place, from 0, where they differ; null: they do not
        "logits": pl.String,  # digest over all steps at the decode instance
        "reference_logits": pl.String,
        "same": pl.Boolean,  # tokens and logits; null: not completed, or no reference
    },
    "tcp": {
        "t_s": pl.Float64,
        "host": pl.String,
        "local": pl.String,
        "remote": pl.String,
        "use": pl.String,
        "cwnd_packets": pl.Int64,
        "rtt_s": pl.Float64,
        "bytes_acked": pl.Int64,
        "bytes_retrans": pl.Int64,
        "delivery_bps": pl.Float64,
        "notsent_bytes": pl.Int64,
        "congestion_control": pl.String,
    },
    "links": {
        "t_s": pl.Float64,
        "direction": pl.String,
        "rate_bps": pl.Int64,
        "delay_s": pl.Float64,
        "jitter_s": pl.Float64,
        "loss_ratio": pl.Float64,
        "throughput_bps": pl.Float64,  # bytes that left the rate stage since the previous sample
        "backlog_bytes": pl.Int64,
        "drops": pl.Int64,  # at the buffer, since the previous sample
        "sent_packets": pl.Int64,  # that left the rate stage since the previous sample
        "lost_packets": pl.Int64,  # on the way, since the previous sample
        "filtered_packets": pl.Int64,  # of these, ahead of the delay stage: too large, or every n-th
        "limit_drops": pl.Int64,  # by the delay stage's limit, since the previous sample
        "flight_packets": pl.Int64,
        "busy_from_s": pl.Float64,
        "busy_s": pl.Float64,  # a time in which the rate stage surely had something to send
        "busy_bps": pl.Float64,  # what left it in that time
    },
    "probes": {
        "direction": pl.String,
        "number": pl.Int64,
        "size_bytes": pl.Int64,  # of the IP packet
        "copy": pl.Int64,  # 0, or the number of the repetition
        "left_s": pl.Float64,  # the rate stage; null: it did not
        "arrived_s": pl.Float64,  # out of the delay stage; null: lost
        "delay_s": pl.Float64,
        "place": pl.Int64,  # among all arrivals of the direction, from 0
        "intact": pl.Boolean,
    },
    "counters": {
        "t_s": pl.Float64,
        "moment": pl.String,  # start | end
        "direction": pl.String,
        "place": pl.String,
        "packets": pl.Int64,
        "bytes": pl.Int64,
        "drops": pl.Int64,
        "overlimits": pl.Int64,
        "marked": pl.Int64,
        "queue_packets": pl.Int64,
        "backlog_bytes": pl.Int64,
    },
    "events": {
        "t_s": pl.Float64,
        "kind": pl.String,  # start | end | event | trust | link_set | program_failed | ...
        "name": pl.String,
        "detail": pl.String,
    },
}

SORT_KEYS: dict[str, list[str]] = {
    "requests": ["id"],
    "decisions": ["t_s", "step", "kind", "id"],
    "roles": ["t_s", "instance"],
    "transfers": ["start_s", "use", "id", "attempt", "source", "sink"],
    "pools": ["t_s", "instance", "pool"],
    "connections": ["t_s", "instance", "peer"],
    "health": ["t_s", "instance"],
    "faults": ["t_s", "fault", "target"],
    "answers": ["id"],
    "tcp": ["t_s", "host", "local", "remote"],
    "links": ["t_s", "direction"],
    "probes": ["direction", "number", "copy"],
    "counters": ["t_s", "direction", "place"],
    "events": ["t_s", "kind", "name", "detail"],
}


def build(run: RunDir, plan: Plan) -> dict[str, pl.DataFrame]:
    """Make the tables from the journal, write them under `record/` and return them.

    Total: a journal cut short, or absent, gives shorter, or empty, tables, and every planned request
    without a terminal line is `unfinished`. Whatever is odd about the journal itself becomes an event
    of kind `trust`. The same journal gives the same tables, row for row.
    """
    content = journal_lines.read(run.journal)
    journal = record_rows.SortedJournal(content)
    problems = [*content.problems, *record_rows.contradictions(journal, plan)]
    tables = {
        "requests": _table("requests", record_rows.requests(journal, plan)),
        "decisions": _table("decisions", record_decisions.decisions(journal)),
        "roles": _table("roles", record_decisions.roles(journal)),
        "transfers": _table("transfers", record_transfers.transfers(journal)),
        "pools": _table("pools", record_faults.pools(journal)),
        "connections": _table("connections", record_faults.connections(journal)),
        "health": _table("health", record_faults.health(journal)),
        "faults": _table("faults", record_faults.faults(journal)),
        "answers": _table("answers", record_answers.answers(journal, plan)),
        "tcp": _table("tcp", record_rows.tcp(journal)),
        "links": _table("links", record_link.links(journal)),
        "probes": _table("probes", record_link.probes(journal)),
        "counters": _table("counters", record_link.counters(journal)),
        "events": _table("events", record_rows.events(journal, problems)),
    }
    run.record.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        with (run.record / f"{name}.parquet").open("wb") as file:  # whatever bytes are in the path
            table.write_parquet(file)
    return tables


def load(run: RunDir) -> dict[str, pl.DataFrame]:
    """The tables of a run whose record was built; RunError: one is missing, damaged or has other columns."""
    tables = {}
    for name, schema in TABLES.items():
        path = run.record / f"{name}.parquet"
        next_step = f"python -m testbed.report {run.path} makes it from the journal"
        if not path.is_file():
            raise RunError(Problem(str(path), "missing", next_step=next_step))
        try:
            with path.open("rb") as file:
                tables[name] = pl.read_parquet(file)
        except (OSError, PolarsError) as error:
            raise RunError(Problem(str(path), f"cannot be read: {error}", next_step=next_step)) from None
        if tables[name].schema != pl.Schema(schema):
            raise RunError(Problem(str(path), "has other columns than this version", next_step=next_step))
    return tables


def digest(run: RunDir) -> str:
    """sha256 over all that the record of `run` says; see `digest_tables`."""
    return digest_tables(load(run))


def digest_tables(tables: Mapping[str, pl.DataFrame]) -> str:
    """sha256 over names, types and values of all tables, in order of name.

    Values are hashed as JSON, column by column: how Parquet lays them out, and which version of which
    library wrote the file, does not reach the result.
    """
    sha = hashlib.sha256()
    for name in sorted(tables):
        for column in tables[name].iter_columns():
            sha.update(f"{name}.{column.name}:{column.dtype}\n".encode())
            sha.update(msgspec.json.encode(column.to_list()))
    return sha.hexdigest()


def _table(name: str, rows: list[record_rows.Row]) -> pl.DataFrame:
    schema = TABLES[name]
    assert all(row.keys() <= schema.keys() for row in rows), f"{name}: a row has a column that is not its own"
    columns = [
        pl.Series(column, [row.get(column) for row in rows], dtype=dtype) for column, dtype in schema.items()
    ]
    return pl.DataFrame(columns).sort(SORT_KEYS[name], nulls_last=False, maintain_order=True)
