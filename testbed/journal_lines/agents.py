"""The lines that the agents write: client, router and instances."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec

from testbed.journal_lines.line import Line, Real, Whole


class Request(Line, frozen=True, kw_only=True, tag="request"):
    """How a request ended, as its client saw it; `t_ns` is when it was sent."""

    id: Whole
    state: Literal["completed", "failed", "refused"]
    t_first_ns: Whole | None = None
    t_last_ns: Whole | None = None
    t_end_ns: Whole | None = None
    tokens: Whole | None = None
    cause: str | None = None
    token_ids: list[Whole] | None = None
    """Of the answer, where real kernels computed it."""


class Decision(Line, frozen=True, kw_only=True, tag="decision"):
    """Where the policy sent a request; null agents: it was refused."""

    step: Whole | None = None
    """Number of the question among all that the policy was asked."""
    id: Whole
    route: str | None
    prefill: str | None
    decode: str | None
    uncached_tokens: Whole | None
    cached_prfaas_tokens: Whole = 0
    cached_pd_tokens: Whole = 0
    threshold_tokens: Whole | None
    cache: str | None = None
    compress: bool | None = None
    order_s: float | None = None
    reason: str
    seen: msgspec.Raw = msgspec.Raw(b"null")
    """What the policy was shown."""


class Retry(Line, frozen=True, kw_only=True, tag="retry"):
    """An attempt at a request failed, and what follows from it."""

    id: Whole
    attempt: Whole
    """The new one, from 1; for `fail` the one that failed."""
    cause: str
    action: Literal["recompute", "retry", "fail"]
    route: str | None
    prefill: str | None
    decode: str | None


class Health(Line, frozen=True, kw_only=True, tag="health"):
    """The router has given an instance up, or works with it again."""

    instance: str
    up: bool
    cause: str | None = None


class Blocks(TypedDict):
    """Blocks of a cluster's cache."""

    prefix_blocks: Whole
    transfer_blocks: Whole
    evicted_blocks: Whole


class Control(Line, frozen=True, kw_only=True, tag="control"):
    """One control interval of the policy."""

    step: Whole | None = None
    threshold_tokens: Whole
    previous_tokens: Whole
    reason: str
    capacity_bps: Real | None = None
    goodput_bps: Real | None = None
    backlog_bytes: Whole | None = None
    retrans_ratio: Real | None = None
    queue_prfaas: Whole | None = None
    queue_pd: Whole | None = None
    queue_decode: Whole | None = None
    regime: str | None = None
    n_prefill: Whole | None = None
    n_decode: Whole | None = None
    prefill_instances: Whole | None = None
    cache: dict[Literal["prfaas", "pd"], Blocks] = msgspec.field(default_factory=dict)
    seen: msgspec.Raw = msgspec.Raw(b"null")


class PolicyFailed(Line, frozen=True, kw_only=True, tag="policy_failed"):
    """The policy broke, and was not asked any more; `id` is the request that it was asked about, if any."""

    step: Whole
    cause: str
    id: Whole | None = None
    seen: msgspec.Raw = msgspec.Raw(b"null")


class Fetch(Line, frozen=True, kw_only=True, tag="fetch"):
    """A cached prefix that one cluster sent the other has arrived there, or will not."""

    id: Whole
    request: Whole | None
    cluster: str
    tokens: Whole
    arrived: bool


class Role(Line, frozen=True, kw_only=True, tag="role"):
    """An instance was told to take another role."""

    instance: str
    role: str


class Conversion(Line, frozen=True, kw_only=True, tag="conversion"):
    """An instance has another role; `t_ns` is when it was told to."""

    role: str
    t_drained_ns: Whole
    t_end_ns: Whole


class OfAttempt(Line, frozen=True, kw_only=True):
    """A line about one attempt at a request, or about a cached prefix on its way."""

    id: Whole
    """Of the request; of a cached prefix a number of its own."""
    attempt: Whole = 0


class Prefill(OfAttempt, frozen=True, kw_only=True, tag="prefill"):
    """A prefill; `t_ns` is when it was queued."""

    t_start_ns: Whole | None
    t_end_ns: Whole | None
    tokens: Whole
    kv_bytes: Whole


class TransferBegin(OfAttempt, frozen=True, kw_only=True, tag="transfer_begin"):
    """KV is about to be produced; the transfer line follows when it has arrived or failed."""

    peer: str
    use: str = "kv"
    wan: bool
    size_bytes: Whole
    chunks: Whole


class Produced(OfAttempt, frozen=True, kw_only=True, tag="produced"):
    """A group of layers was handed to the transport."""

    use: str = "kv"
    layer: Whole
    size_bytes: Whole


class Transfer(OfAttempt, frozen=True, kw_only=True, tag="transfer"):
    """The source's last word on KV; `t_ns` is the first byte handed to TCP."""

    peer: str
    use: str = "kv"
    wan: bool
    size_bytes: Whole
    chunks: Whole
    t_end_ns: Whole | None
    state: Literal["completed", "failed"]
    cause: str | None = None
    produced_bytes: Whole | None = None
    acked_bytes: Whole | None = None
    resent_bytes: Whole | None = None


class Kv(OfAttempt, frozen=True, kw_only=True, tag="kv"):
    """KV is complete at its sink."""

    size_bytes: Whole
    chunks: Whole
    checksum_errors: Whole
    """Damaged copies of chunks, refused and sent again."""
    damaged_chunks: Whole = 0
    """Taken although damaged."""


class KvDropped(OfAttempt, frozen=True, kw_only=True, tag="kv_dropped"):
    """KV will not be complete at its sink."""

    received_bytes: Whole
    checksum_errors: Whole = 0
    cause: str


class Held(Line, frozen=True, kw_only=True, tag="held"):
    """What a pool of an instance holds after a change."""

    pool: Literal["send", "receive"]
    size_bytes: Whole
    transfers: Whole


class Connection(Line, frozen=True, kw_only=True, tag="connection"):
    """A connection for KV was opened or closed."""

    peer: str
    opened: bool
    sockets: Whole
    """Open after this, to all peers."""
    cause: str | None = None


class Decode(OfAttempt, frozen=True, kw_only=True, tag="decode"):
    """A request in the decode batch; `t_ns` is when it joined."""

    t_first_ns: Whole | None
    t_last_ns: Whole | None
    tokens: Whole
    token_ids: list[Whole] | None = None
    """Where real kernels computed them, with a digest of the logits of all steps, bit for bit."""
    logits_digest: str | None = None


class Reference(Line, frozen=True, kw_only=True, tag="reference"):
    """What one process without a network answers to a request; `t_ns` is when it had."""

    id: Whole
    token_ids: list[Whole]
    logits_digest: str
