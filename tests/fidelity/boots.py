"""What is measured, and in which guests: all of it for the table, the corners of it for the tests."""

from __future__ import annotations

import random
from typing import Any

from testbed.shaping import distributions

GBPS, MS = 10**9, 10**6
RATES_BPS = (GBPS, 10 * GBPS, 40 * GBPS, 100 * GBPS)
RTTS_MS = (2, 12, 70, 170)
_dice = random.Random(5)
FILE_DELAYS_NS = [4 * MS + round(_dice.lognormvariate(0, 0.5) * MS / 2) for _ in range(500)]
"""The file of delays: from 4.1 ms on, with a long tail."""
GILBERT_ELLIOTT = {"model": "gilbert_elliott", "p": 0.02, "r": 0.2}
FOUR_STATE = {"model": "four_state", "p13": 0.01, "p31": 0.3, "p32": 0.1, "p23": 0.5, "p14": 0.005}
Asked = dict[str, Any]


def _jitters() -> list[Asked]:
    _, mean_ns, scale_ns = distributions.from_samples(FILE_DELAYS_NS)
    named = [
        {"distribution": name, "delay_ns": 5 * MS, "jitter_ns": MS // 2} for name in distributions.CURVES
    ]
    return [*named, {"distribution": "file", "delay_ns": mean_ns, "jitter_ns": scale_ns}]


def _flow(cc: str, ratio: float, rtt_ms: int, seconds: float, flows: int = 1) -> Asked:
    return {
        "cc": cc,
        "flows": flows,
        "ratio": ratio,
        "rtt_ms": rtt_ms,
        "rate_bps": 10 * GBPS,
        "seconds": seconds,
    }


def _offload(offload: str) -> Asked:
    return {
        "wan": {"mtu_bytes": 9000, "offload": offload},
        "checks": {
            "goodput": {"cells": [(10 * GBPS, 12)]},
            "under_loss": {"cells": [_flow("bbr", 1e-3, 4, 1, flows=4)]},
            "random_loss": {"cells": [(1e-3, 200_000)]},
        },
    }


OFFLOADS = {"offload on": _offload("on"), "offload off": _offload("off")}

TABLE: dict[str, Asked] = {
    "jumbo": {
        "wan": {"mtu_bytes": 9000},
        "checks": {
            "goodput": {"cells": [(rate, rtt) for rate in RATES_BPS for rtt in RTTS_MS]},
            "one_way": {"cells": [(rate, rtt) for rate in RATES_BPS for rtt in RTTS_MS], "count": 100},
            "full_buffer": {
                "cells": [(GBPS, 50), (10 * GBPS, 10), (40 * GBPS, 5), (100 * GBPS, 2)],
            },
            "nested": {},
            "trace": {"seconds": 10},
            "under_loss": {
                "cells": [
                    _flow("cubic", 1e-4, 20, 100),
                    _flow("cubic", 1e-3, 40, 60),
                    _flow("bbr", 1e-3, 20, 3),
                ],
            },
        },
    },
    "standard": {
        "wan": {"mtu_bytes": 1500, "delays_ns": FILE_DELAYS_NS},
        "checks": {
            "random_loss": {
                "cells": [(1e-2, 300_000), (1e-3, 1_000_000), (1e-4, 3_000_000), (1e-5, 10_000_000)],
            },
            "rare_loss": {"ratio": 1e-9},
            "bursts": {"models": [GILBERT_ELLIOTT, FOUR_STATE], "count": 100_000},
            "shares": {"kinds": {"reorder": 0.01, "duplicate": 0.01, "corrupt": 0.01}, "count": 50_000},
            "jitter": {"states": _jitters(), "count": 3000},
            "under_loss": {
                "cells": [
                    _flow("cubic", 1e-4, 20, 150),
                    _flow("cubic", 1e-4, 40, 200),
                    _flow("cubic", 1e-4, 200, 500),
                    _flow("cubic", 1e-3, 20, 60),
                    _flow("cubic", 1e-3, 40, 60),
                    _flow("cubic", 1e-2, 20, 60),
                    _flow("cubic", 1e-2, 40, 60),
                    _flow("bbr", 1e-3, 20, 2),
                ],
            },
        },
    },
    **OFFLOADS,
}

CORNERS: dict[str, Asked] = {
    "jumbo": {
        "wan": {"mtu_bytes": 9000},
        "checks": {
            "goodput": {"cells": [(rate, rtt) for rate in (GBPS, 100 * GBPS) for rtt in (2, 170)]},
            "one_way": {"cells": [(10**9, 2), (10**11, 170)], "count": 20},
            "full_buffer": {"cells": [(GBPS, 50), (100 * GBPS, 2)]},
            "nested": {},
            "trace": {"seconds": 3},
        },
    },
    "standard": {
        "wan": {"mtu_bytes": 1500, "delays_ns": FILE_DELAYS_NS},
        "checks": {
            "random_loss": {
                "cells": [(1e-2, 100_000), (1e-3, 300_000), (1e-4, 2_000_000), (1e-5, 5_000_000)]
            },
            "rare_loss": {"ratio": 1e-9},
            "bursts": {"models": [GILBERT_ELLIOTT, FOUR_STATE], "count": 20_000},
            "shares": {"kinds": {"reorder": 0.01, "duplicate": 0.01, "corrupt": 0.01}, "count": 10_000},
            "jitter": {"states": _jitters(), "count": 1000},
            "under_loss": {
                "cells": [
                    _flow("cubic", 1e-4, 40, 100),
                    _flow("cubic", 1e-3, 20, 30),
                    _flow("cubic", 1e-2, 40, 60),
                    _flow("bbr", 1e-3, 20, 1),
                ],
            },
        },
    },
    **OFFLOADS,
}
