"""The command that runs the paper's experiments: its pages, its exit codes, what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agents.model import capacity
from testbed.command import run_command
from testbed.paper import __main__ as command
from testbed.paper import scenarios, wan
from testbed.paper.printed import LENGTHS, LINK_BPS, TABLE_6
from testbed.paper.runs import Done
from testbed.resolve import load_and_resolve
from testbed.runs import Wanted
from testbed.verdict import Result, Status, Verdict
from tests.unit.paper_runs import EMPTY, ROOT, Tables, table6_runs, wan_run

DISTRUST = "link a_to_b: rate was not as asked"


def verdict_of(status: Status, sentence: str = "") -> Verdict:
    """A verdict as told, with a reason where it needs one, and a finding if there is one to be shown."""
    finding = Result(
        name="x", kind="bound", metric="x", status=status, measured=None, unit="s", bound="", margin=None,
        sentence=sentence,
    )  # fmt: skip
    trust = (DISTRUST,) if status == "UNKNOWN" and not sentence else ()
    return Verdict(status=status, results=(finding,) if sentence else (), trust=trust, note="as told")


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    tables: Mapping[str, Tables],
    status: Status = "PASS",
    others: Mapping[str, Verdict] | None = None,
) -> None:
    """Let the command have these tables and verdicts instead of running anything."""

    def run_all(wanted: Sequence[Wanted], out: Path, _jobs: int) -> Iterator[Done]:
        for one in wanted:
            verdict = (others or {}).get(one.name, verdict_of(status))
            yield Done(one.name, out / one.name, verdict, tables.get(one.name, EMPTY))

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
<!-- scenarios -->
<!-- end of scenarios -->
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


@pytest.mark.parametrize("options", [["table6"], ["wan", "--link", "5"], ["scenarios"]])
def test_runs_that_cannot_be_trusted_have_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Cut short, with empty tables: exit code 2 and the reasons, and the page stays as it was."""
    page = tmp_path / "paper.md"
    page.write_text(PAGE, encoding="utf-8")
    pretend(monkeypatch, {}, "UNKNOWN")
    assert run_command(command.app, [*options, "--write", str(page)]) == 2
    said = capsys.readouterr()
    assert "as told" in said.err
    assert DISTRUST in said.err
    assert page.read_text(encoding="utf-8") == PAGE


def verdicts() -> dict[str, Verdict]:
    """What each of the scenarios about reactions must have."""
    return {name: verdict_of(status) for name, status in scenarios.expected().items()}


@pytest.mark.parametrize(
    ("name", "verdict", "code"),
    [
        ("ramp", verdict_of("PASS"), 0),
        ("ramp", verdict_of("FAIL"), 1),
        ("step_down_static", verdict_of("PASS"), 1),
        ("wan_short_loop", verdict_of("PASS"), 1),
        ("ramp", verdict_of("UNKNOWN"), 2),
        ("ramp", verdict_of("UNKNOWN", "no request arrives"), 2),
        ("step_down_static", verdict_of("UNKNOWN"), 2),
    ],
)
def test_the_code_of_the_scenarios(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    verdict: Verdict,
    code: int,
) -> None:
    """What must pass passes and every control fails; a run that cannot be trusted is neither."""
    pretend(monkeypatch, {}, others=verdicts() | {name: verdict})
    assert run_command(command.app, ["scenarios"]) == code
    if code == 2:
        told = verdict.trust[0] if verdict.trust else "no request arrives"
        assert f"{name} (runs/paper/{name}): as told\n    {told}\n" == capsys.readouterr().err


def test_a_finding_may_have_any_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets are no markup in the terminal, a bar ends no cell of the page."""
    page = tmp_path / "paper.md"
    page.write_text(PAGE, encoding="utf-8")
    odd = msgspec.structs.replace(verdict_of("PASS", "a [/b] | c"), note="a [/note]")
    pretend(monkeypatch, {}, others=verdicts() | {"ramp": odd})
    assert run_command(command.app, ["scenarios", "--write", str(page)]) == 0
    said = capsys.readouterr().out
    assert "ramp: a [/note]" in said
    assert "[/b]" in said
    assert "| ramp | PASS | PASS | a [/b] \\| c |\n" in page.read_text(encoding="utf-8")


def test_the_page_stays_the_file_that_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode, the link that leads to it; nothing is left beside it, written or not."""
    page, link = tmp_path / "real.md", tmp_path / "link.md"
    page.write_text(PAGE, encoding="utf-8")
    page.chmod(0o640)
    link.symlink_to(page.name)
    pretend(monkeypatch, table6_by_name())
    assert run_command(command.app, ["table6", "--write", str(link)]) == 0
    assert link.is_symlink()
    written = page.read_text(encoding="utf-8")
    assert written != PAGE
    assert page.stat().st_mode & 0o777 == 0o640

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "chmod", full)
    assert run_command(command.app, ["table6", "--write", str(link)]) == 2
    assert page.read_text(encoding="utf-8") == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.md", "real.md"]


