"""The paper's experiments: the oracle against the paper's numbers, rows from runs, and the command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest

from testbed import record
from testbed.command import run_command
from testbed.errors import RunError
from testbed.paper import __main__ as command
from testbed.paper import runs, table6, wan
from testbed.paper.printed import LINKS_GBPS, TABLE_6
from testbed.paper.runs import Done, Wanted
from testbed.verdict import Status, Verdict

ROOT = Path(__file__).parents[2]
EMPTY = {name: pl.DataFrame(schema=schema) for name, schema in record.TABLES.items()}
Tables = dict[str, pl.DataFrame]


@pytest.mark.parametrize(
    ("gbps", "loop", "tokens", "n_p", "per_s"),
    [
        (12, "both", 19_600, 3, 3.20),
        (10, "both", 25_000, 4, 3.03),
        (8, "both", 28_500, 4, 2.63),
        (5, "both", 41_500, 5, 2.24),
        (2, "both", 65_000, 5, 1.60),
        (1, "both", 97_000, 6, 1.56),
        (12, "short", 19_600, 3, 3.20),
        (10, "short", 21_600, 3, 2.80),
        (8, "short", 24_400, 3, 2.38),
        (5, "short", 31_400, 3, 1.76),
        (2, "short", 51_200, 3, 1.13),
        (1, "short", 70_000, 3, 0.92),
    ],
)
def test_the_oracle_is_what_the_paper_s_model_gives(
    gbps: float, loop: wan.Loop, tokens: int, n_p: int, per_s: float
) -> None:
    """Roles exactly, requests/s within 1.5 %, the threshold within 3 % or where another one does as well."""
    oracle = wan.oracle(gbps, loop)
    assert oracle.n_p == n_p
    assert oracle.lambda_max == pytest.approx(per_s, rel=0.015)
    near = oracle.threshold_tokens == pytest.approx(tokens, rel=0.03)
    assert near or oracle.least_tokens <= tokens <= oracle.most_tokens
    assert 0.95 * oracle.lambda_max < oracle.true_lambda_max <= 1.001 * oracle.lambda_max


def test_the_oracle_is_worth_more_than_the_fixed_threshold() -> None:
    """Behind every link that binds, and with both loops more than with one."""
    for gbps in LINKS_GBPS[1:]:
        short, both = wan.oracle(gbps, "short"), wan.oracle(gbps, "both")
        assert wan.fixed_lambda(gbps) < 1.02 * short.true_lambda_max <= 1.02 * both.true_lambda_max
    assert wan.fixed_lambda(5) < 0.8 * wan.oracle(5, "short").true_lambda_max


def test_the_runs_of_the_links_say_what_each_one_changes() -> None:
    """Two for each link, under names that tell them apart; the load is a little more than the best can do."""
    wanted = wan.wanted(Path("scenarios/paper"), (5, 1))
    assert [one.name for one in wanted] == ["5gbps-short", "5gbps-both", "1gbps-short", "1gbps-both"]
    best = wan.oracle(5, "both").true_lambda_max
    assert set(wanted[1].overrides) == {
        "link.a_to_b.rate=5gbit",
        "policy.name=prfaas",
        f"workload.rate={1.08 * best:.3f}/s",
        "expect=[]",
    }
    assert wanted[0].overrides[1] == "policy.name=bandwidth_aware"
    assert wanted[0].scenario == Path("scenarios/paper/wan.yaml")


def controls(values: list[tuple[float, int, int]]) -> pl.DataFrame:
    """Threshold and prefill instances every 250 ms, taking the given values from the given times on."""
    rows = []
    for step in range(2400):
        t_s = step / 4
        _, tokens, n_p = max(one for one in values if one[0] <= t_s)
        rows.append({"t_s": t_s, "kind": "control", "threshold_tokens": tokens, "n_prefill": n_p})
    return pl.DataFrame(rows, schema=record.TABLES["decisions"])


def wan_run(per_s: float, values: list[tuple[float, int, int]]) -> Tables:
    """A run that completes so many requests per second, evenly, and decides as given."""
    ends = [{"state": "completed", "end_s": number / per_s} for number in range(int(600 * per_s))]
    requests = pl.DataFrame(ends, schema=record.TABLES["requests"])
    return {**EMPTY, "requests": requests, "decisions": controls(values)}


def test_what_a_run_came_to() -> None:
    """The medians of its last third, what it completed there, and since when it stayed near."""
    found = wan.found(wan_run(2.0, [(0, 19_400, 3), (50, 31_000, 4), (150, 41_000, 5), (500, 42_000, 5)]))
    assert (found.threshold_tokens, found.n_p, found.throughput_per_s) == (41_500, 5, 2.0)
    assert found.settled_s == pytest.approx(149.75)
    restless = wan.found(wan_run(2.0, [(0, 41_000, 5), (450, 41_000, 4), (460, 41_000, 5), (580, 60_000, 5)]))
    assert (restless.threshold_tokens, restless.n_p) == (41_000, 5)
    assert restless.settled_s == 599.75
    roles = wan.found(wan_run(2.0, [(0, 41_000, 3), (300, 41_000, 5)]))
    assert roles.settled_s == 299.75
    calm = wan.found(wan_run(2.0, [(0, 41_000, 5)]))
    assert calm.settled_s == 0.0


@pytest.mark.parametrize(
    ("tokens", "share", "holds"),
    [
        (41_800, 1.0, (True, True)),
        (37_400, 0.951, (True, True)),
        (36_900, 1.0, (False, True)),
        (46_500, 1.0, (False, True)),
        (41_800, 0.949, (True, False)),
    ],
)
def test_a_row_holds_within_its_tolerances(tokens: float, share: float, holds: tuple[bool, bool]) -> None:
    """10 % of the threshold, 5 % of what the oracle's choice sustains."""
    oracle = wan.Oracle(41_800, 5, 2.24, 2.23, 41_500, 42_000)
    row = wan.Row(5, "both", oracle, wan.Found(tokens, 5, share * 2.23, 100.0))
    assert (row.threshold_holds, row.throughput_holds) == holds


