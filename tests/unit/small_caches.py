"""Models and caches so small that a test can count their blocks."""

from __future__ import annotations

from agents.cache.kv_manager import Cluster, KvManager
from agents.cache.pool import BLOCK_TOKENS
from agents.kv_layouts import LayerKv, ModelProfile

FULL = ModelProfile("full", "made up", (LayerKv(bytes_per_token=1, fixed_bytes=0),))
HYBRID = ModelProfile("hybrid", "made up", (*FULL.layers, LayerKv(bytes_per_token=0, fixed_bytes=1000)))
STATE_BLOCKS = 2  # 1,000 bytes in blocks of 512
PLENTY = 10**9

Chain = tuple[int, ...]


def manager(model: ModelProfile, prfaas: int = PLENTY, pd: int = PLENTY, **limits: int) -> KvManager:
    """Capacities are in blocks."""
    capacity_bytes: dict[Cluster, int] = {"prfaas": prfaas * BLOCK_TOKENS, "pd": pd * BLOCK_TOKENS}
    return KvManager(model, capacity_bytes, **limits)
