"""A sweep file from its text to results: what is refused, what runs, what is kept, what is said and drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from testbed.command import run_command
from testbed.errors import RunError, ScenarioError
from testbed.plan import Plan
from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted
from testbed.sweep import __main__ as entry
from testbed.sweep import cache, command
from testbed.sweep.command import checked_file
from testbed.sweep.file import Measured, Range, Search, SweepFile, is_sweep_file
from testbed.sweep.point import Resolved
from testbed.verdict import Result, Status, conclude
from tests.unit.test_report import Outline

ROOT = Path(__file__).parents[2]
BAD = sorted((ROOT / "tests/bad_sweeps").glob("*.yaml"))
SHIPPED = sorted(path for path in (ROOT / "scenarios").rglob("*.yaml") if is_sweep_file(path))
Decides = Callable[[Plan], Status]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_sweeps_say_exactly_this(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong sweep file is refused with exactly the message beside it, before anything runs."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(ScenarioError) as caught:
        checked_file(path.relative_to(ROOT), (), (), tmp_path)
    assert path.with_suffix(".txt").read_text() == f"{caught.value}\n"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_our_sweeps_resolve(path: Path, tmp_path: Path) -> None:
    """Every point of those we ship makes a plan of its own."""
    _, jobs = checked_file(path, (), (), tmp_path)
    assert (
        len({job.run.digest for job in jobs})
        == len(jobs)
        == {"capacity.sweep": 24, "paper_limit": 2}[path.stem]
    )


def test_the_page_on_sweeps_names_every_field() -> None:
    """docs/sweeps.md leaves no key out."""
    page = (ROOT / "docs/sweeps.md").read_text()
    keys = {key for section in (SweepFile, Range, Measured, Search) for key in section.yaml_keys()}
    assert not {key for key in keys if not re.search(rf"[`\s{{]{key}[:`]", page)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with a scenario, on a machine that has a kernel."""
    (tmp_path / "full_rate.yaml").write_bytes((ROOT / "scenarios/full_rate.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "place", lambda *_: None)
    return tmp_path


def left(one: Wanted, out: Path, decides: Decides) -> Ended:
    """What a run leaves that measured its own capacity."""
    assert isinstance(one, Resolved)
    plan = Plan.read(one.place / "plan.json")
    run = RunDir(out / one.name / "run")
    run.journal.mkdir(parents=True)
    (run.journal / "client.jsonl").touch()
    status = decides(plan)
    results = tuple(
        Result(
            name=each.name, kind=each.kind, metric=each.metric, status="PASS" if number else status,
            measured=float(plan.link["a_to_b"].rate_bps + plan.seed), unit="bps", bound="", margin=0.0,
            sentence=f"it was <{status}>",
        )
        for number, each in enumerate(plan.expectations)
    )  # fmt: skip
    verdict = conclude(results, ())
    plan.write(run.plan)
    verdict.write(run.verdict)
    run.manifest.write_text(json.dumps({"record_digest": f"d{plan.seed}", "virtual_s": 5.0, "wall_s": 2.5}))
    return Ended(one, run.path, verdict, verdict.exit_code, "")


def pretend(
    monkeypatch: pytest.MonkeyPatch, decides: Decides, *, breaks_off_after: int | None = None
) -> list[str]:
    """Let that happen instead of runs; the names of those that have begun."""
    began: list[str] = []

    def run_all(wanted: Sequence[Wanted], out: Path, jobs: int) -> Iterator[Ended]:
        assert jobs >= 1
        for one in wanted:
            if len(began) == breaks_off_after:
                raise KeyboardInterrupt
            began.append(" ".join((*one.overrides, f"seed {one.seed}")))
            yield left(one, out, decides)

    monkeypatch.setattr(command, "run_all", run_all)
    return began


def below_8gbit_fails(plan: Plan) -> Status:
    return "PASS" if plan.link["a_to_b"].rate_bps >= 8_000_000_000 else "FAIL"


GRID = """sweep: full_rate.yaml
question: Does <it> hold?
parameters:
  link.a_to_b.rate: [4gbit, 8gbit, 16gbit]
  link.a_to_b.buffer: [1ms, 10ms]
  link.mtu: 1500
seeds: 1-2
"""
SEARCH = """sweep: full_rate.yaml
question: Where does it fail?
search: {parameter: link.a_to_b.rate, from: 1gbit, to: 64gbit, tolerance: 5%}
seeds: 1-2
"""
run = partial(run_command, entry.app)


def test_a_grid_is_run_seed_by_seed_and_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each point and seed, in order; failures are data, so the code is 0."""
    (here / "x.yaml").write_text(GRID)
    began = pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml", "--set", "link.b_to_a.rate=9gbit"]) == 0
    assert len(began) == 12
    assert began[0] == (
        "link.b_to_a.rate=9gbit link.a_to_b.rate=4gbit link.a_to_b.buffer=1ms link.mtu=1500 seed 1"
    )
    assert [line.rpartition(" ")[2] for line in began] == ["1"] * 6 + ["2"] * 6
    said = capsys.readouterr().out
    assert "x.yaml: 6 points, 12 runs, 0 of them done before" in said
    assert ": 8 PASS, 4 FAIL, 0 UNKNOWN" in said
    table = pl.read_parquet(here / "runs/sweep/x/results.parquet")
    assert table["link.a_to_b.rate.bps"].to_list() == [4e9, 4e9, 8e9, 8e9, 16e9, 16e9] * 2
    assert table["status"].to_list() == (["FAIL"] * 2 + ["PASS"] * 4) * 2
    assert table["bulk.steady_goodput_bps at least 96gbit"].to_list()[:3] == [4e9 + 1, 4e9 + 1, 8e9 + 1]
    assert table["command"][0].startswith("python -m testbed.run full_rate.yaml --seed 1 --set link.b_to_a")


def test_the_page_has_a_map_with_every_verdict(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parameters span it; whatever was written is text, and nothing is fetched."""
    (here / "x.yaml").write_text(GRID)
    pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml"]) == 0
    outline = Outline((here / "runs/sweep/x/sweep.html").read_text())
    assert outline.tags.count("table") == 2 + 2  # a map for each expectation, failures, all runs
    for text in ("Does <it> hold?", "4gbit", "✗ FAIL 2/2", "✓ PASS 2/2", "it was <FAIL>", "8 PASS, 4 FAIL"):
        assert text in outline.text
    assert [value for name, value in outline.attributes if name in ("src", "href")] == []


@pytest.mark.parametrize(
    ("parameters", "charts", "maps"),
    [
        ("{link.a_to_b.rate: [4gbit, 8gbit, 16gbit]}", 2, 0),
        ("{link.a_to_b.rate: [4gbit, 8gbit], link.mtu: [1500, 9000], scale: [0.1, 0.2, 0.3]}", 0, 4),
        (
            "{link.a_to_b.rate: {from: 4gbit, to: 9gbit, spacing: log}, link.mtu: [1500, 9000]}\nsample: 5",
            4,
            0,
        ),
        ("{link.a_to_b.queue: [{kind: codel}, {kind: fq_codel}]}", 2, 0),
    ],
)
def test_what_varies_decides_what_is_drawn(
    here: Path, monkeypatch: pytest.MonkeyPatch, parameters: str, charts: int, maps: int
) -> None:
    """One parameter is a curve, three are small maps, ranges are dots over each."""
    (here / "x.yaml").write_text(
        f"sweep: full_rate.yaml\nquestion: What is drawn?\nparameters: {parameters}\nseeds: 1-3\n"
    )
    pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml"]) == 0
    outline = Outline((here / "runs/sweep/x/sweep.html").read_text())
    assert outline.tags.count("svg") == charts
    assert outline.attributes.count(("class", "heat")) == maps


def test_only_what_is_missing_runs_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After Ctrl-C, and after more seeds; the results are those of one go."""
    (here / "x.yaml").write_text(GRID)
    first = pretend(monkeypatch, below_8gbit_fails, breaks_off_after=5)
    assert run(["x.yaml"]) == 2
    assert "5 runs were made, and are kept" in capsys.readouterr().out
    assert pl.read_parquet(here / "runs/sweep/x/results.parquet").height == 5
    rest = pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml"]) == 0
    assert (len(first), len(rest), set(first) & set(rest)) == (5, 7, set())
    more = pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml", "--seeds", "1-3"]) == 0
    assert [line.rpartition(" ")[2] for line in more] == ["3"] * 6
    pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml", "--out", "other"]) == 0
    at_once = pl.read_parquet(here / "other/results.parquet")
    assert run(["x.yaml"]) == 0
    assert pl.read_parquet(here / "runs/sweep/x/results.parquet").equals(at_once)


@pytest.mark.parametrize("text", [GRID, SEARCH])
def test_a_sweep_broken_off_at_once_has_a_page(
    here: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """With nothing in it yet; code 2."""
    (here / "x.yaml").write_text(text)
    pretend(monkeypatch, below_8gbit_fails, breaks_off_after=0)
    assert run(["x.yaml"]) == 2
    assert "broken off after 0 runs" in Outline((here / "runs/sweep/x/sweep.html").read_text()).text
    assert pl.read_parquet(here / "runs/sweep/x/results.parquet").is_empty()


def test_a_run_that_leaves_nothing_is_a_hole(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """UNKNOWN, with what it said; all others are run."""
    (here / "x.yaml").write_text(GRID)

    def run_all(wanted: Sequence[Wanted], out: Path, jobs: int) -> Iterator[Ended]:
        assert jobs
        for number, one in enumerate(wanted):
            yield Ended(one, None, None, 4, "no memory") if number == 3 else left(one, out, lambda _: "PASS")

    monkeypatch.setattr(command, "run_all", run_all)
    assert run(["x.yaml", "--seeds", "1"]) == 2
    said = capsys.readouterr().out
    assert "UNKNOWN full_rate.yaml seed 1: left no verdict (exit code 4): no memory" in said
    assert ": 5 PASS, 0 FAIL, 1 UNKNOWN" in said
    assert "? UNKNOWN" in Outline((here / "runs/sweep/x/sweep.html").read_text()).text


def test_half_a_result_is_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill leaves: drafts, run directories, a damaged row; it is removed, and run again."""
    (here / "x.yaml").write_text(GRID)
    pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml", "--seeds", "1"]) == 0
    out = here / "runs/sweep/x"
    kept = sorted((out / "points").iterdir())
    (kept[0] / "row.json").write_text('{"scenario":')
    (kept[1] / "row.json").unlink()
    kept[2].rename(out / "points/draft-x")
    (out / "work-x/some/run").mkdir(parents=True)
    again = pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml", "--seeds", "1"]) == 0
    assert len(again) == 3
    assert sorted((out / "points").iterdir()) == kept
    assert [path.name for path in out.glob("work-*")] == []
    assert not any((place / "run/journal").exists() for place in kept)


@pytest.mark.parametrize(("later", "code"), [("PASS", 0), ("UNKNOWN", 2)])
def test_what_could_not_be_trusted_is_run_again(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    later: Status,
    code: int,
) -> None:
    """UNKNOWN is kept with all it left, listed with what repeats it, and tried by the next call; not FAIL."""
    (here / "x.yaml").write_text(GRID)

    def decides(plan: Plan) -> Status:
        return "UNKNOWN" if plan.link["a_to_b"].rate_bps > 8e9 and plan.seed == 2 else "FAIL"

    pretend(monkeypatch, decides)
    arguments = ["x.yaml", "--set", "link.a_to_b.delay=1ms"]
    assert run(arguments) == 2
    said = capsys.readouterr().out
    assert said.count("UNKNOWN full_rate.yaml seed 2: it was <UNKNOWN>") == 2
    assert said.count("        python -m testbed.run full_rate.yaml --seed 2") == 2
    table = pl.read_parquet(here / "runs/sweep/x/results.parquet")
    assert (
        table.filter(pl.col("status") == "UNKNOWN")["bulk.steady_goodput_bps at least 96gbit"].is_null().all()
    )
    assert len(list((here / "runs/sweep/x/points").glob("*/run/journal"))) == 2
    began = pretend(monkeypatch, lambda _: later)
    assert run(arguments) == code
    assert len(began) == 2


def test_a_search_tells_its_boundary(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: code 0; both sides, every value that was tried, and a second call that runs nothing."""
    (here / "x.yaml").write_text(SEARCH)
    pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml"]) == 0
    said = capsys.readouterr().out
    assert "the verdict PASS holds at link.a_to_b.rate 8gbit and fails at 7.74425gbit, 3.3 % apart" in said
    assert "link.a_to_b.rate 1gbit: fails (seed 1 FAIL, seed 2 FAIL)" in said
    began = pretend(monkeypatch, below_8gbit_fails)
    assert run(["x.yaml"]) == 0
    assert began == []
    boundary = json.loads((here / "runs/sweep/x/boundary.json").read_bytes())
    assert (boundary["status"], boundary["holds"], boundary["fails"]) == ("found", 8e9, 7744250000)
    outline = Outline((here / "runs/sweep/x/sweep.html").read_text())
    assert "The search" in outline.text
    assert outline.tags.count("svg") == 2


@pytest.mark.parametrize(
    ("always", "says"),
    [
        ("FAIL", "no boundary: the verdict PASS fails at both ends, at link.a_to_b.rate 1gbit and at 64gbit"),
        ("PASS", "no boundary: the verdict PASS holds at both ends"),
        ("UNKNOWN", "cannot be told at link.a_to_b.rate 1gbit"),
    ],
)
def test_a_search_without_a_boundary_says_so(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    always: Status,
    says: str,
) -> None:
    """Code 1 when both ends are alike, 2 when one of them is unknown; nothing between them is run."""
    (here / "x.yaml").write_text(SEARCH)
    began = pretend(monkeypatch, lambda _: always)
    assert run(["x.yaml"]) == (2 if always == "UNKNOWN" else 1)
    assert says in capsys.readouterr().out
    assert len(began) == 4


def test_a_search_may_ask_for_one_expectation(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one that fails everywhere is no matter; most of the seeds may be enough."""
    (here / "x.yaml").write_text(
        SEARCH.replace("5%", "5%, agree: majority, expectation: bulk.steady_goodput_bps").replace(
            "1-2", "1-3"
        )
    )
    pretend(monkeypatch, lambda plan: "PASS" if plan.seed == 3 else below_8gbit_fails(plan))
    assert run(["x.yaml"]) == 0
    assert json.loads((here / "runs/sweep/x/boundary.json").read_bytes())["holds"] == 8e9


def test_two_sweeps_do_not_share_a_directory(here: Path) -> None:
    """The second is refused while the first goes on."""
    busy = pytest.raises(RunError, match="another sweep is writing here")
    with cache.opened(here / "out"), busy, cache.opened(here / "out"):
        raise AssertionError
    with cache.opened(here / "out"):
        pass


def test_options_and_paths_that_do_not_fit_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 3, all at once, and nothing is made."""
    (here / "x.yaml").write_text(GRID)
    began = pretend(monkeypatch, below_8gbit_fails)
    for arguments, says in (
        (["x.yaml", "--keep", "all", "--report"], ("--keep: is for scenarios", "--report: is for scenarios")),
        (["x.yaml", "full_rate.yaml"], ("x.yaml: is a sweep file, beside other paths",)),
        (["full_rate.yaml", "--engine", "ray"], ("--engine ray: is for sweep files",)),
        (["x.yaml", "--seeds", "5-1"], ("--seeds 5-1: 5-1 runs backwards",)),
        (["x.yaml", "--set", "link.mtu"], ("--set link.mtu: is no override",)),
    ):
        assert run(arguments) == 3
        said = capsys.readouterr().err
        assert [said.count(one) for one in says] == [1] * len(says)
    assert (began, (here / "runs").exists()) == ([], False)


def test_without_ray_the_engine_says_how_to_get_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 4, before anything runs."""
    (here / "x.yaml").write_text(GRID)
    monkeypatch.setattr("testbed.sweep.remote.find_spec", lambda _: None)
    assert run(["x.yaml", "--engine", "ray"]) == 4
    assert "requirements-ray.txt" in capsys.readouterr().err
    assert not (here / "runs").exists()