def test_a_threshold_on_the_plateau_holds() -> None:
    """Where decode limits, many thresholds are the best one."""
    oracle = wan.Oracle(89_400, 6, 1.5625, 1.5625, 88_000, 99_500)
    for tokens, holds in ((79_300, True), (79_100, False), (109_400, True), (109_500, False)):
        assert wan.Row(1, "both", oracle, wan.Found(tokens, 6, 1.5, 0.0)).threshold_holds is holds


def table6_run(long_per_s: float, short_per_s: float, gbps: float) -> Tables:
    """An over-loaded run: so many requests per second of each kind from 0 to 300 s, and the link's use."""
    rows = [
        {
            "arrival_s": at_s, "prefill_end_s": at_s, "end_s": at_s, "state": "completed", "route": route,
            "input_tokens": tokens,
        }
        for route, per_s, tokens in (("prfaas", long_per_s, 45_000), ("pd", short_per_s, 8_000))
        for at_s in (number / per_s for number in range(int(300 * per_s)))
    ]  # fmt: skip
    samples = [
        {"t_s": float(t_s), "direction": "a_to_b", "throughput_bps": gbps * 1e8, "rate_bps": 10**10}
        for t_s in range(300)
    ]
    return {
        **EMPTY,
        "requests": pl.DataFrame(rows, schema=record.TABLES["requests"]),
        "links": pl.DataFrame(samples, schema=record.TABLES["links"]),
    }


def table6_runs(homogeneous_per_s: float = 2.0) -> dict[str, Tables]:
    """Runs at a tenth of the scale for all three deployments, by their scenario's file."""
    prfaas, homogeneous, naive = (column.scenario for column in TABLE_6)
    return {
        prfaas: table6_run(1.5, 1.5, 12.0),
        homogeneous: table6_run(0.0, homogeneous_per_s, 0.0) if homogeneous_per_s else {},
        naive: table6_run(2.3, 0.0, 15.0),
    }


