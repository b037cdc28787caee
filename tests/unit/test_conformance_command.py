"""The command that compares kernels: what it runs, what it leaves out, its page and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from testbed import runs
from testbed.command import run_command
from testbed.conformance import __main__ as command
from testbed.conformance.agreement import Ran
from testbed.conformance.figures import Figure
from testbed.conformance.measuring import Case, Measured, cases, measure
from testbed.conformance.places import PLACES, Place
from testbed.errors import Problem, RunError
from testbed.runs import Ended, Wanted
from testbed.verdict import Verdict

ROOT = Path(__file__).parents[2]
SUITE = sorted((ROOT / "scenarios/conformance").glob("*.yaml"))
PAGE = "before\n<!-- conformance -->\nstale\n<!-- end of conformance -->\nafter\n"
UML, REAL = PLACES["uml"], PLACES["uml-real"]


def directory(out: Path, place: str, release: str) -> Path:
    """A run directory with no more than the page asks for; those in real time as if in a virtual machine."""
    run = out / place
    (run / "programs").mkdir(parents=True, exist_ok=True)
    made = {"kernel_name": f"kernel-{place}", "host_cpu": "a | b", "accelerator": "tcg"}
    if place == "uml":
        del made["accelerator"]
    (run / "manifest.json").write_text(json.dumps(made))
    (run / "programs/kernel.out").write_text(f"{release}\n")
    return run


def pretend(
    monkeypatch: pytest.MonkeyPatch, out: Path, bps: dict[str, float], lacks: Sequence[str] = ()
) -> list[tuple[str, list[str], int | None]]:
    """Places measure this goodput in every scenario, or lack something; returns what was asked of them."""
    asked = []

    def fake(
        place: Place, suite: Sequence[Case], _out: Path, *, most_bps: int | None, tries: int, again: bool
    ) -> Iterator[Measured]:
        asked.append((place.name, [case.name for case in suite], most_bps))
        assert (tries, again) == (3, False)
        for case in suite:
            value = bps[place.name]
            figure = Figure("goodput", "goodput", "1", f"{value:g}", sound=True, value=value)
            made = directory(out, place.name, f"6.{len(asked)}")
            yield Measured(Ran(case.name, place.name, (figure,)), made)

    def missing(place: Place) -> tuple[Problem, ...]:
        return (Problem("--kernel x", "no such thing here"),) if place.name in lacks else ()

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "measure", fake)
    monkeypatch.setattr(Place, "lacks", missing)
    return asked


def test_all_scenarios_run_in_every_kernel_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that this machine lacks are named with the reason, and are no difference."""
    others = [name for name in PLACES if name not in ("uml", "uml-real")]
    asked = pretend(monkeypatch, tmp_path, {"uml": 1e8, "uml-real": 1.02e8}, lacks=others)
    assert run_command(command.app, ["--most", "uml-real=200mbit"]) == 0
    names = [path.stem for path in SUITE]
    assert asked == [("uml", names, None), ("uml-real", names, 200_000_000)]
    said = capsys.readouterr().out
    assert all(f"`{name}` was left out: no such thing here" in said for name in others)


@pytest.mark.parametrize(("real_bps", "code", "agrees"), [(1.02e8, 0, "yes"), (1.04e8, 1, "**no**")])
def test_the_page_has_every_column_and_says_whether_it_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_bps: float, code: int, agrees: str
) -> None:
    """What kernels say of themselves, their processor, each scenario's rate; nothing else is touched."""
    pretend(monkeypatch, tmp_path, {"uml": 1e8, "uml-real": real_bps})
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    arguments = [str(SUITE[0]), "--kernels", "uml,uml-real", "--write", str(page)]
    assert run_command(command.app, arguments) == code
    text = page.read_text()
    assert (text.startswith("before\n<!-- conf"), text.endswith("-->\nafter\n"), "stale" in text) == (
        True, True, False,
    )  # fmt: skip
    assert "| `uml` | 6.1 (kernel-uml) | virtual | a \\| b | 20" in text
    assert "| `uml-real` | 6.2 (kernel-uml-real) | real | a \\| b (tcg) |" in text
    assert (
        f"| eight_connections, 100 Mbps | goodput | 1 | 1e+08 | {real_bps:g} | 3% apart | {agrees} |" in text
    )


