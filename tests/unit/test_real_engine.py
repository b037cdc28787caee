"""What an instance computes with: the bytes of a prompt's layers, and what is known of an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agents.compute.cache import Cache
from agents.compute.engine import Answer, Kernels
from agents.compute.model import START_TOKEN
from agents.instance import _kernels
from agents.profiles import MODELS
from tests.unit.agent_config import make_config
from tests.unit.real_parts import CHANGES, SMALL, use_small
from tests.unit.small_shapes import prompt_of, tiny


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Of the small model."""
    use_small(monkeypatch)
    return Kernels(msgspec.structs.replace(make_config("prefill-a1", Path()), **CHANGES))


def test_the_digest_is_over_all_logits_of_all_steps_in_order() -> None:
    """Another bit anywhere, a step more, or another order has another digest; how it grew has not."""

    def digest(*steps: bytes) -> str:
        answer = Answer(Cache(tiny(), "cpu"))
        for place, logits in enumerate(steps):
            answer.take(place, memoryview(logits))
        assert (answer.token_ids, answer.next) == (list(range(len(steps))), len(steps) - 1)
        return answer.logits_digest

    steps = (b"abcdefgh", b"ijklmnop", b"qrstuvwx")
    others = [steps[:2], steps[::-1], (b"bbcdefgh", *steps[1:]), (*steps[:2], b"qrstuvwy"), (*steps, b"")]
    digests = [digest(*one) for one in (steps, *others[:-1])]
    assert len(set(digests)) == len(digests)
    assert digest(*steps) == digests[0]
    assert len(digests[0]) == len(f"{0:016x}")


@pytest.mark.parametrize("groups", [[1] * 10, [4, 4, 2], [10]])
def test_a_prompt_s_bytes_are_those_that_the_layout_has(kernels: Kernels, groups: list[int]) -> None:
    """Of each layer, group after group; together they make an answer that begins with the start token."""
    prompt, parts, first = kernels.prompt(prompt_of(70), 70), list[bytes](), 0
    for size in groups:
        parts.append(prompt.compute(range(first, first + size)))
        layers = range(first, first + size)
        assert len(parts[-1]) == sum(MODELS[SMALL].layer_bytes(layer, 70) for layer in layers)
        first += size
    whole = b"".join(parts)
    far, near = kernels.answer(memoryview(whole), 70, 70), Answer(prompt.cache)
    assert far.next == near.next == START_TOKEN
    for _ in range(5):
        kernels.step([far])
        kernels.step([near])
    assert (far.token_ids, far.logits_digest) == (near.token_ids, near.logits_digest)


def test_an_answer_does_not_need_the_bytes_that_it_was_made_of(kernels: Kernels) -> None:
    """They may be overwritten as soon as they were read."""
    prompt = kernels.prompt(prompt_of(70), 70)
    data = bytearray(prompt.compute(range(10)))
    far, near = kernels.answer(memoryview(data), 70, 70), Answer(prompt.cache)
    data[:] = bytes(len(data))
    for one in (far, near):
        kernels.step([one])
    assert far.logits_digest == near.logits_digest


def test_warming_up_changes_no_answer(kernels: Kernels) -> None:
    """Whoever has computed a prompt for nothing answers as whoever has not."""

    def answered() -> tuple[list[int], str]:
        prompt = kernels.prompt(prompt_of(70), 70)
        answer = kernels.answer(memoryview(prompt.compute(range(10))), 70, 70)
        for _ in range(3):
            kernels.step([answer])
        return answer.token_ids, answer.logits_digest

    before = answered()
    kernels.warm_up(90)
    assert answered() == before


@pytest.mark.parametrize(("longest_tokens", "computed"), [(0, []), (90, [90])])
def test_an_instance_computes_the_longest_prompt_before_it_serves(
    monkeypatch: pytest.MonkeyPatch, longest_tokens: int, computed: list[int]
) -> None:
    """Once, when it is made; where nobody says how long it is, it computes nothing."""
    warmed: list[int] = []
    use_small(monkeypatch)
    monkeypatch.setattr(Kernels, "warm_up", lambda _self, tokens: warmed.append(tokens))
    settings = msgspec.structs.replace(make_config("prefill-a1", Path()), **CHANGES)
    assert settings.compute is not None
    compute = msgspec.structs.replace(settings.compute, longest_tokens=longest_tokens)
    _kernels(msgspec.structs.replace(settings, compute=compute))
    assert warmed == computed


def test_work_is_done_one_after_the_other_beside_the_loop(kernels: Kernels) -> None:
    """In the order in which it was asked for; what it raises, whoever asked gets."""
    done: list[int] = []

    async def scenario() -> None:
        works = [kernels.run(lambda number=number: done.append(number)) for number in range(5)]  # type: ignore[misc]
        await asyncio.gather(*works)
        with pytest.raises(ZeroDivisionError):
            await kernels.run(lambda: 1 // 0)

    asyncio.run(scenario())
    assert done == [0, 1, 2, 3, 4]
