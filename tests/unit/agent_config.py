"""What an agent of a small system is told, for tests only."""

from __future__ import annotations

from pathlib import Path

from agents.config import Cache, Config, Peer, Scheduling, Transport

LONG_TOKENS, SHORT_TOKENS = 30_000, 1_000
THRESHOLD_TOKENS = 19_400


def peers(network: str = "127.0.0") -> tuple[Peer, ...]:
    """Two prefill instances here, one there, two decode instances, each at an address of its own."""
    rows = [
        ("prefill-a1", "prefill", "prfaas", "h200"),
        ("prefill-a2", "prefill", "prfaas", "h200"),
        ("prefill-b1", "prefill", "pd", "h20"),
        ("decode-b2", "decode", "pd", "h20"),
        ("decode-b3", "decode", "pd", "h20"),
        ("router", "router", "pd", ""),
        ("client", "client", "pd", ""),
    ]
    return tuple(
        Peer(name=name, role=role, cluster=cluster, address=f"{network}.{number}", profile=profile)  # type: ignore[arg-type]
        for number, (name, role, cluster, profile) in enumerate(rows, start=11)
    )


def make_config(name: str, journal: Path, network: str = "127.0.0") -> Config:
    """The configuration of the agent `name`."""
    return Config(
        name=name,
        journal=str(journal / f"{name}.jsonl"),
        model="internal_1t",
        scale=0.001,
        transport=Transport(
            payload="verified", connections=4, chunk_bytes=1 << 20, layer_group=4, congestion_control="cubic"
        ),
        scheduling=Scheduling(
            policy="static_threshold",
            threshold_tokens=THRESHOLD_TOKENS,
            interval_ns=250_000_000,
            params={},
            length_quantiles=(128, 20_000, 131_072),
            prior_arrival_per_s=1.0,
            output_tokens=8,
            conversion_ns=1_000_000_000,
        ),
        cache=Cache(),
        stream_interval_tokens=4,
        peers=peers(network),
    )
