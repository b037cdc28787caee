"""What each model sends over the link: KV of a prompt, per instance, and per cluster of 512 GPUs."""

from __future__ import annotations

from typing import Final

import msgspec

from agents.model import cluster_egress_bps
from agents.profiles import MODELS, PROFILES, h200_for

TOKENS: Final = 32_768
"""The mean length that the paper's figures are for."""
GPUS, GPUS_PER_INSTANCE = 512, 8
PRINTED_GBPS: Final = {"minimax_m2_5": 3800.0, "qwen3_235b": 2100.0, "ring_2_5_1t": 170.0}
"""Egress of such a cluster in the paper's text; the last one "about"."""


class Row(msgspec.Struct, frozen=True):
    """One model at 32K tokens; rates in Gbps, of one instance of 8 H200 and of 64 of them."""

    model: str
    kv_mib: float
    prefill_s: float
    instance_gbps: float
    cluster_gbps: float
    printed_gbps: float | None


def rows() -> list[Row]:
    """All models that the paper has, the one that sends most first."""
    found = []
    for name, model in MODELS.items():
        profile = PROFILES.get(h200_for(name))
        if profile is None:
            continue
        cluster_bps = cluster_egress_bps(model, profile, TOKENS, GPUS // GPUS_PER_INSTANCE)
        found.append(
            Row(
                name,
                model.kv_bytes(TOKENS) / 2**20,
                profile.prefill_s(TOKENS),
                cluster_bps / (GPUS // GPUS_PER_INSTANCE) / 1e9,
                cluster_bps / 1e9,
                PRINTED_GBPS.get(name),
            )
        )
    return sorted(found, key=lambda row: -row.cluster_gbps)
