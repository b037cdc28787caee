"""A small model with real kernels, requests to it, and what one process answers to them, for tests only."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest

from agents.config import Compute, Config, Request
from agents.profiles import MODELS, ModelProfile
from agents.prompts import prompt
from agents.shapes import SHAPES
from tests.unit.agent_config import make_config
from tests.unit.instance_nodes import Node, Nodes, Scenario, play_on, tell_both
from tests.unit.memories import memfds
from tests.unit.small_shapes import tiny

PROJECT = Path(__file__).resolve().parents[2]
SMALL = "small_hybrid"
"""The tiny hybrid, shrunk further."""
COMPUTE = Compute(seed=11)
REQUESTS = tuple(
    Request(id=number, t_ns=0, input_tokens=tokens, output_tokens=output_tokens)
    for number, (tokens, output_tokens) in enumerate(
        [(88, 12), (1, 5), (40, 9), (41, 1), (300, 7), (57, 30), (120, 16), (600, 10)]
    )
)
"""Shorter and longer than a window, and than a segment of prefill."""


def add_small() -> None:
    """Let agents of this process find the small model."""
    shape = SHAPES[SMALL] = msgspec.structs.replace(tiny(), name=SMALL)
    MODELS[SMALL] = ModelProfile(SMALL, "made up", tuple(layer.layer_kv for layer in shape.layers))


def use_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model, as long as a test runs."""
    for known in (SHAPES, MODELS):
        monkeypatch.setitem(known, SMALL, None)  # put back at the end
    add_small()


class Right(NamedTuple):
    """What one process answers."""

    token_ids: list[int]
    logits_digest: str


REFERENCE = "from agents.reference import main; main()"
SMALL_REFERENCE = f"""
from tests.unit.real_parts import add_small
add_small()
{REFERENCE}
"""


def reference(settings: Config, program: str = REFERENCE) -> dict[int, Right]:
    """What the reference notes of the requests of `settings`, by id; it is a process of its own."""
    with TemporaryDirectory() as directory:
        path, journal = Path(directory) / "config.json", Path(directory) / "reference.jsonl"
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(settings, journal=str(journal))))
        command = [sys.executable, "-c", program, str(path)]
        told = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True, timeout=60)
        assert told.stdout == "done\n"
        lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert {line["kind"] for line in lines} == {"reference"}
    return {line["id"]: Right(line["token_ids"], line["logits_digest"]) for line in lines}


@lru_cache(maxsize=1)
def right() -> dict[int, Right]:
    """Of all REQUESTS to the small model."""
    return reference(msgspec.structs.replace(make_config("router", Path()), **CHANGES), SMALL_REFERENCE)


CHANGES: dict[str, Any] = {"model": SMALL, "scale": 1.0, "compute": COMPUTE, "requests": REQUESTS}
"""Of the configuration of every agent."""
TRANSPORT = {"payload": "tensors", "compression": "", "chunk_bytes": 1 << 12, "layer_group": 1}


def play_real(
    journal: Path, scenario: Scenario, transport: dict[str, Any] | None = None, **changes: Any
) -> None:
    """Run a scenario against fresh instances with real kernels and the small model."""
    right()  # while no instance is there to be starved
    play_on(journal, scenario, TRANSPORT | (transport or {}), **(CHANGES | changes))


def ask(prefill: Node, decode: Node, number: int) -> None:
    """Tell both instances of one of REQUESTS, as the router does; its id is its job, and none comes twice."""
    assert number not in {line["id"] for line in decode.journal("decode")}
    request = REQUESTS[number]
    tokens = request.input_tokens
    tell_both(
        prefill,
        decode,
        expect={
            "id": number,
            "output_tokens": request.output_tokens,
            "context_tokens": tokens,
            "kv_bytes": MODELS[SMALL].kv_bytes(tokens),
            "unpack_bytes": 0,
            "kv_tokens": tokens,
            "chain": (),
        },
        tokens=tokens,
        kv_tokens=tokens,
        prompt=prompt(prefill.settings, request),
        chain=(),
        state_tokens=(),
    )


async def answers(decode: Node, numbers: Sequence[int]) -> dict[int, Right]:
    """Wait for the last token of all these; what was told of each, with the digest that decode noted."""
    count, ids = 0, {number: list[int]() for number in numbers}
    left = set(numbers)
    while left:
        count += 1
        for number, so_far, last, new in (await decode.hear("tokens", count))[count - 1]["items"]:
            if number in ids:
                ids[number] += new
                assert len(ids[number]) == so_far
                if last:
                    left.remove(number)
    noted = {line["id"]: line for line in decode.journal("decode")}
    assert all(noted[number]["token_ids"] == ids[number] for number in numbers)
    return {number: Right(ids[number], noted[number]["logits_digest"]) for number in numbers}


async def served(prefill: Node, decode: Node, number: int) -> bool:
    """Whether a request gets the answer of one process."""
    ask(prefill, decode, number)
    return (await answers(decode, [number]))[number] == right()[number]


OTHERS: frozenset[str] = frozenset()
"""Memories that tests before in this process left, such as the shared pages of other payloads."""


def start_counting() -> None:
    """From now on only what is made from now on counts."""
    global OTHERS  # noqa: PLW0603 - of this process
    OTHERS = memfds()


async def idle(*nodes: Node) -> None:
    """Wait until none has anything to do; then nothing is held."""
    for node in nodes:
        await node.instance.prefill.idle()
        await node.instance.decode.idle()
        assert (node.held_bytes(), node.instance._receiver._kept) == (0, {})
    gc.collect()  # tasks that are done may hold each other
    assert not memfds(OTHERS)


def pair(nodes: Nodes) -> tuple[Node, Node]:
    """A prefill and a decode instance with the link between them."""
    return nodes["prefill-a1"], nodes["decode-b2"]
