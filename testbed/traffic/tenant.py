"""Another tenant's TCP: transfers of drawn sizes with pauses between them, several at once."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator

from testbed.journal import Journal
from testbed.plan import Tenant
from testbed.traffic import tcp

RETRY_S = 1.0
"""Pause after a transfer that failed: one that fails at once must not be tried for ever at one moment."""


def draws(tenant: Tenant, flow: int) -> Iterator[tuple[int, float]]:
    """Sizes (bytes) and the pauses (s) after them, without end; the same for the same seed and flow.

    A lognormal of mean m and coefficient of variation c has sigma^2 = ln(1 + c^2) and
    mu = ln m - sigma^2 / 2.
    """
    dice = random.Random(f"{tenant.seed} {flow}")
    variance = math.log1p(tenant.size_cv**2)
    mu = math.log(tenant.size_bytes) - variance / 2
    while True:
        size_bytes = max(1, round(dice.lognormvariate(mu, math.sqrt(variance))))
        yield size_bytes, dice.expovariate(1e9 / tenant.pause_ns) if tenant.pause_ns else 0.0


async def run(tenant: Tenant, flow: int, until_ns: int, *, address: str, journal: Journal) -> None:
    """Send and pause from now until the moment `until_ns`; a line in the journal for each transfer.

    Each transfer is a connection of its own, to `address` of the tenant's sink. One that is under way at
    the end is broken off, one whose connection breaks is noted, and the next follows.
    """
    for size_bytes, pause_s in draws(tenant, flow):
        completed = await _transfer(tenant, size_bytes, until_ns, address=address, journal=journal)
        left_s = (until_ns - time.monotonic_ns()) / 1e9
        wait_s = pause_s if completed else max(pause_s, RETRY_S)
        if wait_s >= left_s:
            return
        await asyncio.sleep(wait_s)


async def _transfer(
    tenant: Tenant, size_bytes: int, until_ns: int, *, address: str, journal: Journal
) -> bool:
    """One transfer; whether it was completed."""
    start_ns = time.monotonic_ns()
    transfer, end_ns = None, None
    state = "partial"
    cause: str | None = "broken off at its tenant's end"
    try:
        async with asyncio.timeout((until_ns - start_ns) / 1e9):
            transfer = await tcp.start(
                tenant.source,
                (tenant.sink, address),
                flows=1,
                size_bytes=size_bytes,
                congestion_control=tenant.congestion_control,
            )
            end_ns = await transfer.finished()
        state, cause = "completed", None
    except TimeoutError as error:
        if error.errno is not None:  # the connection's own: TCP gave up
            state, cause = "failed", str(error)
    except OSError as error:
        state, cause = "failed", str(error) or type(error).__name__
    finally:
        received_bytes = 0
        if transfer is not None:
            received_bytes = transfer.received_bytes()
            transfer.stop()
        journal.note(
            "tenant",
            start_ns,
            source=tenant.source,
            sink=tenant.sink,
            size_bytes=size_bytes,
            received_bytes=received_bytes,
            t_end_ns=end_ns,
            state=state,
            cause=cause,
        )
    return state == "completed"
