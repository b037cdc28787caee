"""Instances, with real sockets, that are told to forget, or are slow, full, corrupt or short of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.config import job
from agents.profiles import PROFILES
from tests.unit.instance_nodes import (
    OUTPUT_TOKENS,
    TOKENS,
    Node,
    Nodes,
    Scenario,
    kv_bytes,
    play_on,
    serve,
    until,
)

LONG_TOKENS = 30_000
"""Seconds of prefill."""

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario against fresh instances."""

    def run(scenario: Scenario, **changes: Any) -> None:
        play_on(tmp_path, scenario, **changes)

    return run


def cancel(number: int, *both: Node) -> None:
    for node in both:
        node.tell("cancel", id=number)


async def idle(prefill: Node, decode: Node) -> None:
    """Wait until neither has anything to do; then nothing is held."""
    await prefill.instance.prefill.idle()
    await decode.instance.decode.idle()
    assert (prefill.held_bytes(), decode.held_bytes()) == (0, 0)


async def begin(prefill: Node, decode: Node, stage: str) -> int:
    """Bring a request so far; its number."""
    if stage in ("in the queue", "while it computes"):
        serve(prefill, decode, 1, tokens=LONG_TOKENS)
        await until(lambda: prefill.journal("transfer_begin") != [])
        if stage == "while it computes":
            return 1
        serve(prefill, decode, 2)
        await asyncio.sleep(0.05)
        return 2
    if stage == "while it waits for room":
        decode.instance.order("fill", "on")
    serve(prefill, decode, 1)
    if stage == "while it waits for room":
        await prefill.hear("prefilled")
    else:
        await decode.hear("tokens")
    return 1


@pytest.mark.parametrize(
    "stage", ["in the queue", "while it computes", "while it waits for room", "while it decodes"]
)
def test_what_is_cancelled_leaves_nothing(play: Play, stage: str) -> None:
    """Wherever it is: no memory is held for it at either end, no more is said of it, others are served."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        number = await begin(prefill, decode, stage)
        cancel(number, prefill, decode)
        cancel(number, prefill, decode)
        if number == 2:
            cancel(1, prefill, decode)
        await idle(prefill, decode)
        decode.instance.order("fill", "off")
        before = len(decode.said)
        serve(prefill, decode, 9)
        await decode.hear("tokens", 3)
        await idle(prefill, decode)
        told = {item[0] for message in decode.said[before:] for item in message["items"]}
        assert told == {9}
        assert not [one for one in prefill.said if one["op"] in ("failed", "sent") and one["id"] == 2]
        assert "failed" not in [one["op"] for one in [*prefill.said, *decode.said]]
        causes = {line["id"]: line["cause"] for line in prefill.journal("transfer")}
        if stage in ("while it computes", "while it waits for room"):
            assert causes[1] == "cancelled"
            assert [line["cause"] for line in decode.journal("kv_dropped") if line["id"] == 1] == [
                "cancelled"
            ]
        if stage == "in the queue":
            assert 2 not in causes

    play(scenario)


def test_a_new_router_finds_nothing_of_the_one_before(play: Play) -> None:
    """Queued, computed, waiting and decoding: all is forgotten when another program says hello."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        serve(prefill, decode, 1)
        await decode.hear("tokens")
        for request in (2, 3):
            serve(prefill, decode, request, tokens=LONG_TOKENS)
        await until(lambda: len(prefill.journal("transfer_begin")) == 2)
        for node in (prefill, decode):
            await node.meet_another_router()
        await idle(prefill, decode)
        serve(prefill, decode, 4)
        await decode.hear("tokens", 3)
        assert {item[0] for one in decode.said for item in one["items"]} == {4}
        await prefill.hear("sent")
        assert {one["id"] for one in prefill.said if "id" in one} == {4}
        await idle(prefill, decode)

    play(scenario)


def test_damaged_chunks_are_sent_again(play: Play) -> None:
    """The next so many chunks: refused, counted, and whole the second time."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        prefill.instance.order("corrupt", "2")
        serve(prefill, decode, job(1, 2))
        await decode.hear("tokens", 3)
        await prefill.hear("sent")
        (kv,) = decode.journal("kv")
        assert (kv["id"], kv["attempt"], kv["checksum_errors"], kv["damaged_chunks"]) == (1, 2, 2, 0)
        await idle(prefill, decode)
        (transfer,) = prefill.journal("transfer")
        assert (transfer["state"], transfer["resent_bytes"] > 0) == ("completed", True)
        assert (
            transfer["acked_bytes"]
            == transfer["produced_bytes"]
            == transfer["size_bytes"]
            == kv["size_bytes"]
        )

    play(scenario)


def test_a_full_decode_instance_takes_nothing_until_it_has_room(play: Play) -> None:
    """Prefill computes, and holds the KV meanwhile."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        decode.instance.order("fill", "on")
        serve(prefill, decode, 1)
        await prefill.hear("prefilled")
        await asyncio.sleep(0.1)
        assert decode.journal("kv") == decode.said == []
        assert (prefill.held_bytes(), decode.held_bytes()) == (kv_bytes(), 0)
        decode.instance.order("fill", "off")
        await decode.hear("tokens", 3)
        await prefill.hear("sent")
        await idle(prefill, decode)

    play(scenario)


