"""Comparing runs: which are found and refused, how it ends, what the page and the JSON file say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pytest

from testbed import expect, verdict
from testbed import tables as record
from testbed.command import run_command
from testbed.compare import overlay
from testbed.compare.__main__ import app
from testbed.plan import LinkState, Plan
from testbed.report.svg import Chart, Curve, TimeAxis, draw
from testbed.report.tables import DASH
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

SEEDS = range(1, 6)
WIDER = "--tolerance=1000%"


def judged(directory: Path, plan: Plan, *, reacts: bool = True, trust: tuple[str, ...] = ()) -> Path:
    """A run with its record and verdict."""
    run = write_run(directory, plan, reacts=reacts, tcp_lines=320)
    expect.judge(plan, record.build(run, plan), trust).write(run.verdict)
    shutil.rmtree(run.journal)
    return directory


def plan_of(seed: int, policy: str = "bandwidth_aware") -> Plan:
    """A plan whose policy may be another one, with the same requests for the same seed."""
    plan = make_plan(requests=100, seed=seed)
    return msgspec.structs.replace(plan, policy=msgspec.structs.replace(plan.policy, name=policy))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of a policy that reacts, and one of a policy that does not."""
    root = tmp_path_factory.mktemp("compare")
    for seed in SEEDS:
        judged(root / f"reacts/c-{seed}/c-{seed}", plan_of(seed))
        judged(root / f"static/c-{seed}/c-{seed}", plan_of(seed, "static_threshold"), reacts=False)
    (root / "static/c-1/latest").symlink_to("c-1")
    return root


Compare = Callable[..., tuple[int, str]]


