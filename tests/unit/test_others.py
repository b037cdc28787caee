"""Other people's traffic without a kernel of its own: what is drawn, noted and made of it."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

import msgspec
import pytest

from testbed import journal_lines as lines
from testbed import record_rows, record_transfers
from testbed.journal import Journal
from testbed.plan import LinkState, Tenant, TokenBucket
from testbed.traffic import others, tcp, tenant
from tests.unit.synthetic_plan import make_plan

TENANT = Tenant(
    t_ns=0, until_ns=10**9, source="tenant-a", sink="tenant-b", flows=2, size_bytes=10**6, size_cv=2.0,
    pause_ns=10**8, congestion_control="bbr", seed=4,
)  # fmt: skip
COUNT, SIGMAS = 20_000, 5


def drawn(plan: Tenant, flow: int, count: int) -> list[tuple[int, float]]:
    return list(islice(tenant.draws(plan, flow), count))


def test_sizes_and_pauses_follow_their_distributions() -> None:
    """Logarithms of sizes have the lognormal's mean and deviation, pauses their mean, within 5 sigma."""
    pairs = drawn(TENANT, 0, COUNT)
    logs = [math.log(size) for size, _ in pairs]
    variance = math.log(1 + 2.0**2)
    assert fmean(logs) == pytest.approx(
        math.log(1e6) - variance / 2, abs=SIGMAS * math.sqrt(variance / COUNT)
    )
    assert pvariance(logs) == pytest.approx(variance, rel=SIGMAS * math.sqrt(2 / COUNT))
    assert fmean(pause for _, pause in pairs) == pytest.approx(0.1, rel=SIGMAS / math.sqrt(COUNT))


def test_draws_depend_on_seed_and_flow_alone() -> None:
    """The same again for the same two, others for another flow or seed."""
    assert drawn(TENANT, 0, 10) == drawn(TENANT, 0, 10)
    assert drawn(TENANT, 0, 10) != drawn(TENANT, 1, 10)
    another = msgspec.structs.replace(TENANT, seed=5)
    assert drawn(TENANT, 1, 10) != drawn(another, 0, 10)


def test_a_tenant_without_spread_and_pause_is_steady() -> None:
    """Coefficient of variation 0: every size is the mean; no pause: none."""
    plan = msgspec.structs.replace(TENANT, size_cv=0.0, pause_ns=0)
    assert drawn(plan, 0, 5) == [(10**6, 0.0)] * 5


def test_a_transfer_that_fails_is_noted_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the kernel's words, never twice at one moment, and until the tenant's time is over."""

    async def refuse(*_: Any, **__: Any) -> tcp.Transfer:
        raise ConnectionRefusedError(111, "nobody there")

    monkeypatch.setattr(tcp, "start", refuse)
    monkeypatch.setattr(tenant, "RETRY_S", 0.02)
    plan = msgspec.structs.replace(TENANT, pause_ns=0)
    journal = Journal(tmp_path / "others.jsonl")
    until_ns = time.monotonic_ns() + 100_000_000
    asyncio.run(tenant.run(plan, 0, until_ns, address="10.0.0.1", journal=journal))
    journal.close()
    noted = [json.loads(line) for line in (tmp_path / "others.jsonl").read_text().splitlines()]
    assert 1 < len(noted) <= 5
    assert {(one["state"], one["received_bytes"], one["t_end_ns"]) for one in noted} == {("failed", 0, None)}
    assert "nobody there" in noted[0]["cause"]
    starts = [one["t_ns"] for one in noted]
    assert min(b - a for a, b in pairwise(starts)) >= 20_000_000


def test_a_broken_connection_fails_its_transfer_and_keeps_its_count() -> None:
    """What was in before is known after every socket is closed."""

    async def broken() -> tuple[int, str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            source = socket.create_connection(listener.getsockname())
            sink, _ = listener.accept()
        source.setblocking(False)
        sink.setblocking(False)
        transfer = tcp.Transfer(5 << 30)
        transfer.flows = [tcp._Flow(source, sink, transfer)]
        while transfer.received_bytes() < 1 << 20:  # noqa: ASYNC110 - TCP tells nobody
            await asyncio.sleep(0)
        source.shutdown(socket.SHUT_WR)
        try:
            await transfer.finished()
        except OSError as error:
            return transfer.received_bytes(), type(error).__name__
        return 0, ""

    received_bytes, error = asyncio.run(broken())
    assert error in ("ConnectionResetError", "BrokenPipeError")
    assert 1 << 20 <= received_bytes < 5 << 30


def test_the_longest_way_has_every_delay_in_it() -> None:
    """Delay, a late draw of the jitter, a full buffer at the slower of rate and token bucket."""
    state = LinkState(
        rate_bps=10**9, buffer_bytes=125_000, delay_ns=5_000_000, jitter_ns=100_000,
        token_bucket=TokenBucket(sustained_bps=10**8, budget_bytes=1),
    )  # fmt: skip
    plan = msgspec.structs.replace(make_plan(), link={"a_to_b": state, "b_to_a": state}, changes=())
    assert others.patience_ns(plan) == 5_000_000 + 8 * 100_000 + 10_000_000


def rows(*noted: lines.Line) -> list[dict[str, Any]]:
    content = lines.JournalContent(
        (lines.Noted("bench", lines.Start(t_ns=0)), *(lines.Noted("others", one) for one in noted)), ()
    )
    return record_transfers.transfers(record_rows.SortedJournal(content))


def test_a_tenants_transfers_stand_in_the_record() -> None:
    """Completed with its goodput, broken off with what was in."""
    whole = lines.Tenant(
        t_ns=10**9, source="a", sink="b", size_bytes=1000, received_bytes=1000, t_end_ns=2 * 10**9,
        state="completed",
    )  # fmt: skip
    part = lines.Tenant(
        t_ns=10**9, source="a", sink="b", size_bytes=1000, received_bytes=400, t_end_ns=None,
        state="partial", cause="broken off at its tenant's end",
    )  # fmt: skip
    first, second = rows(whole, part)
    assert (first["use"], first["state"], first["goodput_bps"], first["cause"]) == (
        "tenant", "completed", 8000.0, None,
    )  # fmt: skip
    assert (second["state"], second["goodput_bps"], second["end_s"]) == ("partial", None, None)
    assert second["cause"] == "broken off at its tenant's end; 400 bytes were in"


def test_a_microburst_tells_its_loss_and_the_rate_of_its_arrival() -> None:
    """37 of 900 lost; what came after the first arrival, over the time from first to last."""
    burst = lines.Microburst(
        t_ns=10**9, source="a", sink="b", packet_bytes=1500, sent_packets=900, received_packets=863,
        t_first_ns=1_005_000_000, t_end_ns=1_006_000_000, waited=True,
    )  # fmt: skip
    nothing = msgspec.structs.replace(burst, received_packets=0, t_first_ns=None, t_end_ns=None, waited=False)
    first, second = rows(burst, nothing)
    assert (first["use"], first["size_bytes"], first["start_s"], first["end_s"]) == (
        "microburst", 1_350_000, 1.0, 1.006,
    )  # fmt: skip
    assert first["goodput_bps"] == 862 * 1500 * 8 / 0.001
    assert (first["state"], first["cause"]) == ("partial", "37 of 900 packets lost")
    assert (second["state"], second["goodput_bps"]) == ("partial", None)
    assert second["cause"] == "900 of 900 packets had not arrived when the run ended"
