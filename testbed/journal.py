"""The journal: what every writer notes while the run goes on, one JSON object a line.

Appended and flushed from the first event on, so that a killed run stays readable. Every line has
`kind` and `t_ns` (CLOCK_MONOTONIC of the kernel the run lives in, the same in all containers).
`record` turns the journal into tables; nothing else reads it, but for a terminal that shows its end.

bench.jsonl       start(t_ns = t0) · event(name, detail)
                  link_set(direction, rate_bps, buffer_bytes, delay_ns, jitter_ns, loss_ratio, partitioned,
                  limit_packets, settings): as read back from the kernel, in full under `settings`
                  capture(device, realtime_ns): tcpdump listens; CLOCK_REALTIME at t_ns
                  captured(device, packets, dropped_packets): it has ended, and what it said of itself
                  fault(fault, target, active, detail): something was done to an agent or a host, or is over,
                  noted after it was read back
                  program(name, state, detail): one of the scenario's was started, is ready, has ended, was
                  stopped, or failed
                  trust(what): a reason not to trust this run
                  end(reason): the last line of a run that ended by itself
audit.jsonl       calibration(direction, rate_bps, span_ns, grain_bytes, rtt_ns): the link filled by TCP,
                  without impairments
                  train(direction, clock, tells_limit_drops, interval_ns, missed, sizes, left_ns, arrived):
                  probes, with the impairments of the start
                  settings(direction, readings, differences): read again every second, and what others have
                  changed, as the kernel told it, as texts; at the end
                  counters(direction, moment, places): at t0 and at the end
link.jsonl        link(direction, rate_bps, delay_ns, jitter_ns, loss_ratio: as set and read back;
                  tx_bytes, tx_packets, drops: cumulative counters of the rate stage; backlog_bytes: its
                  queue now; lost_packets: cumulative losses on the way; filtered_packets: of these, ahead of
                  the delay stage; limit_drops: of its own accord; flight_packets: its queue now;
                  busy_from_ns, busy_ns, busy_bytes: a time in which the rate stage was surely busy, and
                  what left it)
tcp.jsonl         tcp(host, local, remote, use, cwnd_packets, rtt_ns, bytes_acked, bytes_retrans,
                  delivery_bps, notsent_bytes, congestion_control); use is kv or tenant; only
                  sockets that moved
others.jsonl      burst(source, sink, flows, size_bytes, t_end_ns): traffic of a tenant, t_ns = its start
                  bulk(source, sink, flows, size_bytes, t_end_ns): a transfer without a request
                  tenant(source, sink, size_bytes, received_bytes, t_end_ns, state, cause): one transfer of
                  a tenant; state is completed, failed or partial (broken off when its time was over)
                  microburst(source, sink, packet_bytes, sent_packets, received_packets, t_first_ns,
                  t_end_ns, waited): t_ns = its first packet leaves; first and last arrival; waited: until
                  nothing could be on its way any more
client.jsonl      request(id, t_ns = sent, t_first_ns, t_last_ns, t_end_ns, tokens, state, cause):
                  state is completed, failed or refused; missing times are null; once per request; with
                  real kernels token_ids, too
router.jsonl      decision(step, id, route, prefill, decode, uncached_tokens: in the PD cluster,
                  cached_prfaas_tokens, cached_pd_tokens, threshold_tokens, cache, compress, order_s, reason,
                  seen)
                  retry(id, attempt, cause, action, route, prefill, decode): an attempt failed; action is
                  recompute or retry, and attempt the new one (from 1), or fail, and it is the last
                  health(instance, up, cause): an instance is given up, or back
                  control(step, threshold_tokens, previous_tokens, reason, capacity_bps, goodput_bps,
                  backlog_bytes, retrans_ratio, queue_prfaas, queue_pd, queue_decode, regime, n_prefill,
                  n_decode, prefill_instances, cache: blocks of each cluster, seen): one per control interval
                  policy_failed(step, cause, id, seen): the policy broke, and was asked no more
                  fetch(id, request, cluster, tokens, arrived): a cached prefix from the other cluster is in
                  `cluster`, or will not come; of a hot one without a request
                  role(instance, role): the instance was told to take this role
                  step numbers what the policy was asked, seen is what it was shown: both together replay it
instance: <agent> conversion(role, t_ns = told to, t_drained_ns, t_end_ns): it has this role now
                  prefill(id, attempt, t_ns = queued, t_start_ns, t_end_ns, tokens, kv_bytes)
                  transfer_begin(id, attempt, peer, use, wan, size_bytes, chunks): compute starts, KV will
                  follow; use is kv, or cache for a prefix that the other cluster has cached (ids from 2^40)
                  produced(id, attempt, use, layer, size_bytes): a group of layers was handed to the transport
                  transfer(id, attempt, peer, use, wan, size_bytes, chunks, t_ns = first byte handed to TCP,
                  t_end_ns = last byte acknowledged by the receiver, state, cause, produced_bytes,
                  acked_bytes, resent_bytes): the source's last word; state is completed or failed
                  kv(id, attempt, t_ns = last chunk in and checked, size_bytes, chunks, checksum_errors:
                  damaged copies, refused and sent again; damaged_chunks: accepted although damaged)
                  kv_dropped(id, attempt, received_bytes, checksum_errors, cause): not to be complete here
                  held(pool, size_bytes, transfers): what a pool (send, receive) holds, after each change
                  connection(peer, opened, sockets, cause): sockets: open after this, to all peers
                  decode(id, attempt, t_ns = joined the batch, t_first_ns, t_last_ns, tokens); with real
                  kernels also token_ids, and logits_digest over the logits of all steps
reference.jsonl   reference(id, t_ns, token_ids, logits_digest): what one process without a network answers
an attempt that is absent is 0, the first one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agents.journal import Journal as AgentJournal


class Journal(AgentJournal):
    """One file, one writer, as an agent's; what belongs to one moment may be written at once."""

    _kept: list[bytes] | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the lines noted in this block by one system call at its end, however it ends."""
        self._kept = []
        try:
            yield
        finally:
            lines, self._kept = self._kept, None
            if lines:
                self._file.write(b"".join(lines))

    def note(self, kind: str, t_ns: int, **fields: Any) -> None:
        """Append one line."""
        line = self._encoder.encode({"kind": kind, "t_ns": t_ns, **fields}) + b"\n"
        if self._kept is None:
            self._file.write(line)
        else:
            self._kept.append(line)
