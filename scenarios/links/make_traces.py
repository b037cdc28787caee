"""Write the traces of this directory: `python scenarios/links/make_traces.py`. Always the same files.

fluctuating.csv   a rate with a memory of 100 ms, 100 changes a second for 6 s, around 20 Gbps
fading.mahimahi   a link of 12 Mbps on average that fades twice in 6 s, in mahimahi's form
delays.csv        one-way delays with a long tail, for `jitter: {file: delays.csv}`
"""

from __future__ import annotations

import math
import random
from pathlib import Path

HERE = Path(__file__).parent
STEP_MS, LENGTH_MS = 10, 6000
MEAN_MBIT, SPREAD_MBIT, LOWEST_MBIT, HIGHEST_MBIT = 20_000, 5_000, 8_000, 32_000
MEMORY = math.exp(-STEP_MS / 100)
OPPORTUNITIES_PER_MS = 1.0


def fluctuating() -> str:
    """An autoregressive rate, cut at both ends."""
    dice = random.Random(1)
    level, rows = 0.0, ["# Written by make_traces.py: a rate that wanders around 20 Gbps.", "t,rate"]
    for t_ms in range(0, LENGTH_MS, STEP_MS):
        level = MEMORY * level + math.sqrt(1 - MEMORY**2) * dice.gauss(0, 1)
        rate = min(max(round(MEAN_MBIT + SPREAD_MBIT * level), LOWEST_MBIT), HIGHEST_MBIT)
        rows.append(f"{t_ms}ms,{rate}mbit")
    return "\n".join(rows) + "\n"


def fading() -> str:
    """Chances to send 1500 bytes, in ms; their density is a slow double wave."""
    dice = random.Random(2)
    rows = ["# Written by make_traces.py: a link that fades twice."]
    for t_ms in range(1, LENGTH_MS + 1):
        density = OPPORTUNITIES_PER_MS * (1 - 0.7 * math.cos(4 * math.pi * t_ms / LENGTH_MS))
        rows += [str(t_ms)] * (math.floor(density) + (dice.random() < density % 1))
    return "\n".join(rows) + "\n"


def delays() -> str:
    """A thousand one-way delays: a floor, and now and then a queue somewhere on the way."""
    dice = random.Random(3)
    values = (5.0 + dice.lognormvariate(-2.5, 0.8) for _ in range(1000))
    return "# Written by make_traces.py: delays with a long tail.\ndelay\n" + "".join(
        f"{ms:.3f}ms\n" for ms in values
    )


if __name__ == "__main__":
    for name, text in (
        ("fluctuating.csv", fluctuating()),
        ("fading.mahimahi", fading()),
        ("delays.csv", delays()),
    ):
        (HERE / name).write_text(text, encoding="utf-8")
