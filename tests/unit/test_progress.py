"""What a terminal shows while a run goes on, and what it shows where there is none."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from testbed.command import terminal
from testbed.journal import Journal
from testbed.progress import Progress
from testbed.sparkline import BLOCKS, LETTERS, STEPS, TAIL_BYTES, Lately, sparkline
from tests.unit.synthetic_plan import make_plan

LINES = (
    "@stage building network",
    "a kernel says \x1b[2J\x07 this",
    "@stage running",
    "@progress 12.5",
    "@progress 13[    3.141592] clocksource: and this",
)


class Tty(io.StringIO):
    """Standard output that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def control(
    journal: Path, t_ns: int, threshold_tokens: int, goodput_bps: float | None, seen: str = ""
) -> None:
    with closing(Journal(journal / "router.jsonl")) as router:
        router.note(
            "control", t_ns, threshold_tokens=threshold_tokens, goodput_bps=goodput_bps, seen=seen,
            reason='says "control"',
        )  # fmt: skip


def link(journal: Path, t_ns: int, tx_bytes: int) -> None:
    with closing(Journal(journal / "link.jsonl")) as lines:
        for direction, moved in (("a_to_b", tx_bytes), ("b_to_a", 5)):
            lines.note("link", t_ns, direction=direction, tx_bytes=moved)


def shown(journal: Path, console: Console, *, quiet: bool = False, name: str = "congestion") -> None:
    with Progress(make_plan(name, requests=1), console, journal, quiet=quiet) as progress:
        for line in LINES:
            progress.line(line)


@given(
    st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.booleans(), st.sampled_from([BLOCKS, LETTERS])
)
def test_a_sparkline_has_a_letter_for_each_value(values: list[float], from_zero: bool, letters: str) -> None:
    """The highest value has the highest letter, and a higher value never a lower one."""
    line = sparkline(values, letters, from_zero=from_zero)
    assert len(line) == len(values)
    if max(values) > min(values) or (from_zero and max(values) > 0):
        assert line[values.index(max(values))] == letters[-1]
    places = [letters.index(one) for one in line]
    by_value = [place for _, place in sorted(zip(values, places, strict=True))]
    assert by_value == sorted(by_value)


def test_goodput_and_threshold_are_the_journal_s_latest(tmp_path: Path) -> None:
    """Of each look one value, of which the latest are kept; a long line and a half one do no harm."""
    lately = Lately(tmp_path, blocks=True)
    lately.look()
    assert str(lately) == ""
    for step in range(STEPS + 5):
        control(tmp_path, step, 20_000 + step, 1e9 * step, seen="x" * (TAIL_BYTES // 2))
        lately.look()
    with (tmp_path / "router.jsonl").open("a") as file:
        file.write('{"kind":"control","threshold_tok')
    lately.look()
    first, second = str(lately).split("   ")
    assert (first[:8], first[-7:]) == ("goodput ", "28 Gbps")
    assert second.endswith("20,028 tokens")
    assert len(second.split(" ")[1]) == STEPS


def test_without_a_policy_the_link_s_own_counter_is_shown(tmp_path: Path) -> None:
    """What left the rate stage from A to B, between two looks."""
    lately = Lately(tmp_path, blocks=False)
    for second in range(3):
        link(tmp_path, second * 10**9, second * 10**9)
        lately.look()
    lately.look()
    assert str(lately) == "link A to B @@ 8 Gbps"


def test_once_there_is_a_goodput_nothing_else_is_shown_as_one(tmp_path: Path) -> None:
    """What the link carried before the first word of the router is forgotten then, and not asked again."""
    lately = Lately(tmp_path, blocks=False)
    for second in range(3):
        link(tmp_path, second * 10**9, second * 10**9)
        lately.look()
    control(tmp_path, 1, 19_400, 2e9)
    lately.look()
    (tmp_path / "router.jsonl").write_bytes(b"")
    link(tmp_path, 9 * 10**9, 10**12)
    lately.look()
    assert str(lately).startswith("goodput @ 2 Gbps   threshold")


def test_a_terminal_shows_bar_and_sparkline(tmp_path: Path) -> None:
    """Virtual time, goodput and threshold."""
    control(tmp_path, 1, 19_400, 8e9)
    output = Tty()
    shown(tmp_path, Console(file=output, force_terminal=True, width=100))
    assert "12 of 120 virtual s" in output.getvalue()
    assert "goodput \N{FULL BLOCK} 8 Gbps   threshold" in output.getvalue()


@pytest.mark.parametrize("name", ["CI", "NO_COLOR", "TERM"])
def test_where_no_control_characters_are_wanted_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With CI, NO_COLOR or a dumb terminal: stages as lines, and what the guest says without its own."""
    output = Tty()
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setenv(name, "dumb" if name == "TERM" else "1")
    shown(tmp_path, terminal())
    said = output.getvalue()
    assert "s  building network\n" in said
    assert "a kernel says" in said
    assert all(one.isprintable() or one == "\n" for one in said)


def test_no_terminal_has_no_control_characters(tmp_path: Path) -> None:
    """Into a file or a pipe go lines only."""
    output = io.StringIO()
    shown(tmp_path, Console(file=output), name="any[/b] name")
    assert output.getvalue().startswith("any[/b] name  seed 7")
    assert all(one.isprintable() or one == "\n" for one in output.getvalue())


def test_quiet_is_quiet(tmp_path: Path) -> None:
    """Nothing is shown before the verdict, on a terminal neither."""
    output = Tty()
    shown(tmp_path, Console(file=output, force_terminal=True), quiet=True)
    assert output.getvalue() == ""
