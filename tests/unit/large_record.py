"""The record of a long run with very many requests, to weigh its page; drawn at random, not measured."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from testbed import tables as record
from testbed.plan import Plan
from tests.unit.synthetic_plan import DECODE, PREFILL_A, PREFILL_B, S, make_plan

DURATION_S = 600


def large_plan() -> Plan:
    """Ten minutes; the requests themselves are in the record only."""
    return msgspec.structs.replace(make_plan(requests=10), duration_ns=DURATION_S * S)


def large_record(requests: int, sockets: int = 120, sample_s: float = 0.05) -> dict[str, pl.DataFrame]:
    """All tables; one request in 500 failed, one in 300 was tried again, TCP is sampled once a second."""
    random = np.random.default_rng(5)
    tables = {name: pl.DataFrame(schema=schema) for name, schema in record.TABLES.items()}
    tables["requests"] = _requests(random, requests)
    tables["decisions"] = _decisions(random, tables["requests"])
    tables["transfers"] = _transfers(tables["requests"])
    tables["links"] = _links(random, sample_s)
    tables["tcp"] = _tcp(random, sockets)
    return {name: _typed(name, table) for name, table in tables.items()}


def _typed(name: str, table: pl.DataFrame) -> pl.DataFrame:
    """All columns of the table, absent ones null."""
    schema = record.TABLES[name]
    return table.select(
        (pl.col(column) if column in table.columns else pl.lit(None)).cast(dtype).alias(column)
        for column, dtype in schema.items()
    )


def _requests(random: np.random.Generator, count: int) -> pl.DataFrame:
    sent_s = np.sort(random.uniform(0, DURATION_S - 30, count))
    queue_s, prefill_s = random.exponential(0.4, count), random.uniform(0.1, 2, count)
    kv_s, decode_s = random.exponential(0.1, count), random.uniform(2, 20, count)
    number = np.arange(count)
    offloaded, failed, again = number % 2 == 0, number % 500 == 7, number % 300 == 9
    names = [
        (PREFILL_A[one % len(PREFILL_A)] if away else PREFILL_B[one % len(PREFILL_B)])
        for one, away in zip(number.tolist(), offloaded.tolist(), strict=True)
    ]
    start_s = sent_s + 0.01 + queue_s
    first_s = start_s + prefill_s + kv_s + 0.03
    return pl.DataFrame({
        "id": number, "tenant": "default", "arrival_s": sent_s, "sent_s": sent_s,
        "input_tokens": random.integers(1_000, 100_000, count), "output_tokens": 256, "tokens": 256,
        "uncached_tokens": 1_000, "computed_tokens": 1_000,
        "route": np.where(offloaded, "prfaas", "pd"), "prefill": names,
        "decode": [DECODE[one % len(DECODE)] for one in number.tolist()],
        "queue_s": queue_s, "prefill_s": prefill_s, "kv_transfer_s": kv_s, "ttft_s": first_s - sent_s,
        "prefill_start_s": start_s, "prefill_end_s": start_s + prefill_s,
        "kv_done_s": start_s + prefill_s + kv_s, "decode_start_s": first_s - 0.03, "first_token_s": first_s,
        "last_token_s": first_s + decode_s, "end_s": first_s + decode_s, "e2e_s": first_s + decode_s - sent_s,
        "kv_bytes": 10_000_000, "state": np.where(failed, "failed", "completed"),
        "cause": ["the instance is gone" if one else None for one in failed.tolist()], "attempts": 1 + again,
        "recomputed": False, "retried": again, "damaged": False, "served_twice": False, "cut_off": False,
    })  # fmt: skip


def _decisions(random: np.random.Generator, requests: pl.DataFrame) -> pl.DataFrame:
    control_s = np.arange(0, DURATION_S, 0.25)
    control = pl.DataFrame({
        "t_s": control_s, "kind": "control", "reason": "egress capacity 8.21 Gbps",
        "threshold_tokens": random.integers(18_000, 25_000, control_s.size),
        "previous_tokens": random.integers(18_000, 25_000, control_s.size),
        "capacity_bps": random.uniform(5e9, 1e11, control_s.size), "goodput_bps": 8e9,
        "backlog_bytes": random.integers(0, 10**9, control_s.size), "retrans_ratio": 0.001,
        "n_prefill": 3, "n_decode": 3,
    })  # fmt: skip
    route = requests.select(
        pl.col("sent_s").alias("t_s"), pl.lit("route").alias("kind"), "id", "route", "uncached_tokens",
        pl.format("{} uncached tokens > 19400", "input_tokens").alias("reason"),
    )  # fmt: skip
    return pl.concat([control, route], how="diagonal_relaxed").sort("t_s")


def _transfers(requests: pl.DataFrame) -> pl.DataFrame:
    return requests.select(
        "id", pl.lit(0).alias("attempt"), pl.col("prefill").alias("source"), pl.col("decode").alias("sink"),
        pl.lit("kv").alias("use"), (pl.col("route") == "prfaas").alias("wan"),
        pl.col("kv_bytes").alias("size_bytes"), pl.col("prefill_start_s").alias("start_s"),
        pl.col("kv_done_s").alias("end_s"), pl.lit("completed").alias("state"),
        pl.lit("delivered").alias("fate"), pl.col("kv_bytes").alias("produced_bytes"),
        pl.col("kv_bytes").alias("delivered_bytes"), pl.lit(1e9).alias("goodput_bps"),
    )  # fmt: skip


def _links(random: np.random.Generator, sample_s: float) -> pl.DataFrame:
    t_s = np.arange(0, DURATION_S, sample_s)
    return pl.concat([
        pl.DataFrame({
            "t_s": t_s, "direction": direction, "rate_bps": 10**11,
            "throughput_bps": random.uniform(0, 9e10, t_s.size),
            "backlog_bytes": random.integers(0, 10**8, t_s.size),
            "lost_packets": random.integers(0, 9, t_s.size), "drops": random.integers(0, 9, t_s.size),
        })
        for direction in ("a_to_b", "b_to_a")
    ]).sort("t_s")  # fmt: skip


def _tcp(random: np.random.Generator, sockets: int) -> pl.DataFrame:
    second = np.repeat(np.arange(DURATION_S), sockets)
    one = np.tile(np.arange(sockets), DURATION_S)
    return pl.DataFrame({
        "t_s": second.astype(float), "host": [f"a{1 + number % 4}" for number in one.tolist()],
        "local": [f"10.0.1.2:{5000 + number}" for number in one.tolist()],
        "remote": "10.0.2.3:7000", "use": "kv", "cwnd_packets": random.integers(10, 3_000, one.size),
        "rtt_s": random.uniform(0.01, 0.08, one.size), "bytes_acked": second * (1_000_000 + one),
        "bytes_retrans": second * 100, "delivery_bps": 10**9, "notsent_bytes": 0,
        "congestion_control": "cubic",
    })  # fmt: skip
