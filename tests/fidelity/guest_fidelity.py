"""Runs in a guest: measures the link and writes results.json.

Arguments: a JSON object {"wan": arguments of Wan, "checks": {check: its arguments}}, and the run
directory. Says nothing of right and wrong; rows.py compares with arithmetic.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import guest_delays
import guest_field_reports
import guest_goodput
import guest_packets
import guest_tcp
from guest_bench import Results
from guest_wan import WINDOW_BYTES, Wan

from testbed import namespaces, sysctl

CONNECTIONS = 64
CHECKS: dict[str, Callable[..., Awaitable[Results]]] = {
    "goodput": guest_goodput.goodput,
    "one_way": guest_delays.one_way,
    "full_buffer": guest_delays.full_buffer,
    "nested": guest_delays.nested,
    "random_loss": guest_packets.random_loss,
    "bursts": guest_packets.bursts,
    "shares": guest_packets.shares,
    "jitter": guest_packets.jitter,
    "rare_loss": guest_packets.rare_loss,
    "trace": guest_tcp.trace,
    "under_loss": guest_tcp.under_loss,
    "retransmit_share": guest_field_reports.retransmit_share,
    "long_delay": guest_field_reports.long_delay,
    "window_over_delay": guest_field_reports.window_over_delay,
    "rates_read_back": guest_field_reports.rates_read_back,
    "one_change": guest_field_reports.one_change,
    "ten_senders": guest_field_reports.ten_senders,
}


async def main(asked: dict[str, Any], run: Path) -> None:
    """All checks, one after the other, on one network."""
    wan = Wan(**asked["wan"])
    results: Results = {"kernel": os.uname().release}
    for name, arguments in asked["checks"].items():
        begun = time.monotonic()
        results[name] = await CHECKS[name](wan, **arguments)
        print(f"{name}: {time.monotonic() - begun:.1f} virtual s", flush=True)
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, CONNECTIONS):
        asyncio.run(main(json.loads(sys.argv[1]), Path(sys.argv[2])))
