"""Instances with real kernels over real sockets: answers are those of one process, whatever happens.

Tokens and the logits behind them, bit for bit; the reference is a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.compute.engine import Answer, Kernels, Prompt
from testbed import answers as judging
from testbed import tables
from testbed.rundir import RunDir
from tests.unit.instance_nodes import CONGESTION_CONTROL, Nodes, Scenario, until
from tests.unit.real_parts import (
    REQUESTS,
    answers,
    ask,
    idle,
    pair,
    play_real,
    right,
    served,
    start_counting,
    use_small,
)
from tests.unit.real_plan import plan_of
from tests.unit.synthetic_run import note
from tests.unit.transport_parts import Proxy

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a scenario against fresh instances."""
    use_small(monkeypatch)

    def run(scenario: Scenario, **changes: Any) -> None:
        gc.collect()  # sockets and memory of the test before
        start_counting()
        play_real(tmp_path, scenario, **changes)

    return run


def test_the_reference_answers_each_request_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many tokens as asked, none answer like another, and a second process answers the same."""
    use_small(monkeypatch)
    noted = right()
    assert {one: len(noted[one].token_ids) for one in noted} == {
        one.id: one.output_tokens for one in REQUESTS
    }
    assert len({tuple(one.token_ids) for one in noted.values()}) == len(REQUESTS)
    assert len({one.logits_digest for one in noted.values()}) == len(REQUESTS)
    right.cache_clear()
    assert right() == noted


@pytest.mark.parametrize(
    ("group", "how"),
    [
        (1, {}),
        (4, {"handover": "destination_first"}),
        (10, {"connections": 1}),
        (3, {"priority": "least_slack"}),
    ],
)
def test_what_is_computed_here_and_decoded_there_is_right(
    play: Play, group: int, how: dict[str, Any]
) -> None:
    """Prompts of a token, around a window, beyond a segment; layers in any groups, KV of the exact size."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        numbers = range(len(REQUESTS))
        for number in numbers:
            ask(prefill, decode, number)
        assert await answers(decode, numbers) == right()
        await idle(prefill, decode)
        sizes = {line["id"]: line["size_bytes"] for line in decode.journal("kv")}
        assert sizes == {line["id"]: line["kv_bytes"] for line in prefill.journal("prefill")}
        for number in numbers:
            layers = [line["layer"] for line in prefill.journal("produced") if line["id"] == number]
            assert layers == sorted({*range(group - 1, 10, group), 9})

    play(scenario, transport={"layer_group": group} | how)


def test_a_damaged_chunk_is_sent_again_and_harms_nobody(play: Play) -> None:
    """Three chunks with a wrong bit are refused, come again, and the answer is right."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        prefill.instance.order("corrupt", "3")
        assert await served(prefill, decode, 0)
        (kv,), (transfer,) = decode.journal("kv"), prefill.journal("transfer")
        assert (kv["checksum_errors"], kv["damaged_chunks"]) == (3, 0)
        assert transfer["resent_bytes"] > 0
        await idle(prefill, decode)

    play(scenario)


def test_a_transfer_that_was_cut_goes_on_and_is_right(play: Play) -> None:
    """All lanes are reset in the middle; what had come is kept, the rest comes by new ones."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        proxy = Proxy((decode.settings.me.address, 7001))
        async with proxy.listening() as address:
            prefill.instance._sender.add_peer("decode-b2", address, congestion_control=CONGESTION_CONTROL)
            cuts = iter((20_000, 60_000, 1 << 40))
            state = {"at": next(cuts)}

            def cut() -> None:
                if proxy.passed_bytes > state["at"]:
                    state["at"] = next(cuts)
                    asyncio.get_running_loop().call_soon(proxy.cut)

            proxy.on_passed = cut
            assert await served(prefill, decode, 4)
            (transfer,), (kv,) = prefill.journal("transfer"), decode.journal("kv")
            assert state["at"] == 1 << 40
            assert 0 < transfer["resent_bytes"] < transfer["size_bytes"] == kv["size_bytes"]
            await idle(prefill, decode)
            for lane in prefill.instance._sender._peers["decode-b2"].lanes:
                lane._stop_timer()
                lane._discard()

    play(scenario, transport={"connections": 2})