def test_table_6_has_printed_model_and_emulated_numbers() -> None:
    """Each quantity of each deployment, where it is printed, limiting or there at all."""
    rows = {(row.deployment, row.quantity): row for row in table6.rows(table6_runs())}
    prfaas, homogeneous, naive = (column.title for column in TABLE_6)
    theta = rows[prfaas, "theta PrfaaS, requests/s"]
    assert theta.printed == 1.61
    assert theta.emulated == pytest.approx(1.5, rel=0.01)
    assert theta.time_of_mean == pytest.approx(1.61, rel=0.03)
    assert theta.mean_of_times is not None
    assert theta.time_of_mean is not None
    assert theta.mean_of_times < theta.time_of_mean
    whole = rows[prfaas, "lambda max, requests/s"]
    assert whole.printed == 3.24
    assert whole.emulated == pytest.approx(3.0, rel=0.01)
    assert whole.time_of_mean == pytest.approx(3.24, rel=0.02)
    assert rows[prfaas, "ratio to homogeneous"].emulated == pytest.approx(1.5, rel=0.02)
    assert rows[prfaas, "offloaded share"].emulated == pytest.approx(0.5, abs=0.005)
    assert rows[prfaas, "offloaded share"].time_of_mean == pytest.approx(0.496, abs=0.005)
    assert rows[prfaas, "mean offloaded tokens"].emulated == 45_000
    egress = rows[prfaas, "egress, Gbps"]
    assert egress.printed == 13.0
    assert egress.emulated == pytest.approx(12.0), "the share of 100 Gbps"
    assert egress.time_of_mean == pytest.approx(12.0, rel=0.02)
    assert (homogeneous, "theta PrfaaS, requests/s") not in rows
    assert rows[homogeneous, "ratio to homogeneous"].emulated == 1.0
    assert (naive, "theta PD-P, requests/s") not in rows
    assert rows[naive, "lambda max, requests/s"].mean_of_times == pytest.approx(2.33, rel=0.02)
    assert all(row.emulated is None for row in rows.values() if row.quantity.startswith("theta PD-D"))


def test_ratios_are_checked_against_what_is_asked() -> None:
    """1.45 times the homogeneous deployment, 1.25 times the naive one."""
    good = table6.checks(table6_runs())
    assert [(round(one.measured, 1), one.least, one.holds) for one in good] == [
        (1.5, 1.45, True),
        (1.3, 1.25, True),
    ]
    assert [one.holds for one in table6.checks(table6_runs(2.2))] == [False, True]


def pretend(monkeypatch: pytest.MonkeyPatch, tables: dict[str, Tables], status: Status = "PASS") -> None:
    """Let the command have these tables instead of running anything."""

    def run_all(wanted: Sequence[Wanted], out: Path, _jobs: int) -> Iterator[Done]:
        for one in wanted:
            verdict = Verdict(status=status, results=(), trust=(), note="as told")
            yield Done(one.name, out / one.name, verdict, tables[one.name])

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "run_all", run_all)


def table6_by_name(homogeneous_per_s: float = 2.0) -> dict[str, Tables]:
    return {Path(name).stem: tables for name, tables in table6_runs(homogeneous_per_s).items()}


PAGE = """# Results

before
<!-- table6 -->
stale
<!-- end of table6 -->
between
<!-- wan -->
older
<!-- end of wan -->
after
"""


