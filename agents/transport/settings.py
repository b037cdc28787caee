"""How an agent sends KV, of all that it was told."""

from __future__ import annotations

from typing import Literal

import msgspec

from agents import config


class SenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How KV is sent; `name` is this sender's, by which receivers know its connections."""

    name: str
    connections: int
    chunk_bytes: int
    payload: config.Payload
    priority: Literal["fifo", "least_slack"] = "fifo"
    transfer_ns: int = config.Timeouts().transfer_ns
    lease_ns: int = config.Timeouts().lease_ns
    decode_wait_ns: int = config.Timeouts().decode_wait_ns
    tick_ns: int = 250_000_000
    """How often `tick` is called. One that comes much later than that finds fault with nobody else."""
    probe_ns: int = config.Failures().probe_ns
    probe_max_ns: int = config.Failures().probe_max_ns
    flaws: tuple[config.Flaw, ...] = ()

    @classmethod
    def of(cls, settings: config.Config) -> SenderSettings:
        """What an agent was told."""
        return cls(
            name=settings.name,
            connections=settings.transport.connections,
            chunk_bytes=settings.transport.chunk_bytes,
            payload=settings.transport.payload,
            priority=settings.transport.priority,
            transfer_ns=settings.timeouts.transfer_ns,
            lease_ns=settings.timeouts.lease_ns,
            decode_wait_ns=settings.timeouts.decode_wait_ns,
            tick_ns=settings.scheduling.interval_ns,
            probe_ns=settings.failures.probe_ns,
            probe_max_ns=settings.failures.probe_max_ns,
            flaws=settings.flaws,
        )