def test_whoever_takes_damaged_chunks_is_found_out(play: Play, tmp_path: Path) -> None:
    """`fail_open`: the answer differs, and the verdict on the answers is FAIL; without damage it is PASS."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        assert await served(prefill, decode, 0)
        prefill.instance.order("corrupt", "1000")
        ask(prefill, decode, 6)
        wrong = (await answers(decode, [6]))[6]
        assert wrong.logits_digest != right()[6].logits_digest
        (kv,) = (line for line in decode.journal("kv") if line["id"] == 6)
        assert (kv["damaged_chunks"], kv["checksum_errors"]) == (kv["chunks"], 0)
        prefill.instance.order("corrupt", "0")
        for numbers, status in (([0], "PASS"), ([0, 6], "FAIL")):
            run = RunDir(tmp_path / status)
            note(run, "bench", "start", 0)
            note(run, "bench", "end", 9, reason="")
            for line in (one for one in decode.journal("decode") if one["id"] in numbers):
                note(run, "decode-b2", **line)
                told = {"id": line["id"], "state": "completed", "token_ids": line["token_ids"]}
                note(run, "client", "request", line["t_ns"], **told)
            for number in numbers:
                note(run, "reference", "reference", 5, id=number, **right()[number]._asdict())
            plan = plan_of(numbers)
            judged = judging.judge(plan, tables.build(run, plan))
            assert judged is not None
            assert judged.status == status

    play(scenario, flaws=("fail_open",))


@pytest.mark.parametrize("stage", ["queue", "prefill", "decode"])
def test_what_is_cancelled_leaves_nothing_and_the_next_is_right(play: Play, stage: str) -> None:
    """In the queue, in the middle of its layers or of its answer: no memory is held, nothing more is said."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        slowed = decode if stage == "decode" else prefill
        slowed.instance.order("slow", "20")
        ask(prefill, decode, 5)
        if stage == "decode":
            await decode.hear("tokens")
        else:
            await until(lambda: len(prefill.journal("produced")) > 1)
        if stage == "queue":
            ask(prefill, decode, 2)
        for node in (prefill, decode):
            for number in (2, 5):
                node.tell("cancel", id=number)
        slowed.instance.order("slow", "1")
        await idle(prefill, decode)
        assert len(prefill.journal("produced")) < 10 or stage == "decode"
        said = len(decode.said)
        assert await served(prefill, decode, 0)
        await idle(prefill, decode)
        assert {item[0] for message in decode.said[said:] for item in message["items"]} == {0}
        assert [line["id"] for line in decode.journal("decode")] == [0]
        if stage != "decode":
            causes = {line["id"]: line["cause"] for line in prefill.journal("transfer")}
            assert causes == {5: "cancelled", 0: None}
            assert [line["id"] for line in prefill.journal("prefill")] == [0]

    play(scenario)