def test_a_kernel_in_which_every_run_died_has_its_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which nothing is known but that; no directory says what it was."""
    pretend(monkeypatch, tmp_path, {"uml": 1e8})
    played = command.measure

    def one_dies(place: Place, suite: Sequence[Case], *others: Path, **options: int) -> Iterator[Measured]:
        if place.name == "uml":
            yield from played(place, suite, *others, **options)  # type: ignore[arg-type]
        else:
            yield from (Measured(Ran(case.name, place.name, unknown=("it died",))) for case in suite)

    monkeypatch.setattr(command, "measure", one_dies)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    arguments = [str(SUITE[0]), "--kernels", "uml,uml-real", "--write", str(page)]
    assert run_command(command.app, arguments) == 2
    text = page.read_text()
    assert "| `uml-real` |  | real |  |  |" in text
    assert "| eight_connections, 100 Mbps | goodput | 1 | 1e+08 | UNKNOWN | 3% apart | unknown |" in text


def test_no_kernel_at_all_ends_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is compared, and everything that is missing is told."""
    asked = pretend(monkeypatch, tmp_path, {}, lacks=list(PLACES))
    assert run_command(command.app, []) == 4
    assert asked == []
    assert capsys.readouterr().err.count("no such thing here") == len(PLACES)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kernels", "uml,windows"], "--kernels: no kernel 'windows'"),
        (["--most", "windows=1gbit"], "--most windows=1gbit: no kernel 'windows'"),
        (["--most", "uml=fast"], '--most uml=fast: "fast" is no rate'),
        (["nowhere.yaml"], "nowhere.yaml"),
        ([str(SUITE[0]), str(SUITE[0])], "eight_connections more than once"),
        (["--write", "README.md"], "--write README.md: has no lines <!-- conformance -->"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    """Exit code 3, with what was found."""
    asked = pretend(monkeypatch, tmp_path, {})
    assert run_command(command.app, arguments) == 3
    assert asked == []
    assert says in capsys.readouterr().err


def test_elsewhere_the_scenarios_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite is the checkout's."""
    monkeypatch.chdir(tmp_path)
    assert run_command(command.app, []) == 3
    assert "scenarios/conformance: is not there" in capsys.readouterr().err


def ended(wanted: Wanted, code: int, reason: str = "") -> Ended:
    """A run that has no figures: UNKNOWN for that reason, or without a verdict."""
    verdict = Verdict(status="UNKNOWN", results=(), trust=(reason,), note="") if reason else None
    return Ended(wanted, Path("runs/x") if reason else None, verdict, code, "said")


def play(
    monkeypatch: pytest.MonkeyPatch, endings: dict[str, list[tuple[int, str]]], tries: int = 3
) -> tuple[list[Measured], list[list[str]]]:
    """Let runs end like this, one after the other; returns what came of it, and the rounds of runs."""
    rounds: list[list[str]] = []
    last: dict[str, Verdict | None] = {}

    def run_all(wanted: Sequence[Wanted], _out: Path, jobs: int) -> Iterator[Ended]:
        assert jobs == 1
        rounds.append([one.name for one in wanted])
        for one in wanted:
            now = ended(one, *endings[one.scenario.stem].pop(0))
            last["verdict"] = now.verdict
            yield now

    monkeypatch.setattr(runs, "run_all", run_all)
    monkeypatch.setattr(runs, "verdict_in", lambda _: last["verdict"])
    suite = [case for case in cases(SUITE) if case.name in endings]
    found = list(measure(REAL, suite, Path("out"), most_bps=10**9, tries=tries, again=False))
    return found, [one for one in rounds if one]


def test_a_run_that_cannot_be_trusted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as allowed, the others not; then it is UNKNOWN, for the reason of the last one."""
    endings = {"losses": [(2, "a"), (2, "b"), (2, "c")], "gigabit": [(4, "")]}
    found, rounds = play(monkeypatch, endings)
    assert rounds == [["uml-real/gigabit", "uml-real/losses"], ["uml-real/losses"], ["uml-real/losses"]]
    assert [(one.ran.scenario, one.ran.left_out, one.ran.unknown, one.distrusted) for one in found] == [
        ("gigabit", "said", (), 0),
        ("losses", "", ("c",), 2),
    ]


def test_a_run_without_a_verdict_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words are the reason."""
    found, _ = play(monkeypatch, {"losses": [(2, "")]}, tries=1)
    assert [one.ran.unknown for one in found] == [("left no verdict (exit code 2): said",)]


def test_a_scenario_that_a_kernel_refuses_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a fault of the suite, not a difference."""
    with pytest.raises(RunError, match=r"losses.yaml: left no verdict \(exit code 3\): said"):
        play(monkeypatch, {"losses": [(3, "")]})


def test_links_that_are_too_fast_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fastest rate that they ever have; nothing of them is run."""

    def run_all(wanted: Sequence[Wanted], _out: Path, jobs: int) -> Iterator[Ended]:
        assert jobs == 1
        assert "gigabit" not in {one.scenario.stem for one in wanted}
        yield from ()

    monkeypatch.setattr(runs, "run_all", run_all)
    found = list(measure(UML, cases(SUITE), Path("out"), most_bps=200 * 10**6, tries=1, again=False))
    assert [(one.ran.scenario, one.ran.left_out) for one in found] == [
        ("gigabit", "1 Gbps is more than the 200 Mbps asked for")
    ]


def test_the_suite_is_short_and_has_a_control() -> None:
    """Four to six scenarios of at most 15 s, at most 1 Gbps; one must FAIL."""
    suite = cases(SUITE)
    assert 4 <= len(suite) <= 6
    assert max(case.plan.duration_ns for case in suite) <= 15 * 10**9
    assert max(case.rate_bps for case in suite) == 10**9
    assert [case.name for case in suite if case.must == "FAIL"] == ["scheduler_static"]


def test_the_published_table_has_every_scenario_and_no_difference() -> None:
    """As the command wrote it. What is unknown there is unknown in no kernel of ours."""
    text = (ROOT / "docs/fidelity.md").read_text(encoding="utf-8")
    table = text.split("<!-- conformance -->\n")[1].split("<!-- end of conformance -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    begin = next(number for number, line in enumerate(lines) if line.startswith("| scenario |"))
    header, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[begin:])
    rows = [dict(zip(header, row, strict=True)) for row in rows[1:]]
    assert {row["agree"] for row in rows} <= {"yes", "unknown"}
    assert {row["agree"] for row in rows if "UNKNOWN" not in row.values()} == {"yes"}
    assert "UNKNOWN" not in {row[place] for row in rows for place in ("uml", "uml-real")}
    names = [row["scenario"].split(",")[0] for row in rows if row["scenario"]]
    assert names == [path.stem for path in SUITE]
