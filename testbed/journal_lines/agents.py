"""The lines that the agents write: client, router and instances."""

from __future__ import annotations

from typing import Literal

import msgspec

from testbed.journal_lines.line import Line


class Request(Line, frozen=True, kw_only=True, tag="request"):
    """How a request ended, as its client saw it; `t_ns` is when it was sent."""

    id: int
    state: str
    t_first_ns: int | None = None
    t_last_ns: int | None = None
    t_end_ns: int | None = None
    tokens: int | None = None
    cause: str | None = None
    token_ids: list[int] | None = None
    """Of the answer, where real kernels computed it."""


class Decision(Line, frozen=True, kw_only=True, tag="decision"):
    """Where the policy sent a request; null agents: it was refused."""

    step: int | None = None
    """Number of the question among all that the policy was asked."""
    id: int
    route: str | None
    prefill: str | None
    decode: str | None
    uncached_tokens: int | None
    cached_prfaas_tokens: int = 0
    cached_pd_tokens: int = 0
    threshold_tokens: int | None
    cache: str | None = None
    compress: bool | None = None
    order_s: float | None = None
    reason: str
    seen: msgspec.Raw = msgspec.Raw(b"null")
    """What the policy was shown."""


class Retry(Line, frozen=True, kw_only=True, tag="retry"):
    """An attempt at a request failed, and what follows from it."""

    id: int
    attempt: int
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


class Control(Line, frozen=True, kw_only=True, tag="control"):
    """One control interval of the policy."""

    step: int | None = None
    threshold_tokens: int
    previous_tokens: int
    reason: str
    capacity_bps: float | None = None
    goodput_bps: float | None = None
    backlog_bytes: int | None = None
    retrans_ratio: float | None = None
    queue_prfaas: int | None = None
    queue_pd: int | None = None
    queue_decode: int | None = None
    regime: str | None = None
    n_prefill: int | None = None
    n_decode: int | None = None
    prefill_instances: int | None = None
    cache: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    seen: msgspec.Raw = msgspec.Raw(b"null")


class PolicyFailed(Line, frozen=True, kw_only=True, tag="policy_failed"):
    """The policy broke, and was not asked any more; `id` is the request that it was asked about, if any."""

    step: int
    cause: str
    id: int | None = None
    seen: msgspec.Raw = msgspec.Raw(b"null")


class Fetch(Line, frozen=True, kw_only=True, tag="fetch"):
    """A cached prefix that one cluster sent the other has arrived there, or will not."""

    id: int
    request: int | None
    cluster: str
    tokens: int
    arrived: bool


class Role(Line, frozen=True, kw_only=True, tag="role"):
    """An instance was told to take another role."""

    instance: str
    role: str


class Conversion(Line, frozen=True, kw_only=True, tag="conversion"):
    """An instance has another role; `t_ns` is when it was told to."""

    role: str
    t_drained_ns: int
    t_end_ns: int


class OfAttempt(Line, frozen=True, kw_only=True):
    """A line about one attempt at a request, or about a cached prefix on its way."""

    id: int
    """Of the request; of a cached prefix a number of its own."""
    attempt: int = 0


class Prefill(OfAttempt, frozen=True, kw_only=True, tag="prefill"):
    """A prefill; `t_ns` is when it was queued."""

    t_start_ns: int | None
    t_end_ns: int | None
    tokens: int
    kv_bytes: int


class TransferBegin(OfAttempt, frozen=True, kw_only=True, tag="transfer_begin"):
    """KV is about to be produced; the transfer line follows when it has arrived or failed."""

    peer: str
    use: str = "kv"
    wan: bool
    size_bytes: int
    chunks: int


class Produced(OfAttempt, frozen=True, kw_only=True, tag="produced"):
    """A group of layers was handed to the transport."""

    use: str = "kv"
    layer: int
    size_bytes: int


class Transfer(OfAttempt, frozen=True, kw_only=True, tag="transfer"):
    """The source's last word on KV; `t_ns` is the first byte handed to TCP."""

    peer: str
    use: str = "kv"
    wan: bool
    size_bytes: int
    chunks: int
    t_end_ns: int | None
    state: str
    cause: str | None = None
    produced_bytes: int | None = None
    acked_bytes: int | None = None
    resent_bytes: int | None = None


class Kv(OfAttempt, frozen=True, kw_only=True, tag="kv"):
    """KV is complete at its sink."""

    size_bytes: int
    chunks: int
    checksum_errors: int
    """Damaged copies of chunks, refused and sent again."""
    damaged_chunks: int = 0
    """Taken although damaged."""


class KvDropped(OfAttempt, frozen=True, kw_only=True, tag="kv_dropped"):
    """KV will not be complete at its sink."""

    received_bytes: int
    checksum_errors: int = 0
    cause: str


class Held(Line, frozen=True, kw_only=True, tag="held"):
    """What a pool of an instance holds after a change."""

    pool: Literal["send", "receive"]
    size_bytes: int
    transfers: int


class Connection(Line, frozen=True, kw_only=True, tag="connection"):
    """A connection for KV was opened or closed."""

    peer: str
    opened: bool
    sockets: int
    """Open after this, to all peers."""
    cause: str | None = None


class Decode(OfAttempt, frozen=True, kw_only=True, tag="decode"):
    """A request in the decode batch; `t_ns` is when it joined."""

    t_first_ns: int | None
    t_last_ns: int | None
    tokens: int
    token_ids: list[int] | None = None
    """Where real kernels computed them, with a digest of the logits of all steps, bit for bit."""
    logits_digest: str | None = None


class Reference(Line, frozen=True, kw_only=True, tag="reference"):
    """What one process without a network answers to a request; `t_ns` is when it had."""

    id: int
    token_ids: list[int]
    logits_digest: str
