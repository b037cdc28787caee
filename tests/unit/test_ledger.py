"""The ledger: every request, every byte of KV and every pool is accounted for, and what is not is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed import expect, ledger
from testbed import tables as record
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import S, expectation, make_plan, with_expectations
from tests.unit.synthetic_run import note

PLAN = make_plan(requests=3)
OUTPUT_TOKENS = PLAN.requests[0].output_tokens
FULL = 800


@dataclass
class Story:
    """A journal that is told step by step; times in seconds. Every planned request is answered at 50 s."""

    run: RunDir

    def __init__(self, path: Path, *answered: int) -> None:
        self.run = RunDir(path)
        self.tell("bench", "start", 0)
        for request in answered:
            self.tell(
                "client", "request", 1, id=request, t_first_ns=9 * S, t_last_ns=50 * S, t_end_ns=50 * S,
                tokens=OUTPUT_TOKENS, state="completed",
            )  # fmt: skip

    def tell(self, writer: str, kind: str, t_s: float, **fields: object) -> None:
        note(self.run, writer, kind, round(t_s * S), **fields)

    def begin(self, request: int = 0, attempt: int = 0, produced: int = FULL, source: str = "p") -> None:
        self.tell(
            source, "transfer_begin", 2, id=request, attempt=attempt, peer="d", use="kv", wan=True,
            size_bytes=FULL, chunks=8,
        )  # fmt: skip
        for layer, size_bytes in enumerate((produced // 2, produced - produced // 2)):
            self.tell(
                source, "produced", 3 + layer, id=request, attempt=attempt, use="kv", layer=layer,
                size_bytes=size_bytes,
            )  # fmt: skip

    def word(self, cause: str | None, request: int = 0, attempt: int = 0, **fields: object) -> None:
        """The source's last one."""
        self.tell(
            "p", "transfer", 2, id=request, attempt=attempt, peer="d", use="kv", wan=True, size_bytes=FULL,
            chunks=8, t_end_ns=7 * S, state="failed" if cause else "completed", cause=cause, **fields,
        )  # fmt: skip

    def arrive(self, request: int = 0, attempt: int = 0, size: int = FULL, damaged: int = 0) -> None:
        self.tell(
            "d", "kv", 6, id=request, attempt=attempt, size_bytes=size, chunks=8, checksum_errors=0,
            damaged_chunks=damaged,
        )  # fmt: skip

    def drop(self, cause: str, request: int = 0, attempt: int = 0, received: int = 0) -> None:
        self.tell("d", "kv_dropped", 8, id=request, attempt=attempt, received_bytes=received, cause=cause)

    def retry(self, request: int = 0, attempt: int = 1, action: str = "recompute") -> None:
        self.tell(
            "router", "retry", 8, id=request, attempt=attempt, cause=f"{action} {attempt}", action=action,
            route="pd", prefill="p", decode="d",
        )  # fmt: skip

    def decode(self, request: int = 0, attempt: int = 0) -> None:
        self.tell("d", "decode", 8, id=request, attempt=attempt, t_first_ns=9 * S, t_last_ns=50 * S, tokens=5)

    def tables(self, end_s: float | None = 60) -> dict[str, pl.DataFrame]:
        if end_s is not None:
            self.tell("bench", "end", end_s, reason="complete")
        return record.build(self.run, PLAN)

    def found(self, end_s: float = 60) -> list[str]:
        """Violations, but for those of the two requests that no story is about."""
        found = ledger.violations(self.tables(end_s))
        assert found is not None
        return [text for text in found if not text.startswith(("request 1 ", "request 2 "))]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Request 0 is answered, and decoded from the KV of its attempt 0."""
    return Story(tmp_path, 0)


def fates(tables: dict[str, pl.DataFrame]) -> list[tuple[Any, ...]]:
    columns = ("attempt", "fate", "delivered_bytes", "dropped_bytes", "superseded_bytes", "cause")
    return tables["transfers"].sort("id", "attempt").select(columns).rows()


def test_what_arrived_is_delivered(story: Story) -> None:
    """Produced, announced and counted are the same, and nothing is left over."""
    story.begin()
    story.word(None, produced_bytes=FULL, resent_bytes=100)
    story.arrive()
    story.decode()
    tables = story.tables()
    assert fates(tables) == [(0, "delivered", FULL, 0, 0, None)]
    row = tables["transfers"].row(0, named=True)
    assert (row["resumed"], row["source_end_s"], row["sink_end_s"], row["legs_apart_s"]) == (True, 7, 6, None)
    assert story.found() == []


def test_what_another_attempt_followed_is_superseded(story: Story) -> None:
    """Whatever became of it; the one that followed is delivered. A last failure is followed by none."""
    story.begin(produced=500)
    story.word("the connection broke")
    story.retry()
    story.begin(attempt=1)
    story.arrive(attempt=1)
    story.retry(attempt=2)
    story.retry(attempt=2, action="fail")
    story.begin(attempt=2)
    story.arrive(attempt=2)
    story.decode(attempt=2)
    tables = story.tables()
    assert fates(tables) == [
        (0, "superseded", 0, 0, 500, "the connection broke"),
        (1, "superseded", 0, 0, FULL, "recompute 2"),
        (2, "delivered", FULL, 0, 0, None),
    ]
    assert story.found() == []


def test_a_word_that_is_there_once_more_is_a_row_of_its_own(story: Story) -> None:
    """What began twice has no fate the second time, and nothing is hidden by it."""
    story.begin()
    story.begin()
    story.word(None)
    story.word(None)
    story.arrive()
    story.decode()
    assert story.tables()["transfers"]["fate"].to_list() == ["delivered", None, None]
    assert len(story.found()) == 3


@pytest.mark.parametrize(
    ("acked", "received", "killed", "says"),
    [
        (500, 500, None, []),
        (400, 500, None, []),
        (500, 400, None, ["500 B acknowledged, but d received 400 B"]),
        (600, 700, None, ["600 B produced, but d received 700 B"]),
        (
            700,
            650,
            None,
            ["600 B produced, but d received 650 B", "700 B acknowledged, but d received 650 B"],
        ),
        (500, 400, ("d", 5), []),
        (500, 400, ("p", 5), []),
        (500, 400, ("d", 1), ["500 B acknowledged, but d received 400 B"]),
        (500, 400, ("e", 5), ["500 B acknowledged, but d received 400 B"]),
    ],
)
def test_both_ends_tell_the_same(
    story: Story, acked: int, received: int, killed: tuple[str, int] | None, says: list[str]
) -> None:
    """Of one attempt; half of the words are missing if one of them was killed since it began."""
    story.begin(produced=600)
    story.word("cancelled", produced_bytes=600, acked_bytes=acked)
    story.drop("cancelled", received=received)
    story.decode()
    if killed is not None:
        story.tell("bench", "fault", killed[1], fault="restart", target=killed[0], active=True)
    found = [text for text in story.found() if text.startswith("request 0, attempt 0: ")]
    assert found == [f"request 0, attempt 0: {text}" for text in says]


def test_every_drop_has_a_reason(tmp_path: Path) -> None:
    """The source's word, else the sink's, else that the source was killed."""
    story = Story(tmp_path, 0, 1)
    story.begin(0, produced=300)
    story.drop("decode waited for 30 s", 0)
    assert fates(story.tables())[0][1:] == ("dropped", 0, 300, 0, "decode waited for 30 s")
    story.word("its lease ran out", 0)
    row = story.tables()["transfers"].row(0, named=True)
    assert (row["fate"], row["cause"], row["legs_apart_s"]) == ("dropped", "its lease ran out", 1.0)
    story.begin(1, produced=200, source="q")
    story.tell("bench", "fault", 1, fault="kill", target="q", active=True)
    assert fates(story.tables())[1][1] is None, "it was killed before"
    story.tell("bench", "fault", 5, fault="restart", target="q", active=True)
    assert fates(story.tables())[1][1:] == ("dropped", 0, 200, 0, "q was killed at 5.0 s")
    assert story.tables()["transfers"]["legs_apart_s"][1] is None, "nobody has told the sink"
    story.drop("cancelled", 1)
    (given_up_s,) = story.tables()["transfers"]["sink_end_s"][1:]
    assert story.tables()["transfers"]["legs_apart_s"][1] == abs(given_up_s - 5)


def test_the_end_of_the_run_is_a_reason_for_what_was_open(tmp_path: Path) -> None:
    """A request that nobody ended, or that ended in the last moment; not one that ended long before."""
    story = Story(tmp_path, 0)
    story.begin(0)
    story.begin(1)
    tables = story.tables(50.5)
    assert [row[-1] for row in fates(tables)] == ["the run ended", "the run ended"]
    later = Story(tmp_path / "later", 0)
    later.begin(0)
    assert later.found(52.5) == [
        "request 0 was answered, but nobody decoded it",
        "request 0, attempt 0: 800 B produced, 0 B delivered, 0 B dropped",
    ]


def test_a_killed_run_has_no_ledger(story: Story) -> None:
    """It is not trusted anyway; what it lacks is no violation."""
    story.begin()
    tables = story.tables(None)
    assert ledger.violations(tables) is None
    assert ledger.judge(PLAN, tables) is None
    wanted = with_expectations(PLAN, expectation("bound", "ledger.violations", high=0))
    assert [result.status for result in expect.judge(wanted, tables, []).results] == ["UNKNOWN"]


def test_violations_are_named(story: Story) -> None:
    """Each kind, in a sentence that says who and how much."""
    story.begin(0, produced=799)
    story.word(None, 0, produced_bytes=800)
    story.arrive(0, damaged=1)
    story.tell("client", "request", 1, id=0, state="failed", t_end_ns=9 * S)
    story.tell("d", "held", 9, pool="receive", size_bytes=3_200_000_000, transfers=2)
    story.tell("p", "held", 9, pool="send", size_bytes=800, transfers=1)
    story.tell("p", "held", 10, pool="send", size_bytes=0, transfers=0)
    story.tell("q", "held", 9, pool="send", size_bytes=5, transfers=1)
    story.tell("bench", "fault", 11, fault="kill", target="q", active=True)
    story.tell("r", "held", 9, pool="send", size_bytes=5, transfers=0)
    story.begin(0, 1, produced=700)
    story.arrive(0, 1, size=700)
    story.begin(0, 2, produced=0)
    story.decode(1)
    found = ledger.violations(story.tables())
    assert found == [
        "request 0 was answered twice",
        "request 1 has no end",
        "request 1 was decoded without all of its KV",
        "request 2 has no end",
        "request 0, attempt 0: 799 B produced, 800 B delivered, 0 B dropped",
        "request 0, attempt 0: 799 B produced, but p says 800 B",
        "request 0, attempt 0: d accepted 1 chunk although damaged",
        "request 0, attempt 1: 800 B announced, 700 B delivered",
        "request 0, attempt 2: 0 B produced, 0 B delivered, 0 B dropped",
        "d holds 3.2 GB in 2 transfers at the end",
        "r holds 5 B in 0 transfers at the end",
    ]


def test_an_open_request_may_hold_a_place_in_both_pools(tmp_path: Path) -> None:
    """One place for one request: a second one is nobody's."""
    for transfers, left in ((1, []), (2, ["d holds 9 B in 2 transfers at the end"])):
        story = Story(tmp_path / str(transfers), 1, 2)
        story.tell(
            "router", "decision", 1, id=0, route="pd", prefill="p", decode="d", uncached_tokens=9,
            threshold_tokens=8, reason="",
        )  # fmt: skip
        story.begin(0)
        story.tell("p", "held", 9, pool="send", size_bytes=800, transfers=1)
        story.tell("d", "held", 9, pool="receive", size_bytes=9, transfers=transfers)
        assert story.found() == ["request 0 has no end", *left]


