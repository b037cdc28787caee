"""Instances in both roles, with real sockets: KV that is computed or cached, and conversion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.config import FIRST_CACHE_TRANSFER, KV_PORT, Timeouts
from agents.profiles import COMPRESSIONS, MODELS, PROFILES
from tests.unit.fake_agents import NETWORK
from tests.unit.instance_nodes import (
    CONGESTION_CONTROL,
    OUTPUT_TOKENS,
    TOKENS,
    Nodes,
    Scenario,
    kv_bytes,
    play_on,
    serve,
)

MS = 1_000_000


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario against fresh instances."""

    def run(scenario: Scenario, **changes: Any) -> None:
        play_on(tmp_path, scenario, **changes)

    return run


def test_a_request_from_prefill_to_the_last_token(play: Callable[..., None]) -> None:
    """Computed in one instance, decoded in the other; the KV has the size of what is to be sent."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        serve(prefill, decode, 7, kv_tokens=10_000)
        told = await decode.hear("tokens", 3)
        assert [message["items"] for message in told] == [[[7, 1, False]], [[7, 4, False]], [[7, 8, True]]]
        await prefill.hear("sent")
        await prefill.hear("signals")
        assert [one["op"] for one in prefill.said if one["op"] != "signals"] == ["prefilled", "sent"]
        size_bytes = kv_bytes(10_000)
        (computed,) = prefill.journal("prefill")
        assert (computed["tokens"], computed["kv_bytes"]) == (TOKENS, size_bytes)
        took_ns = computed["t_end_ns"] - computed["t_start_ns"]
        assert took_ns >= PROFILES["h200"].prefill_s(TOKENS) * 1e9
        (transfer,) = prefill.journal("transfer")
        assert (transfer["use"], transfer["wan"], transfer["peer"], transfer["state"]) == (
            "kv",
            True,
            "decode-b2",
            "completed",
        )
        assert [line["size_bytes"] for line in decode.journal("kv")] == [size_bytes]
        assert [line["tokens"] for line in decode.journal("decode")] == [OUTPUT_TOKENS]

    play(scenario)


def test_the_queue_is_in_the_order_that_the_router_wants(play: Callable[..., None]) -> None:
    """The one that runs is not stopped; of those that wait the lowest order is next, then who came first."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        serve(prefill, decode, 1, order_s=9.0)
        await asyncio.sleep(0.05)
        for request, order_s in ((2, 5.0), (3, 1.0), (4, 1.0)):
            serve(prefill, decode, request, order_s=order_s)
        assert [one["id"] for one in await prefill.hear("prefilled", 4)] == [1, 3, 4, 2]
        await prefill.hear("sent", 4)
        await decode.hear("tokens", 9)

    play(scenario)


def test_compressed_kv_is_smaller_and_comes_later(play: Callable[..., None]) -> None:
    """Compressing takes time of the GPUs that compute, and decode waits until it is unpacked again."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = nodes["prefill-a1"], nodes["decode-b2"]
        serve(prefill, decode, 1)
        await prefill.hear("sent")
        serve(prefill, decode, 2, compress=True)
        await prefill.hear("sent", 2)
        await decode.hear("tokens", 6)
        plain, packed = prefill.journal("prefill")
        how = COMPRESSIONS["cachegen"]
        assert packed["kv_bytes"] == pytest.approx(plain["kv_bytes"] / how.ratio, rel=1e-3)
        whole_bytes = MODELS["internal_1t"].kv_bytes(TOKENS)
        longer_s = whole_bytes / how.compress_bytes_per_s
        computed_s = (packed["t_end_ns"] - packed["t_start_ns"]) / 1e9
        assert computed_s >= 0.999 * (PROFILES["h200"].prefill_s(TOKENS) + longer_s)
        arrived_ns, joined_ns = decode.journal("kv")[1]["t_ns"], decode.journal("decode")[1]["t_ns"]
        assert joined_ns - arrived_ns >= 0.999e9 * whole_bytes / how.decompress_bytes_per_s

    play(scenario)


@pytest.mark.parametrize(("source", "target"), [("decode-b3", "prefill-a1"), ("prefill-a2", "prefill-b1")])
def test_cached_kv_is_shipped_to_whoever_wants_it(
    play: Callable[..., None], source: str, target: str
) -> None:
    """Any instance sends, any receives; both say so, and it is no request's KV."""

    async def scenario(nodes: Nodes) -> None:
        sender, receiver = nodes[source], nodes[target]
        sender.tell("ship", id=FIRST_CACHE_TRANSFER, kv_tokens=5120, prompt_tokens=5120, to=target)
        assert await receiver.hear("fetched") == [{"op": "fetched", "id": FIRST_CACHE_TRANSFER}]
        assert await sender.hear("sent") == [{"op": "sent", "id": FIRST_CACHE_TRANSFER}]
        (transfer,) = sender.journal("transfer")
        size_bytes = kv_bytes(5120)
        assert (transfer["use"], transfer["wan"], transfer["size_bytes"]) == ("cache", True, size_bytes)
        assert receiver.journal("kv") == []

    play(scenario)