def test_the_tables_replace_what_stood_between_their_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each its own, as often as asked, and nothing else of the page changes."""
    page = tmp_path / "paper.md"
    page.write_text(PAGE, encoding="utf-8")
    pretend(monkeypatch, table6_by_name())
    assert run_command(command.app, ["table6", "--write", str(page)]) == 0
    first = page.read_text(encoding="utf-8")
    assert run_command(command.app, ["table6", "--write", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == first
    before, rest = first.split("<!-- table6 -->")
    table, after = rest.split("<!-- end of table6 -->")
    assert f"{before}<!-- table6 -->\nstale\n<!-- end of table6 -->{after}" == PAGE
    assert "stale" not in table
    (best,) = [
        line for line in table.splitlines() if line.startswith("| PrfaaS-PD | lambda max, requests/s ")
    ]
    assert re.search(r" \| 3\.24 \| 3\.\d\d \| 3\.1\d \| 3\.00 \|$", best)
    assert "| homogeneous PD | ratio to homogeneous | 1.00 | 1.00 | 1.00 | 1.00 |" in table
    assert "PrfaaS-PD to homogeneous PD: 1.500 times, at least 1.45: holds" in table
    assert all(path.name == "paper.md" for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("homogeneous_per_s", "status", "code"),
    [(2.0, "PASS", 0), (2.2, "PASS", 1), (2.0, "FAIL", 1), (2.0, "UNKNOWN", 2), (2.2, "UNKNOWN", 2)],
)
def test_the_code_of_table_6(
    monkeypatch: pytest.MonkeyPatch, homogeneous_per_s: float, status: Status, code: int
) -> None:
    """1 when a ratio or a verdict fails; 2 when a run cannot be trusted, whatever else."""
    pretend(monkeypatch, table6_by_name(homogeneous_per_s), status)
    assert run_command(command.app, ["table6"]) == code


@pytest.mark.parametrize(("tokens", "code"), [(41_500, 0), (30_000, 1)])
def test_the_links_that_were_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tokens: int,
    code: int,
) -> None:
    """One row for each loop, with what holds; the code says whether all do."""
    page = tmp_path / "paper.md"
    page.write_text(PAGE, encoding="utf-8")
    short = wan_run(1.75, [(0, 31_500, 3)])
    pretend(
        monkeypatch, {"5gbps-short": short, "5gbps-both": wan_run(2.2, [(0, 19_400, 3), (90, tokens, 5)])}
    )
    assert run_command(command.app, ["wan", "--link", "5", "--write", str(page)]) == code
    text = page.read_text(encoding="utf-8")
    assert "| 5, short | 31,700, 3 | 1.75 / 1.75 | 31,500, 3 | 1.75 | 0 s | yes |" in text
    assert f"| {tokens:,}, 5 |" in text
    assert text.count("| yes |") == 2 - code
    assert text.count("| not the threshold |") == code
    assert "stale\n" in text
    assert "A fixed threshold of 19,400 sustains 1.31 at 5 Gbps." in text
    assert "as told" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "<!-- wan -->\n", "no marks"])
def test_a_page_without_a_place_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    """No file, half a mark, no mark: exit code 3, with what is missing."""
    page = tmp_path / "paper.md"
    if text is not None:
        page.write_text(text, encoding="utf-8")
    pretend(monkeypatch, {})
    assert run_command(command.app, ["wan", "--write", str(page)]) == 3
    assert "<!-- end of wan -->" in capsys.readouterr().err


def test_elsewhere_the_scenarios_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands are for the project's own directory."""
    monkeypatch.chdir(tmp_path)
    assert run_command(command.app, ["table6"]) == 3
    assert "scenarios/paper/table6_prfaas.yaml: is not there" in capsys.readouterr().err


def test_a_run_that_leaves_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said is passed on, with its exit code."""
    said: list[list[str]] = []

    def ended(command_line: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        said.append(command_line)
        return subprocess.CompletedProcess(command_line, 3, "", "x.yaml:1: is no scenario\n")

    monkeypatch.setattr(subprocess, "run", ended)
    wanted = Wanted("one", Path("x.yaml"), ("seed=2", "expect=[]"))
    with pytest.raises(
        RunError, match=r"x\.yaml: left no verdict \(exit code 3\): x\.yaml:1: is no scenario"
    ):
        list(runs.run_all([wanted], tmp_path, 1))
    assert said[0][:3] == [sys.executable, "-m", "testbed.run"]
    assert said[0][-4:] == ["--set", "seed=2", "--set", "expect=[]"]