def test_a_rounded_difference_is_written_out(story: Story) -> None:
    """Sizes that differ never look the same."""
    assert ledger._sizes(701_000_000, 701_000_001, 0) == ["701,000,000 B", "701,000,001 B", "0 B"]
    assert ledger._sizes(701_000_000, 701_000_000) == ["701 MB", "701 MB"]
    assert story.run.path.is_dir()


def test_the_verdict_has_the_ledger(story: Story) -> None:
    """One result beside the expectations, which fails the run; three violations are spelt out."""
    nothing = with_expectations(PLAN)
    verdict = expect.judge(nothing, story.tables(), [])
    (result,) = verdict.results
    assert (result.name, result.status, result.measured, result.unit) == ("ledger", "FAIL", 3.0, "violations")
    assert (verdict.status, verdict.note) == ("FAIL", "the ledger does not balance")
    assert result.sentence == (
        "request 0 was answered, but nobody decoded it; request 1 has no end; request 2 has no end"
    )
    story.decode(1)
    verdict = expect.judge(nothing, story.tables(), [])
    assert verdict.results[0].sentence.endswith("; and 1 more")
    wanted = with_expectations(PLAN, expectation("bound", "ledger.violations", high=0))
    verdict = expect.judge(wanted, story.tables(), [])
    assert verdict.results[0].measured == verdict.results[1].measured == 4.0
    assert verdict.note == "1 of 1 expectation did not hold; the ledger does not balance"


