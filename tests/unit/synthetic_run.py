"""A plausible run without a kernel, for tests of record, expect, verdict and report only.

A fluid model, not a measurement: requests queue at prefill instances, KV flows through one link whose
capacity falls from 100 to 8 Gbps between 30 and 75 s, the threshold follows (or not). Deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random

from testbed.journal import Journal
from testbed.plan import DIRECTIONS, Plan, Request
from testbed.rundir import RunDir
from tests.unit import synthetic_link
from tests.unit.synthetic_plan import (
    CALM_TOKENS,
    DECODE,
    FULL_BPS,
    HEALED_S,
    PREFILL_A,
    PREFILL_B,
    SCARCE_BPS,
    SCARCE_TOKENS,
    STEP_S,
    TROUBLE_S,
    S,
)

Opener = Callable[[str], Journal]
T0_NS = 120 * S
KV_BYTES_PER_TOKEN = 24_000
TCP_SAMPLES = 125
"""One a second, until nothing moves any more."""


@dataclass
class Job:
    """One request on its way through the model; seconds since t0."""

    request: Request
    sent_s: float
    offloaded: bool
    threshold: int
    agent: str
    start_s: float
    end_s: float
    kv_done_s: float = 0.0

    @property
    def kv_bytes(self) -> int:
        return self.request.input_tokens * KV_BYTES_PER_TOKEN


def write_run(
    directory: Path, plan: Plan, *, reacts: bool = True, tcp_lines: int = 4_000, finished: bool = True
) -> RunDir:
    """Write plan, journal and outcome of a run under `directory`; `reacts` False is a static threshold.

    `tcp_lines`: about so many samples of TCP, of 32 connections at most.
    """
    run = RunDir(directory)
    run.journal.mkdir(parents=True)
    plan.write(run.plan)
    random = Random(plan.seed + 1)
    jobs = _prefilled(plan, reacts)
    carried = _carry(jobs)
    with ExitStack() as stack:

        def opened(writer: str) -> Journal:
            return stack.enter_context(closing(Journal(run.journal / f"{writer}.jsonl")))

        _write_bench(opened, finished)
        proof = opened("audit")
        for direction in DIRECTIONS:
            end_ns = ns(179) if finished else None
            synthetic_link.write(proof, plan, direction, t0_ns=T0_NS, end_ns=end_ns)
        _write_link(opened, plan, carried)
        _write_tcp(opened, carried, tcp_lines)
        _write_control(opened, plan, jobs, carried, reacts)
        _write_jobs(opened, jobs, random)
    run.outcome.write_text(json.dumps({"finished": finished, "problems": []}))
    return run


def note(run: RunDir, writer: str, kind: str, t_ns: int, **fields: object) -> None:
    """Append one line to the journal of `writer`."""
    run.journal.mkdir(parents=True, exist_ok=True)
    with closing(Journal(run.journal / f"{writer}.jsonl")) as journal:
        journal.note(kind, t_ns, **fields)


def capacity_bps(t_s: float) -> int:
    return SCARCE_BPS if TROUBLE_S <= t_s < HEALED_S else FULL_BPS


def threshold_tokens(t_s: float, reacts: bool) -> int:
    """Up in two steps after the trouble, back in three after it."""
    if not reacts:
        return CALM_TOKENS
    steps = [(31.0, 21_500), (31.25, SCARCE_TOKENS), (77.0, 22_000), (78.5, 20_500), (80.0, CALM_TOKENS)]
    return next((tokens for from_s, tokens in reversed(steps) if t_s >= from_s), CALM_TOKENS)


def ns(t_s: float) -> int:
    return T0_NS + round(t_s * S)


def _prefilled(plan: Plan, reacts: bool) -> list[Job]:
    """First come, first served, at the instance that is free first."""
    free_s = dict.fromkeys([*PREFILL_A, *PREFILL_B], 0.0)
    jobs = []
    for request in plan.requests:
        sent_s = request.t_ns / S
        threshold = threshold_tokens(sent_s, reacts)
        offloaded = request.input_tokens > threshold
        agent = min(PREFILL_A if offloaded else PREFILL_B, key=lambda name: free_s[name])
        start_s = max(sent_s + 0.012, free_s[agent])
        free_s[agent] = start_s + request.input_tokens / (32_000 if offloaded else 11_500)
        jobs.append(Job(request, sent_s, offloaded, threshold, agent, start_s, free_s[agent]))
    return jobs


def _carry(jobs: list[Job]) -> list[tuple[float, float, float]]:
    """The link as a fluid: (time, bits per second, bytes waiting); sets `kv_done_s` of all jobs."""
    offloaded = sorted((job for job in jobs if job.offloaded), key=lambda job: job.end_s)
    owed = list(accumulate(job.kv_bytes for job in offloaded))
    waiting, sent, done, carried = 0.0, 0.0, 0, []
    for step in range(1800):
        t_s = step * STEP_S
        for job in offloaded:
            overlap_s = min(job.end_s, t_s + STEP_S) - max(job.start_s, t_s)
            waiting += max(0.0, overlap_s) / (job.end_s - job.start_s) * job.kv_bytes
        moved = min(waiting, 0.96 * capacity_bps(t_s) / 8 * STEP_S)
        waiting, sent = waiting - moved, sent + moved
        carried.append((t_s, moved * 8 / STEP_S, waiting))
        while done < len(owed) and owed[done] <= sent * 1.000001:
            offloaded[done].kv_done_s = max(t_s + STEP_S, offloaded[done].end_s + 0.03)
            done += 1
    for job in jobs:
        if not job.offloaded:
            job.kv_done_s = job.end_s + 0.004
    return carried


def _write_bench(opened: Opener, finished: bool) -> None:
    bench = opened("bench")
    for direction in ("a_to_b", "b_to_a"):
        _link_set(bench, T0_NS, direction, FULL_BPS, 0.0)
    bench.note("start", T0_NS)
    bench.note("event", ns(TROUBLE_S), name="trouble", detail="capacity to us falls to 8 Gbps")
    _link_set(bench, ns(TROUBLE_S), "a_to_b", SCARCE_BPS, 0.0003)
    bench.note("event", ns(40), name="tenants", detail="other tenants send 2 GB in 8 flows")
    bench.note("event", ns(HEALED_S), name="healed", detail="capacity is 100 Gbps again")
    _link_set(bench, ns(HEALED_S), "a_to_b", FULL_BPS, 0.0)
    if finished:
        bench.note("end", ns(179), reason="every request ended")
    tenants = opened("tenants")
    tenants.note(
        "burst", ns(40), source="a4", sink="b8", flows=8, size_bytes=2_000_000_000, t_end_ns=ns(48.5)
    )


def _link_set(bench: Journal, t_ns: int, direction: str, rate_bps: int, loss_ratio: float) -> None:
    bench.note(
        "link_set", t_ns, direction=direction, rate_bps=rate_bps, buffer_bytes=143_750_000,
        delay_ns=5_750_000, jitter_ns=200_000, loss_ratio=loss_ratio, partitioned=False,
    )  # fmt: skip


def _write_link(opened: Opener, plan: Plan, carried: list[tuple[float, float, float]]) -> None:
    link, buffer = opened("link"), plan.link["a_to_b"].buffer_bytes
    totals = {"a_to_b": [0, 0, 0], "b_to_a": [0, 0, 0]}
    for t_s, rate_bps, waiting in carried:
        scarce = TROUBLE_S <= t_s < HEALED_S
        for direction, total in totals.items():
            forward = direction == "a_to_b"
            capacity = capacity_bps(t_s) if forward else FULL_BPS
            sent = int(rate_bps * STEP_S / 8 * (1.01 if forward else 0.004)) + 2_000
            link.note(
                "link", ns(t_s) + 700, direction=direction, rate_bps=capacity,
                delay_ns=5_750_000, jitter_ns=200_000, loss_ratio=0.0003 if forward and scarce else 0.0,
                tx_bytes=total[0], tx_packets=total[0] // 9000, drops=total[1],
                backlog_bytes=int(min(buffer, waiting * 0.1)) if forward else 0,
                lost_packets=total[2], flight_packets=int(rate_bps * 0.00575 / 72_000) if forward else 3,
            )  # fmt: skip
            total[0] += sent
            total[1] += 40 if forward and scarce and waiting > 3e9 else 0
            total[2] += int(sent / 9000 * 0.0003) if forward and scarce else 0


def _write_tcp(opened: Opener, carried: list[tuple[float, float, float]], tcp_lines: int) -> None:
    tcp = opened("tcp")
    sockets = [
        (f"a{host}", f"10.0.1.{host}:{5000 + number}", f"10.0.2.{host}:7000")
        for number in range(8)
        for host in range(1, 5)
    ]
    sockets = sockets[: -(-tcp_lines // TCP_SAMPLES)]
    acked = dict.fromkeys(sockets, 0)
    resent = dict.fromkeys(sockets, 0)
    for t_s in range(TCP_SAMPLES):
        _, rate_bps, waiting = carried[int(t_s / STEP_S)]
        scarce = TROUBLE_S <= t_s < HEALED_S
        for host, local, remote in sockets:
            socket = (host, local, remote)
            moved = int(rate_bps / 8 / len(sockets))
            acked[socket] += moved
            resent[socket] += moved // 400 if scarce else 0
            tcp.note(
                "tcp", ns(t_s) + 90_000, host=host, local=local, remote=remote, use="kv",
                cwnd_packets=120 if scarce else 1800, rtt_ns=52_000_000 if scarce else 11_600_000,
                bytes_acked=acked[socket], bytes_retrans=resent[socket], delivery_bps=int(rate_bps / 32),
                notsent_bytes=int(waiting / len(sockets)), congestion_control="cubic",
            )  # fmt: skip


def _write_control(
    opened: Opener, plan: Plan, jobs: list[Job], carried: list[tuple[float, float, float]], reacts: bool
) -> None:
    router = opened("router")
    notes: list[tuple[int, str, dict[str, object]]] = []
    for job in jobs:
        route = "prfaas" if job.offloaded else "pd"
        verb = "above" if job.offloaded else "not above"
        notes.append((
            ns(job.sent_s + 0.01), "decision",
            {
                "id": job.request.id, "route": route, "prefill": job.agent,
                "decode": DECODE[job.request.id % len(DECODE)], "uncached_tokens": job.request.input_tokens,
                "threshold_tokens": job.threshold, "cache": "own", "compress": False,
                "reason": f"{job.request.input_tokens} uncached tokens, {verb} the threshold",
            },
        ))  # fmt: skip
    for step in range(int(plan.duration_ns / plan.policy.interval_ns)):
        t_s = step * plan.policy.interval_ns / S
        _, rate_bps, waiting = carried[int(t_s / STEP_S)]
        now, before = threshold_tokens(t_s, reacts), threshold_tokens(t_s - 0.25, reacts)
        bound = 31.0 <= t_s < 77.0 and reacts
        notes.append((
            ns(t_s) + 5, "control",
            {
                "threshold_tokens": now, "previous_tokens": before,
                "reason": "the link binds: threshold searched again" if now != before else "nothing changed",
                "capacity_bps": 8.3e9 if bound else None, "goodput_bps": rate_bps,
                "backlog_bytes": int(waiting), "retrans_ratio": 0.0025 if bound else 0.0,
                "queue_prfaas": sum(j.offloaded and j.sent_s < t_s < j.start_s for j in jobs),
                "queue_pd": sum(not j.offloaded and j.sent_s < t_s < j.start_s for j in jobs),
                "queue_decode": sum(j.kv_done_s < t_s < j.kv_done_s + 20 for j in jobs),
                "regime": "scarce", "n_prefill": len(PREFILL_B), "n_decode": len(DECODE),
            },
        ))  # fmt: skip
    for step, (t_ns, kind, fields) in enumerate(sorted(notes, key=lambda note: note[0]), start=1):
        router.note(kind, t_ns, step=step, **fields)


def _write_jobs(opened: Opener, jobs: list[Job], random: Random) -> None:
    names = [*PREFILL_A, *PREFILL_B, *DECODE, "client"]
    writers = {name: opened(name) for name in names}
    for job in jobs:
        number, decode = job.request.id, DECODE[job.request.id % len(DECODE)]
        prefill = writers[job.agent]
        chunks = -(-job.kv_bytes // 16_777_216)
        prefill.note(
            "prefill", ns(job.sent_s + 0.011), id=number, t_start_ns=ns(job.start_s), t_end_ns=ns(job.end_s),
            tokens=job.request.input_tokens, kv_bytes=job.kv_bytes,
        )  # fmt: skip
        prefill.note(
            "transfer_begin", ns(job.start_s), id=number, peer=decode, use="kv", wan=job.offloaded,
            size_bytes=job.kv_bytes, chunks=chunks,
        )  # fmt: skip
        prefill.note("produced", ns(job.end_s), id=number, use="kv", layer=60, size_bytes=job.kv_bytes)
        prefill.note(
            "transfer", ns(job.start_s + 0.002), id=number, peer=decode, use="kv", wan=job.offloaded,
            size_bytes=job.kv_bytes, chunks=chunks, t_end_ns=ns(job.kv_done_s + 0.0058), state="completed",
            cause=None,
        )  # fmt: skip
        writers[decode].note(
            "kv", ns(job.kv_done_s), id=number, size_bytes=job.kv_bytes, chunks=chunks, checksum_errors=0
        )
        first_s = job.kv_done_s + random.uniform(0.03, 0.06)
        last_s = first_s + 1023 * 0.0195
        writers[decode].note(
            "decode", ns(job.kv_done_s + 0.001), id=number, t_first_ns=ns(first_s), t_last_ns=ns(last_s),
            tokens=1024,
        )  # fmt: skip
        writers["client"].note(
            "request", ns(job.sent_s), id=number, t_first_ns=ns(first_s + 0.001),
            t_last_ns=ns(last_s + 0.001), t_end_ns=ns(last_s + 0.002), tokens=1024, state="completed",
            cause=None,
        )  # fmt: skip