@pytest.fixture
def compare(runs: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """The command on directories below `runs`; returns its exit code and all it says."""

    def run(first: str | Path, second: str | Path, *options: str) -> tuple[int, str]:
        where = () if "--out" in options else ("--no-report",)
        code = run_command(app, [str(runs / first), str(runs / second), *where, *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_a_run_beside_itself_is_identical(compare: Compare) -> None:
    """The same record is as good, and said to be the same."""
    code, said = compare("reacts/c-1/c-1", "reacts/c-1/c-1", "--tolerance", "0%")
    assert code == 0
    assert "IDENTICAL  the records are the same, row for row" in said
    assert "one run each: no interval" in said


def test_a_policy_that_stopped_reacting_is_worse(compare: Compare) -> None:
    """Whatever the tolerance, a reaction that never came is; decisions and plans say why."""
    code, said = compare("reacts/c-1/c-1", "static/c-1/c-1", WIDER)
    assert code == 1
    assert "policy.name is bandwidth_aware in the baseline, static_threshold in the candidate" in said
    row = next(line for line in said.splitlines() if "threshold follows the link" in line)
    assert [cell.strip() for cell in row.split("│")][2:7] == ["1.25 s", "never", DASH, DASH, "worse"]
    assert re.search(r"[1-9]\d* of 100 requests placed in another cluster", said)
    assert "first other threshold or roles: at 31.00 s: 21,500 tokens in the baseline" in said


def test_the_other_way_round_it_is_better(compare: Compare) -> None:
    """What never happened before, and does now, is no regression."""
    code, said = compare("static/c-1/c-1", "reacts/c-1/c-1", "--tolerance", "threshold follows the link=10%")
    assert code == 0
    assert "HOLDS" in said
    assert "better" in said


def test_seeds_are_paired_and_give_intervals(compare: Compare, tmp_path: Path) -> None:
    """Sweeps are found at their depth, and the JSON file has what the terminal shows."""
    out = tmp_path / "all.json"
    code, said = compare("reacts", "static", "--json", str(out), "--tolerance", "ttft_s.p90=1h")
    assert code == 0
    assert "5 pairs of runs: means, and 95 % intervals" in said
    found = json.loads(out.read_bytes())
    assert found["seeds"] == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert found["paired"]
    rows = {row["name"]: row for row in found["rows"]}
    ttft = rows["ttft_s.p90"]
    assert ttft["interval"]["low"] <= ttft["difference"] <= ttft["interval"]["high"]
    assert ttft["judged"] == "within"
    assert rows["ttft_s.p50"]["judged"] == "shown", "only what is named is judged"
    assert rows["threshold follows the link"]["never"] == [0, 5]
    assert len(found["parted"]) == 5


def test_only_common_seeds_are_compared(compare: Compare) -> None:
    """A run and a sweep have one seed in common; the rest is said to be left out."""
    code, said = compare("reacts/c-2", "reacts", "--tolerance", "0%")
    assert code == 0
    assert "only the candidate has seeds 1, 3, 4, 5" in said


def test_a_run_that_is_unknown_leaves_it_unknown(compare: Compare, tmp_path: Path) -> None:
    """Distrust comes before better and worse, and names the run."""
    bad = judged(tmp_path / "bad", plan_of(1), reacts=False, trust=("the link was slow",))
    code, said = compare("reacts/c-1", bad)
    assert code == 2
    assert "candidate, seed 1: UNKNOWN, the run cannot be trusted: 1 reason" in said


def test_runs_that_left_nothing_are_compared_without_a_traceback(compare: Compare, tmp_path: Path) -> None:
    """Empty tables, as of a guest that died at once: UNKNOWN, with a page."""
    run = RunDir(tmp_path / "dead")
    run.journal.mkdir(parents=True)
    plan = plan_of(1)
    plan.write(run.plan)
    tables = record.build(run, plan)
    expect.judge(plan, tables, expect.trust(run, tables, ())).write(run.verdict)
    code, said = compare(run.path, run.path, "--out", str(tmp_path / "page.html"))
    assert code == 2
    assert "UNKNOWN" in said
    code, said = compare("reacts/c-1", run.path, "--out", str(tmp_path / "page.html"))
    assert code == 2
    assert "not measured" in said


def test_a_value_that_nobody_measured_cannot_be_within_its_tolerance(compare: Compare) -> None:
    """A tolerance for bulk transfers in a run without any is not met in silence."""
    code, said = compare("reacts/c-1", "reacts/c-1", "--tolerance", "bulk.goodput_bps.min=5%")
    assert code == 2
    assert "bulk.goodput_bps.min was not measured on both sides" in said


def test_runs_without_record_or_verdict_are_not_relied_on(
    compare: Compare, runs: Path, tmp_path: Path
) -> None:
    """Each with what makes it again."""
    for name, gone in (("a", "verdict.json"), ("b", "record/links.parquet")):
        copy = shutil.copytree(runs / "reacts/c-1/c-1", tmp_path / name)
        (copy / gone).unlink()
        code, said = compare("reacts/c-1", copy)
        assert code == 2
        assert f"{copy / gone}" in said
        assert f"python -m testbed.report {copy}" in said


def test_what_is_no_run_is_refused(compare: Compare, tmp_path: Path) -> None:
    """Both sides at once, with what would be one."""
    (tmp_path / "empty").mkdir()
    code, said = compare(tmp_path / "none", tmp_path / "empty")
    assert code == 3
    assert f"{tmp_path / 'none'}: is not there" in said
    assert f"{tmp_path / 'empty'}: holds no run" in said
    (tmp_path / "empty/plan.json").write_text("{}")
    code, said = compare(tmp_path / "empty", tmp_path / "empty")
    assert code == 3
    assert "plan.json" in said


def test_sides_of_several_scenarios_or_of_a_seed_twice_are_refused(
    compare: Compare, runs: Path, tmp_path: Path
) -> None:
    """A mean over different things says nothing."""
    side = tmp_path / "side"
    shutil.copytree(runs / "reacts/c-1/c-1", side / "one")
    shutil.copytree(runs / "reacts/c-1/c-1", side / "two")
    code, said = compare("reacts", side)
    assert code == 3
    assert "holds seed 1 twice" in said
    plan = msgspec.structs.replace(plan_of(1), name="other")
    plan.write(side / "two/plan.json")
    code, said = compare("reacts", side)
    assert code == 3
    assert "holds runs of 2 scenarios: congestion, other" in said


def test_other_worlds_are_refused_unless_asked_for(compare: Compare, runs: Path, tmp_path: Path) -> None:
    """Another link is named value by value; `--anyway` compares it nonetheless, and says so."""
    plan = plan_of(1)
    slow: LinkState = msgspec.structs.replace(plan.link["b_to_a"], rate_bps=10**9)
    other = shutil.copytree(runs / "reacts/c-1/c-1", tmp_path / "slow")
    msgspec.structs.replace(plan, link={**plan.link, "b_to_a": slow}).write(other / "plan.json")
    code, said = compare("reacts/c-1", other)
    assert code == 3
    assert "link.b_to_a.rate_bps: is 100 Gbps in the baseline, 1 Gbps in the candidate" in said
    code, said = compare("reacts/c-1", other, "--anyway")
    assert code == 0
    assert "link.b_to_a.rate_bps is 100 Gbps in the baseline" in said


def test_other_seeds_are_compared_unpaired_when_asked_for(compare: Compare) -> None:
    """Without a common seed there are no pairs, and no decisions in common."""
    code, said = compare("reacts/c-1", "reacts/c-2", WIDER)
    assert code == 3
    assert "no seed is on both sides: seed 1 there, seed 2 here" in said
    code, said = compare("reacts/c-1", "reacts/c-2", WIDER, "--anyway")
    assert code in (0, 1)
    assert "placed in another cluster" not in said


def test_bad_options_are_refused(compare: Compare, tmp_path: Path) -> None:
    """Tolerances that are none, files that cannot be written."""
    assert compare("reacts/c-1", "reacts/c-1", "--tolerance", "lots")[0] == 3
    code, said = compare("reacts/c-1", "reacts/c-1", "--json", str(tmp_path / "no/where.json"))
    assert code == 3
    assert "cannot be written" in said


@pytest.mark.parametrize("pair", [("reacts/c-1", "static/c-1"), ("reacts", "static")], ids=["one", "many"])
def test_the_page_has_both_sides(compare: Compare, pair: tuple[str, str], tmp_path: Path) -> None:
    """Self-contained, with two curves a chart, or two medians and bands, the events, and both verdicts."""
    out = tmp_path / "page.html"
    code, _ = compare(*pair, "--out", str(out))
    assert code == 1
    text = out.read_text(encoding="utf-8")
    links = re.findall(r"https?://[^\"'\s<]*|@import|url\((?!#)|\ssrc=|\shref=", text)
    assert set(links) == {"http://www.w3.org/2000/svg"}, "an identifier, never fetched"
    charts = re.findall(r'<svg [^>]*role="img"[^>]*aria-label="([^"]+)"', text)
    assert len(charts) == sum(len(signals) for _, _, signals in overlay.PANELS)
    many = pair == ("reacts", "static")
    for name in ("baseline", "candidate"):
        label = f"{name}, median" if many else name
        assert all(f"{label} from" in chart for chart in charts if not chart.startswith("Capacity")), label
        assert (f"{name}, P10 to P90" in text) == many
    assert "trouble</text>" in text
    assert "threshold follows the link" in text
    assert "WORSE" in text


def test_the_page_lies_beside_the_candidate(runs: Path, tmp_path: Path) -> None:
    """Unless it is told where to go."""
    copy = shutil.copytree(runs / "reacts/c-1/c-1", tmp_path / "run")
    assert run_command(app, [str(runs / "reacts/c-1"), str(copy)]) == 0
    assert (copy / "compare.html").is_file()


def test_bands_are_filled_between_their_edges() -> None:
    """Up along one edge and back along the other; a break ends one shape and begins another."""
    band = Curve("b", "blue", "band", (0, 1, 2, 3, 4), (2, 4, None, 2, 2), lows=(1, 1, None, 0, 1))
    drawn = draw(Chart("c", "s", 100, (band,)), TimeAxis(0, 4), "i", names=False, times=False, alt="")
    path = re.search(r'<path d="([^"]+)" class="filled"', drawn)
    assert path is not None
    shapes = path[1].split("Z")[:-1]
    assert [len(re.findall(r"[ML]", shape)) for shape in shapes] == [4, 4]


@pytest.mark.parametrize("differs", [False, True])
def test_a_capacity_that_differs_is_shown_of_both_sides(tmp_path: Path, differs: bool) -> None:
    """Else throughput would stand beside what a link of the other run could carry."""
    plan = plan_of(1)
    tables = record.build(write_run(tmp_path, plan, tcp_lines=320), plan)
    first = overlay.draw(plan, tables)
    links = tables["links"].with_columns(pl.col("rate_bps") // 10) if differs else tables["links"]
    second = overlay.draw(plan, {**tables, "links": links})
    shown = overlay.figures(([first], [second]), overlay.shared_axis([first, second]))
    (link,) = (chart for one in shown for chart in one.charts if chart.title == "Link A → B, mean of 1 s")
    found = [curve.label for curve in link.curves if curve.label.startswith("capacity")]
    assert found == (["capacity, candidate", "capacity, baseline"] if differs else ["capacity"])


def test_verdicts_of_this_version_are_read(runs: Path) -> None:
    """The synthetic runs are what they are taken for."""
    assert verdict.Verdict.read(runs / "reacts/c-1/c-1/verdict.json").status == "PASS"
    assert verdict.Verdict.read(runs / "static/c-1/c-1/verdict.json").status == "FAIL"