@pytest.mark.parametrize("model", ["internal_1t", "mimo_v2_flash"])
def test_a_state_without_tokens_is_shipped_in_full(play: Callable[..., None], model: str) -> None:
    """Linear states and whole windows, where the blocks before them are there already."""

    async def scenario(nodes: Nodes) -> None:
        nodes["prefill-a1"].tell(
            "ship", id=FIRST_CACHE_TRANSFER, kv_tokens=0, prompt_tokens=8192, to="prefill-b1"
        )
        await nodes["prefill-b1"].hear("fetched")
        await nodes["prefill-a1"].hear("sent")
        (transfer,) = nodes["prefill-a1"].journal("transfer")
        fixed_bytes = MODELS[model].fixed_bytes * nodes["prefill-a1"].settings.scale
        assert transfer["size_bytes"] == pytest.approx(fixed_bytes, rel=1e-3)

    play(scenario, model=model)


def test_a_decode_instance_becomes_prefill_when_it_has_finished(play: Callable[..., None]) -> None:
    """It decodes what it has to the end, converts, says so, and then computes."""

    async def scenario(nodes: Nodes) -> None:
        changing, other = nodes["decode-b2"], nodes["decode-b3"]
        serve(nodes["prefill-a1"], changing, 1)
        changing.tell("become", role="prefill", conversion_s=0.1)
        assert await changing.hear("became") == [{"op": "became", "role": "prefill"}]
        assert changing.said[-2]["items"] == [[1, OUTPUT_TOKENS, True]]
        (change,), (decoded,) = changing.journal("conversion"), changing.journal("decode")
        assert (change["role"], change["t_drained_ns"] >= decoded["t_last_ns"]) == ("prefill", True)
        assert change["t_end_ns"] - change["t_drained_ns"] >= 0.1e9
        serve(changing, other, 2)
        assert (await other.hear("tokens", 3))[-1]["items"] == [[2, OUTPUT_TOKENS, True]]
        assert [line["id"] for line in changing.journal("prefill")] == [2]
        (transfer,) = changing.journal("transfer")
        assert not transfer["wan"]

    play(scenario)


def test_a_prefill_instance_becomes_decode_when_all_has_left_it(play: Callable[..., None]) -> None:
    """What is queued is computed and sent first; then it decodes."""

    async def scenario(nodes: Nodes) -> None:
        changing, other = nodes["prefill-b1"], nodes["decode-b3"]
        for request in (1, 2):
            serve(changing, other, request)
        changing.tell("become", role="decode", conversion_s=0.0)
        await changing.hear("became")
        ops = [message["op"] for message in changing.said if message["op"] != "signals"]
        assert (ops.count("prefilled"), ops.count("sent"), ops[-1]) == (2, 2, "became")
        assert "signals" not in [message["op"] for message in changing.said], "it sends nothing over the link"
        serve(nodes["prefill-a1"], changing, 3)
        assert (await changing.hear("tokens", 3))[-1]["items"] == [[3, OUTPUT_TOKENS, True]]

    play(scenario)


def test_kv_for_an_instance_that_is_not_there_fails(play: Callable[..., None]) -> None:
    """When the lease runs out the router hears why it could not be reached; the instance is idle again."""

    async def scenario(nodes: Nodes) -> None:
        prefill = nodes["prefill-a1"]
        instance = prefill.instance
        instance.prefill._clusters["ghost"] = "pd"
        instance._sender.add_peer("ghost", (f"{NETWORK}.99", KV_PORT), congestion_control=CONGESTION_CONTROL)
        prefill.tell(
            "prefill",
            id=1,
            tokens=TOKENS,
            kv_tokens=TOKENS,
            prompt_tokens=TOKENS,
            decode="ghost",
            compress=False,
            order_s=0.0,
            since_ns=0,
        )
        prefill.tell("ship", id=FIRST_CACHE_TRANSFER, kv_tokens=512, prompt_tokens=512, to="ghost")
        failed = await prefill.hear("failed", 2)
        assert sorted(one["id"] for one in failed) == [1, FIRST_CACHE_TRANSFER]
        assert all(one["cause"].startswith("lease ran out: ") for one in failed)
        assert all("refused" in one["cause"] for one in failed)
        assert prefill.held_bytes() == 0
        prefill.tell("become", role="decode", conversion_s=0.0)
        await prefill.hear("became")

    play(scenario, timeouts=Timeouts(lease_ns=300 * MS, transfer_ns=100 * MS))