def test_a_small_send_pool_lets_the_second_wait_for_the_first(play: Play) -> None:
    """Its prefill starts when the first one's KV has arrived, and the order of asking is kept."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        decode.instance.order("fill", "on")
        for request in (1, 2):
            serve(prefill, decode, request)
        await prefill.hear("prefilled")
        await asyncio.sleep(0.1)
        assert [line["id"] for line in prefill.journal("transfer_begin")] == [1]
        decode.instance.order("fill", "off")
        await prefill.hear("sent", 2)
        await decode.hear("tokens", 6)
        (first, _), (_, second) = prefill.journal("transfer"), prefill.journal("prefill")
        assert (first["id"], second["id"]) == (1, 2)
        assert second["t_start_ns"] >= first["t_end_ns"] - 1_000_000
        assert max(line["transfers"] for line in prefill.journal("held")) == 1
        await idle(prefill, decode)

    play(scenario, transport={"send_pool_bytes": kv_bytes() * 3 // 2})


def test_a_cancelled_request_does_not_wait_for_room_any_more(play: Play) -> None:
    """Behind a full send pool: the one behind it comes next."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        decode.instance.order("fill", "on")
        for request in (1, 2, 3):
            serve(prefill, decode, request)
        await prefill.hear("prefilled")
        await asyncio.sleep(0.05)
        cancel(2, prefill, decode)
        await asyncio.sleep(0.05)
        decode.instance.order("fill", "off")
        assert [one["id"] for one in await prefill.hear("sent", 2)] == [1, 3]
        await decode.hear("tokens", 6)
        await idle(prefill, decode)

    play(scenario, transport={"send_pool_bytes": kv_bytes()})


def test_destination_first_sets_room_aside(play: Play) -> None:
    """Decode says when it has room, holds it before a byte comes, and the next one waits for it."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        for request in (1, 2):
            decode.tell(
                "expect",
                id=request,
                output_tokens=OUTPUT_TOKENS,
                context_tokens=TOKENS,
                kv_bytes=kv_bytes(),
                unpack_bytes=0,
            )
        await decode.hear("reserved")
        await asyncio.sleep(0.05)
        assert [one["id"] for one in decode.said] == [1]
        assert decode.held_bytes() == kv_bytes()
        cancel(1, decode)
        assert [one["id"] for one in await decode.hear("reserved", 2)] == [1, 2]
        cancel(2, decode)
        await until(lambda: decode.held_bytes() == 0)
        await idle(prefill, decode)

    play(scenario, transport={"handover": "destination_first", "receive_pool_bytes": kv_bytes() * 3 // 2})


def test_a_slow_prefill_takes_so_many_times_as_long(play: Play) -> None:
    """From the next group of layers on; as before when it is told so."""
    tokens = 2000
    whole_s = PROFILES["h200"].prefill_s(tokens)

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        prefill.instance.order("slow", "4")
        serve(prefill, decode, 1, tokens=tokens)
        await prefill.hear("prefilled")
        prefill.instance.order("slow", "1")
        serve(prefill, decode, 2, tokens=tokens)
        await prefill.hear("prefilled", 2)
        took_s = [(line["t_end_ns"] - line["t_start_ns"]) / 1e9 for line in prefill.journal("prefill")]
        assert took_s[0] >= 4 * whole_s * 0.999
        assert whole_s * 0.999 <= took_s[1] < 3 * whole_s
        await decode.hear("tokens", 6)

    play(scenario)


FIELDS = {
    "prefill": {"id", "attempt", "t_start_ns", "t_end_ns", "tokens", "kv_bytes"},
    "transfer_begin": {"id", "attempt", "peer", "use", "wan", "size_bytes", "chunks"},
    "produced": {"id", "attempt", "use", "layer", "size_bytes"},
    "transfer": {
        "id", "attempt", "peer", "use", "wan", "size_bytes", "chunks", "t_end_ns", "state", "cause",
        "produced_bytes", "acked_bytes", "resent_bytes",
    },
    "kv": {"id", "attempt", "size_bytes", "chunks", "checksum_errors", "damaged_chunks"},
    "kv_dropped": {"id", "attempt", "received_bytes", "checksum_errors", "cause"},
    "held": {"pool", "size_bytes", "transfers"},
    "connection": {"peer", "opened", "sockets", "cause"},
    "decode": {"id", "attempt", "t_first_ns", "t_last_ns", "tokens"},
}  # fmt: skip


def test_the_journal_has_what_the_record_needs(play: Play) -> None:
    """Every line of an attempt says whose it is; pools come back to zero; what was produced adds up."""
    number = job(7, 1)

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        serve(prefill, decode, number)
        await decode.hear("tokens", 3)
        await prefill.hear("sent")
        decode.instance.order("fill", "on")
        serve(prefill, decode, job(8, 0))
        await prefill.hear("prefilled", 2)
        cancel(8, prefill, decode)
        await idle(prefill, decode)
        lines = {kind: [*prefill.journal(kind), *decode.journal(kind)] for kind in FIELDS}
        for kind, fields in FIELDS.items():
            assert lines[kind], kind
            assert all(set(line) - {"kind", "t_ns"} == fields for line in lines[kind]), kind
        attempts = {
            (line["id"], line["attempt"]) for kind in FIELDS for line in lines[kind] if "attempt" in line
        }
        assert attempts == {(7, 1), (8, 0)}
        assert sum(line["size_bytes"] for line in lines["produced"] if line["id"] == 7) == kv_bytes(TOKENS)
        for node, pool in ((prefill, "send"), (decode, "receive")):
            held = node.journal("held")
            assert {line["pool"] for line in held} == {pool}
            assert (held[-1]["size_bytes"], held[-1]["transfers"]) == (0, 0)
        opened = [line["sockets"] for line in prefill.journal("connection")]
        assert opened == list(range(1, len(opened) + 1))

    play(scenario)