@pytest.mark.parametrize("gbps", ["0", "-1", "nan", "inf", "0.59", "401"])
def test_a_link_out_of_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gbps: str
) -> None:
    """Before anything runs, with what is allowed."""
    pretend(monkeypatch, {})
    assert run_command(command.app, ["wan", "--link", "5", "--link", gbps]) == 3
    said = capsys.readouterr().err
    assert f"--link {gbps}: is no link" in said
    assert "0.6 to 400 (Gbps)" in said


@pytest.mark.parametrize("gbps", [command.LEAST_GBPS, command.MOST_GBPS])
def test_the_runs_of_any_link_in_range_are_valid(gbps: float) -> None:
    """The scenario takes the values at both ends, and the model has an answer."""
    for one in wan.wanted(ROOT / "scenarios/paper", (gbps,)):
        assert load_and_resolve(one.scenario, overrides=one.overrides)[1].expectations == ()


def test_controls_of_table_6_cannot_complete_what_is_asked() -> None:
    """By the model, at the roles that they change, each misses the least throughput by 5 % and more."""
    wanted = {one.name: one for one in scenarios.wanted(ROOT / "scenarios/paper")}
    columns = {Path(column.scenario).stem: column for column in TABLE_6}
    altered = {name: scenario for name, (scenario, _) in scenarios.ALTERED.items() if scenario in columns}
    assert sorted(altered.values()) == sorted(columns)
    for name, scenario in altered.items():
        plan = load_and_resolve(wanted[name].scenario, overrides=wanted[name].overrides)[1]
        column, places = columns[scenario], [(agent.role, agent.cluster) for agent in plan.agents]
        system = replace(
            column.system,
            n_prfaas=places.count(("prefill", "prfaas")),
            n_p=places.count(("prefill", "pd")),
            n_d=places.count(("decode", "pd")),
        )
        most = capacity(system, LENGTHS, column.threshold_tokens, LINK_BPS, "mean_of_times").lambda_max
        (least,) = [one.low for one in plan.expectations if one.metric == "throughput_per_s"]
        assert least is not None
        assert most < 0.95 * least, name


def test_every_control_has_what_it_is_the_control_of() -> None:
    """All are run, under names of their own; what must pass is a file of this name."""
    wanted = scenarios.wanted(ROOT / "scenarios/paper")
    names = [one.name for one in wanted]
    assert len(set(names)) == len(names)
    assert {*scenarios.CONTROLS, *scenarios.CONTROLS.values(), *scenarios.ALTERED} <= set(names)
    for one in wanted:
        assert one.scenario.is_file()
        assert bool(one.overrides) == (one.name in scenarios.ALTERED) == (one.scenario.stem != one.name)
        assert scenarios.expected()[one.name] == "FAIL" or not one.overrides


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
    assert run_command(command.app, ["wan", "--link", "5", "--link", "5", "--write", str(page)]) == code
    text = page.read_text(encoding="utf-8")
    assert "| 5, short | 31,700, 3 | 1.75 / 1.75 | 31,500, 3 | 1.75 | 0 s, 100% | yes |" in text
    assert f"| {tokens:,}, 5 |" in text
    assert text.count("| yes |") == 2 - code
    assert text.count("| not the threshold |") == code
    assert "stale\n" in text
    assert "A fixed threshold of 19,400 sustains 1.31 at 5 Gbps." in text
    assert "as told" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("half.md", "has no lines <!-- wan --> and <!-- end of wan -->"),
        ("plain.md", "has no lines <!-- wan --> and <!-- end of wan -->"),
        ("missing.md", "cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("latin.md", "is not UTF-8: invalid continuation byte at byte 2"),
    ],
)
def test_a_page_without_a_place_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    """Half a mark, no mark, no file, no text: exit code 3, with what is missing."""
    (tmp_path / "half.md").write_text("<!-- wan -->\n", encoding="utf-8")
    (tmp_path / "plain.md").write_text("no marks", encoding="utf-8")
    (tmp_path / "latin.md").write_bytes("caf\xe9 <!-- wan -->".encode("latin-1").replace(b"f", b""))
    pretend(monkeypatch, {})
    assert run_command(command.app, ["wan", "--write", str(tmp_path / name)]) == 3
    assert f"--write {tmp_path / name}: {says}\n" in capsys.readouterr().err


def test_elsewhere_the_scenarios_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands are for the project's own directory."""
    monkeypatch.chdir(tmp_path)
    assert run_command(command.app, ["table6"]) == 3
    assert "scenarios/paper/table6_prfaas.yaml: is not there" in capsys.readouterr().err
