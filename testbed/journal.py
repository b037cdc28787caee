"""The journal: what every writer notes while the run goes on, one JSON object a line.

Appended and flushed from the first event on, so that a killed run stays readable. Every line has
`kind` and `t_ns` (CLOCK_MONOTONIC of the kernel the run lives in, the same in all containers).
`record` turns the journal into tables; nothing else reads it.

bench.jsonl       start(t_ns = t0) · event(name, detail)
                  link_set(direction, rate_bps, buffer_bytes, delay_ns, jitter_ns, loss_ratio, partitioned,
                  limit_packets): as read back from the kernel
                  calibration(direction, wanted_bps, goodput_bps, wanted_rtt_ns, rtt_ns)
                  trust(what): a reason not to trust this run
                  end(reason): the last line of a run that ended by itself
link.jsonl        link(direction, rate_bps, delay_ns, jitter_ns, loss_ratio: as set and read back;
                  tx_bytes, tx_packets, drops: cumulative counters of the rate stage; backlog_bytes: its
                  queue now; lost_packets: cumulative drops of the delay stage; flight_packets: its queue now)
tcp.jsonl         tcp(host, local, remote, use, cwnd_packets, rtt_ns, bytes_acked, bytes_retrans,
                  delivery_bps, notsent_bytes, congestion_control); use is kv or tenant; only
                  sockets that moved
others.jsonl      burst(source, sink, flows, size_bytes, t_end_ns): traffic of a tenant, t_ns = its start
                  bulk(source, sink, flows, size_bytes, t_end_ns): a transfer without a request
client.jsonl      request(id, t_ns = sent, t_first_ns, t_last_ns, t_end_ns, tokens, state, cause):
                  state is completed, failed or refused; missing times are null; once per request
router.jsonl      decision(id, route, prefill, decode, uncached_tokens, threshold_tokens, reason)
                  control(threshold_tokens, previous_tokens, reason, capacity_bps, goodput_bps, backlog_bytes,
                  retrans_ratio, queue_prfaas, queue_pd, queue_decode): one per control interval
prefill: <agent>  prefill(id, t_ns = queued, t_start_ns, t_end_ns, tokens, kv_bytes)
                  transfer_begin(id, peer, wan, size_bytes, chunks): compute starts, KV will follow
                  transfer(id, peer, wan, size_bytes, chunks, t_ns = first byte handed to TCP, t_end_ns =
                  last byte acknowledged by the receiver, state, cause): state is completed or failed
decode: <agent>   kv(id, t_ns = last chunk in and checked, size_bytes, chunks, checksum_errors)
                  decode(id, t_ns = joined the batch, t_first_ns, t_last_ns, tokens)
"""

from __future__ import annotations

from agents.journal import Journal

__all__ = ["Journal"]
