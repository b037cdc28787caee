"""Prefixes that come from the other cluster: they are here when they are kept, under the right name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agents.config import FIRST_CACHE_TRANSFER, Compute
from agents.landing import Landing
from agents.prefix_files import PrefixFiles
from agents.transport.receiver import Arrival
from tests.unit.agent_config import make_config
from tests.unit.test_prefix_files import BLOCK, MIXED, kv, models

__all__ = ["models"]
NUMBER, TOKENS = FIRST_CACHE_TRANSFER + 3, 2 * BLOCK
MESSAGE = {"op": "land", "id": NUMBER, "kv_tokens": BLOCK, "prompt_tokens": TOKENS, "chain": [7, 8]}


class Bench:
    """What is around a landing."""

    def __init__(self, directory: Path, *, real: bool = True) -> None:
        settings = msgspec.structs.replace(
            make_config("prefill-a1", directory),
            model=MIXED.name,
            compute=Compute(seed=1, prefixes=str(directory)),
        )
        self.files = PrefixFiles(settings)
        self.said: list[tuple[str, int]] = []
        self.let_go: list[int] = []
        self.dropped: list[int] = []
        self.landing = Landing(settings, cast("Any", self), self._tell, self.files if real else None)

    def _tell(self, op: str, **fields: Any) -> None:
        self.said.append((op, fields["id"]))

    def release(self, number: int) -> None:
        self.let_go.append(number)

    def drop(self, number: int, _cause: str) -> None:
        self.dropped.append(number)

    def arrive(self, parts: list[bytes]) -> None:
        data = memoryview(b"".join(parts))
        self.landing.arrived(Arrival(NUMBER, len(data), payload="tensors", data=data))

    def kept(self) -> list[bytes]:
        return self.files.read((7, 8), TOKENS, BLOCK)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("told_first", [True, False])
def test_a_prefix_is_fetched_once_it_is_kept(tmp_path: Path, *, told_first: bool) -> None:
    """Whether its name comes before or after it; then its memory is let go."""
    bench = Bench(tmp_path)
    parts = kv(MIXED, TOKENS, BLOCK)
    if told_first:
        bench.landing.expect(MESSAGE)
        assert bench.said == []
        bench.arrive(parts)
    else:
        bench.arrive(parts)
        assert (bench.said, bench.let_go) == ([], [])
        bench.landing.expect(MESSAGE)
    assert (bench.said, bench.let_go) == ([("fetched", NUMBER)], [NUMBER])
    assert bench.kept() == parts


@pytest.mark.usefixtures("models")
def test_where_books_are_all_there_is_nothing_is_waited_for(tmp_path: Path) -> None:
    """A prefix is here when it has arrived."""
    bench = Bench(tmp_path, real=False)
    bench.landing.arrived(Arrival(NUMBER, 9))
    assert (bench.said, bench.let_go) == ([("fetched", NUMBER)], [NUMBER])


@pytest.mark.usefixtures("models")
def test_what_cannot_be_kept_has_failed(tmp_path: Path) -> None:
    """And its memory is let go."""
    directory = tmp_path / "kv"
    bench = Bench(directory)
    bench.landing.expect(MESSAGE)
    bench.arrive(kv(MIXED, TOKENS, BLOCK))
    assert (bench.said, bench.let_go) == ([("failed", NUMBER)], [NUMBER])


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("arrived", [True, False])
def test_what_is_cancelled_or_forgotten_is_not_kept(tmp_path: Path, *, arrived: bool) -> None:
    """Whether or not it has come, nobody hears of it, and whatever still comes is refused."""
    bench = Bench(tmp_path)
    bench.landing.cancel(NUMBER)
    assert bench.dropped == []
    bench.landing.expect(MESSAGE)
    bench.landing.cancel(NUMBER)
    assert bench.dropped == [NUMBER]
    if arrived:
        bench.arrive(kv(MIXED, TOKENS, BLOCK))
    bench.landing.forget()
    assert bench.let_go == [NUMBER] * arrived
    bench.landing.expect(MESSAGE)
    assert (bench.said, list(tmp_path.glob("*.rows"))) == ([], [])