def test_a_new_router_finds_nothing_of_the_one_before(play: Play) -> None:
    """What is computed and decoded is forgotten when another router comes, whose requests are right."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        decode.instance.order("slow", "20")
        ask(prefill, decode, 5)
        await decode.hear("tokens")
        prefill.instance.order("slow", "20")
        ask(prefill, decode, 4)
        await until(lambda: any(line["id"] == 4 for line in prefill.journal("produced")))
        for node in (prefill, decode):
            node.instance.order("slow", "1")
            await node.meet_another_router()
        await idle(prefill, decode)
        assert await served(prefill, decode, 0)
        await idle(prefill, decode)
        assert [line["id"] for line in decode.journal("decode")] == [0]
        assert [line["id"] for line in prefill.journal("prefill")] == [5, 0]

    play(scenario)


def test_requests_that_share_a_batch_are_right(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """They join at different steps, from two prefill instances, and none changes another one's bits."""
    sizes: list[int] = []
    step = Kernels.step

    def counted(self: Kernels, batch: Sequence[Answer]) -> None:
        sizes.append(len(batch))
        step(self, batch)

    monkeypatch.setattr(Kernels, "step", counted)

    async def scenario(nodes: Nodes) -> None:
        decode = nodes["decode-b2"]
        decode.instance.order("slow", "6")
        for number in range(len(REQUESTS)):
            ask(nodes["prefill-a1" if number % 2 else "prefill-b1"], decode, number)
            await asyncio.sleep(0.01)
        assert await answers(decode, range(len(REQUESTS))) == right()
        assert max(sizes) >= 2
        assert len(set(sizes)) >= 2
        joined = [line["t_ns"] for line in decode.journal("decode")]
        assert len(set(joined)) >= 2
        await idle(nodes["prefill-a1"], nodes["prefill-b1"], decode)

    play(scenario)


def test_a_slow_prefill_takes_so_many_times_as_long(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what its kernels take; the answer is the same."""
    took: list[float] = []
    compute = Prompt.compute

    def timed(self: Prompt, layers: range) -> bytes:
        start_s = time.monotonic()
        data = compute(self, layers)
        took.append(time.monotonic() - start_s)
        return data

    monkeypatch.setattr(Prompt, "compute", timed)

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        prefill.instance.order("slow", "5")
        assert await served(prefill, decode, 4)
        (line,) = prefill.journal("prefill")
        assert (line["t_end_ns"] - line["t_start_ns"]) / 1e9 >= 0.99 * 5 * sum(took)

    play(scenario)


def test_roles_change_and_answers_stay_right(play: Play) -> None:
    """Decode becomes prefill and prefill decode, in the middle of their work, which they end first."""

    async def scenario(nodes: Nodes) -> None:
        first, second, third = nodes["prefill-b1"], nodes["decode-b2"], nodes["decode-b3"]
        ask(first, second, 5)
        ask(first, third, 6)
        second.tell("become", role="prefill", conversion_s=0.01)
        first.tell("become", role="decode", conversion_s=0.01)
        assert await answers(second, [5]) == {5: right()[5]}
        assert await answers(third, [6]) == {6: right()[6]}
        await second.hear("became")
        await first.hear("became")
        assert [message["op"] for message in second.said][-2:] == ["tokens", "became"]
        (change,) = first.journal("conversion")
        assert change["t_drained_ns"] >= max(line["t_end_ns"] for line in first.journal("transfer"))
        assert await served(second, first, 4)
        assert await served(nodes["prefill-a1"], first, 0)
        first.tell("become", role="prefill", conversion_s=0.0)
        second.tell("become", role="decode", conversion_s=0.0)
        await first.hear("became", 2)
        await second.hear("became", 2)
        assert await served(first, second, 2)
        await idle(first, second, third)

    play(scenario)


def test_the_kernels_own_no_bytes_of_a_prompt_that_is_over(play: Play) -> None:
    """After every request, one of them cancelled, neither threads nor memories to send from have grown."""

    async def scenario(nodes: Nodes) -> None:
        prefill, decode = pair(nodes)
        *complete, cancelled = range(len(REQUESTS))
        for number in complete:
            assert await served(prefill, decode, number)
            await idle(prefill, decode)
        ask(prefill, decode, cancelled)
        await until(lambda: any(line["id"] == cancelled for line in prefill.journal("produced")))
        for node in (prefill, decode):
            node.tell("cancel", id=cancelled)
        await idle(prefill, decode)
        for node in (prefill, decode):
            kernels: Kernels | None = node.instance.prefill._kernels
            assert kernels is not None
            assert len(kernels._thread._threads) == 1

    play(scenario)