WORDS: dict[str, Callable[[Story, int], None]] = {
    "retried": lambda story, _: story.retry(),
    "arrived": lambda story, produced: story.arrive(size=produced),
    "failed": lambda story, _: story.word("failed"),
    "dropped": lambda story, _: story.drop("dropped"),
    "killed": lambda story, _: story.tell("bench", "fault", 9, fault="kill", target="p", active=True),
}
FATES = {"retried": "superseded", "arrived": "delivered"}


@settings(max_examples=40, deadline=None)
@given(words=st.lists(st.sampled_from(sorted(WORDS)), unique=True), produced=st.integers(0, FULL))
def test_an_attempt_has_one_fate_if_anybody_spoke_of_it(words: list[str], produced: int) -> None:
    """In whatever order they did; all that it produced goes there, and nothing anywhere else."""
    with TemporaryDirectory() as path:
        story = Story(Path(path), 0)
        story.begin(produced=produced)
        for word in words:
            WORDS[word](story, produced)
        row = story.tables()["transfers"].row(0, named=True)
    strongest = next((word for word in WORDS if word in words), None)
    fate = FATES.get(strongest, "dropped") if strongest else None
    assert row["fate"] == fate
    parts = {name: row[f"{name}_bytes"] for name in ("delivered", "dropped", "superseded")}
    assert parts == {name: produced if name == fate else 0 for name in parts}
