"""Prompts for real kernels: what client and reference each draw by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agents.cache.pool import BLOCK_TOKENS
from agents.config import Compute, Config, Request
from agents.prompts import FIRST_TOKEN, prompt
from agents.shapes import SHAPES
from tests.unit.agent_config import make_config

PROJECT = Path(__file__).resolve().parents[2]


def settings(seed: int, name: str = "client") -> Config:
    return msgspec.structs.replace(make_config(name, Path()), model="tiny_hybrid", compute=Compute(seed=seed))


def asked(number: int, tokens: int, output_tokens: int = 4) -> Request:
    return Request(id=number, t_ns=number, input_tokens=tokens, output_tokens=output_tokens)


@given(st.integers(0, 2**63), st.integers(0, 2**32 - 1), st.integers(1, 300))
def test_a_prompt_has_its_length_and_ids_that_the_model_has(seed: int, number: int, tokens: int) -> None:
    """None of those that have a meaning of their own."""
    ids = prompt(settings(seed), asked(number, tokens))
    assert len(ids) == tokens
    assert min(ids) >= FIRST_TOKEN
    assert max(ids) < SHAPES["tiny_hybrid"].vocab


def test_a_prompt_follows_from_seed_and_request_alone() -> None:
    """Whoever asks, for however many tokens of answer; another seed or request has another prompt."""
    first = prompt(settings(1), asked(5, 40))
    assert prompt(settings(1, "reference"), asked(5, 40, 99)) == first
    others = [prompt(settings(2), asked(5, 40)), prompt(settings(1), asked(6, 40))]
    assert first not in others
    assert others[0] != others[1]


def test_what_blocks_have_in_common_prompts_have() -> None:
    """Full blocks follow from their ids, tails and blocks without an id from the request."""

    def of(number: int, tokens: int, *ids: int) -> list[int]:
        return prompt(settings(1), msgspec.structs.replace(asked(number, tokens), hash_ids=ids))

    one, other = of(1, 2 * BLOCK_TOKENS + 9, 5, 6, 7), of(2, 3 * BLOCK_TOKENS + 9, 5, 6, 7, 8)
    assert (len(one), len(other)) == (2 * BLOCK_TOKENS + 9, 3 * BLOCK_TOKENS + 9)
    assert one[: 2 * BLOCK_TOKENS] == other[: 2 * BLOCK_TOKENS]
    assert one[2 * BLOCK_TOKENS :] != other[2 * BLOCK_TOKENS :][:9], "a tail is nobody else's"
    assert one[:BLOCK_TOKENS] != one[BLOCK_TOKENS : 2 * BLOCK_TOKENS]
    assert of(1, BLOCK_TOKENS + 9, 5)[BLOCK_TOKENS:] == of(1, BLOCK_TOKENS + 9, 6)[BLOCK_TOKENS:]
    unnamed = [of(number, 2 * BLOCK_TOKENS, 5) for number in (1, 2)]
    assert unnamed[0][:BLOCK_TOKENS] == unnamed[1][:BLOCK_TOKENS]
    assert unnamed[0][BLOCK_TOKENS:] != unnamed[1][BLOCK_TOKENS:]
    assert of(1, 9, 5) == prompt(settings(1), asked(1, 9)), "a tail's id says nothing"


def test_a_prompt_is_the_same_in_each_process() -> None:
    """Whatever Python hashes strings with."""
    program = "from tests.unit.test_prompts import *; print(prompt(settings(1), asked(5, 40)))"
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=PROJECT,
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{prompt(settings(1), asked(5, 40))}\n"}
