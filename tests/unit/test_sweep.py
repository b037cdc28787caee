"""Many scenarios with many seeds: which runs, in which order, what is told of them and what is left."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import cli
from testbed.command import run_command
from testbed.errors import MachineError, Problem, ScenarioError
from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted
from testbed.sweep import __main__ as command
from testbed.sweep import asked
from testbed.verdict import Result, Status, Verdict

SCENARIO = (Path(__file__).parents[2] / "scenarios/full_rate.yaml").read_text(encoding="utf-8")


def verdict_of(status: Status) -> Verdict:
    """With one expectation that held, and one that gave the status."""
    both: tuple[tuple[str, Status], ...] = (("first", "PASS"), ("second", status))
    results = tuple(
        Result(
            name=name, kind="bound", metric="x", status=each, measured=None, unit="s", bound="", margin=None,
            sentence=f"{name} [was] {each}",
        )
        for name, each in both
    )  # fmt: skip
    return Verdict(status=status, results=results, trust=(), note="as told")


def left(out: Path, wanted: Wanted, verdict: Verdict) -> Ended:
    """A run that took place."""
    run = RunDir(out / wanted.name / f"s-{wanted.seed}")
    run.journal.mkdir(parents=True)
    (out / wanted.name / "latest").symlink_to(run.path.name)
    verdict.write(run.verdict)
    run.manifest.write_text(json.dumps({"record_digest": f"d{wanted.seed}", "virtual_s": 5.0, "wall_s": 2.5}))
    return Ended(wanted, run.path, verdict, verdict.exit_code, "")


Happens = Callable[[Path, Wanted], Ended]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, on a machine that has a kernel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "place", lambda *_: None)
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, happens: Happens) -> list[str]:
    """Let that happen instead of runs; returns the names of those that have begun."""
    began: list[str] = []

    def run_all(wanted: Sequence[Wanted], out: Path, _jobs: int) -> Iterator[Ended]:
        for one in wanted:
            began.append(one.name)
            yield happens(out, one)

    monkeypatch.setattr(command, "run_all", run_all)
    return began


def statuses(**odd: Status) -> Happens:
    """Every run passes but for those named, as in `s4="FAIL"` for seed 4."""
    return lambda out, one: left(out, one, verdict_of(odd.get(f"s{one.seed}", "PASS")))


def scenario(path: str, text: str = SCENARIO) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        ({}, 0),
        ({"s4": "UNKNOWN"}, 2),
        ({"s2": "UNKNOWN", "s3": "FAIL"}, 1),
        ({"s2": "FAIL", "s3": "UNKNOWN"}, 1),
    ],
)
def test_a_sweep_has_the_code_of_its_worst_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, odd: dict[str, Status], code: int
) -> None:
    """0 if all pass, 1 if one fails, else 2 if one is unknown; sweep.json has a row for each, in order."""
    scenario("x.yaml")
    pretend(monkeypatch, statuses(**odd))
    assert run_command(command.app, ["x.yaml", "--seeds", "1-5"]) == code
    written = json.loads((here / "runs/sweep/x/sweep.json").read_bytes())
    assert written["planned"] == 5
    rows = written["runs"]
    assert [(row["scenario"], row["seed"]) for row in rows] == [("x.yaml", seed) for seed in range(1, 6)]
    for row in rows:
        status = odd.get(f"s{row['seed']}", "PASS")
        assert row["status"] == status
        assert row["failed"] == ([] if status == "PASS" else [f"second [was] {status}"])
        assert (row["record_digest"], row["virtual_s"], row["wall_s"]) == (f"d{row['seed']}", 5.0, 2.5)


def test_what_did_not_pass_can_be_run_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once and at the end: status, scenario, seed, what did not hold, and a command a shell takes."""
    odd = scenario("a b/it's [x].yaml")
    pretend(monkeypatch, statuses(s17="FAIL"))
    override = "question=Is it $HOME?"
    assert run_command(cli.app, ["sweep", "a b", "--seeds", "3,17", "--set", override]) == 1
    (lines, again) = ([], [])
    for line in capsys.readouterr().out.splitlines():
        lines += [line] if line.startswith("FAIL") else []
        again += [line.strip()] if "testbed.run" in line else []
    assert lines == [f"FAIL    {odd} seed 17: second [was] FAIL   runs/sweep/a b/it's [x]-17/s-17"] * 2
    assert again == [again[0]] * 2
    expected = ["python", "-m", "testbed.run", str(odd), "--seed", "17", "--set", override]
    assert shlex.split(again[0]) == expected
    (_, row) = json.loads((here / "runs/sweep/a b/sweep.json").read_bytes())["runs"]
    assert (row["command"], row["overrides"]) == (again[0], [override])


@pytest.mark.parametrize(
    ("arguments", "stay"), [([], ["x-2", "x-3"]), (["--keep", "all"], ["x-1", "x-2", "x-3", "x-4"])]
)
def test_runs_that_passed_are_removed(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], stay: list[str]
) -> None:
    """With all that led to them, unless they are to be kept; others stay, and their rows say where."""
    scenario("x.yaml")
    pretend(monkeypatch, statuses(s2="FAIL", s3="UNKNOWN"))
    out = here / "out"
    assert run_command(command.app, ["x.yaml", "--seeds", "1-4", "--out", str(out), *arguments]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["sweep.json", *stay]
    places = [row["directory"] for row in json.loads((out / "sweep.json").read_bytes())["runs"]]
    assert [Path(place).parent.name for place in places if place] == stay
    assert all(RunDir(Path(place)).verdict.is_file() for place in places if place)


def test_what_was_there_before_is_not_removed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier run that failed stays when a later one of the same seed passes."""
    scenario("x.yaml")
    earlier = here / "out/x-1/earlier"
    earlier.mkdir(parents=True)
    pretend(monkeypatch, statuses())
    assert run_command(command.app, ["x.yaml", "--seeds", "1", "--out", "out"]) == 0
    assert [path.name for path in (here / "out/x-1").iterdir()] == ["earlier"]


def test_a_run_without_a_verdict_is_unknown(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not end the sweep; neither does one that died after its verdict, which proves nothing."""

    def happens(out: Path, one: Wanted) -> Ended:
        if one.seed == 1:
            return Ended(one, None, None, 4, "this machine: no memory\n  left " + "x" * 1000)
        passed = left(out, one, verdict_of("PASS"))
        assert passed.directory is not None
        return Ended(one, passed.directory, passed.verdict, -9 if one.seed == 2 else 0, "gone")

    scenario("x.yaml")
    pretend(monkeypatch, happens)
    assert run_command(command.app, ["x.yaml", "--seeds", "1-3"]) == 2
    said = capsys.readouterr().out
    assert "UNKNOWN x.yaml seed 1: left no verdict (exit code 4): this machine: no memory left xx" in said
    assert "UNKNOWN x.yaml seed 2: ended with exit code -9 after the verdict PASS: gone " in said
    assert "3 of 3 runs" in said
    assert ": 1 PASS, 0 FAIL, 2 UNKNOWN" in said
    assert max(map(len, said.splitlines())) < 400
    assert sorted(path.name for path in (here / "runs/sweep/x").iterdir()) == ["sweep.json", "x-2"]


def test_ctrl_c_keeps_what_is_done(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 2, with the rows, the counts and the failures of the runs that had ended."""

    def happens(out: Path, one: Wanted) -> Ended:
        if one.seed == 3:
            raise KeyboardInterrupt
        return left(out, one, verdict_of("FAIL" if one.seed == 2 else "PASS"))

    scenario("x.yaml")
    pretend(monkeypatch, happens)
    assert run_command(command.app, ["x.yaml", "--seeds", "1-9"]) == 2
    said = capsys.readouterr()
    assert said.err == "interrupted\n"
    assert "2 of 9 runs" in said.out
    assert said.out.count("--seed 2") == 2
    written = json.loads((here / "runs/sweep/x/sweep.json").read_bytes())
    assert (written["planned"], [row["seed"] for row in written["runs"]]) == (9, [1, 2])


def test_without_a_terminal_it_is_quiet(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line every ten runs, a table with a line for each scenario, the counts."""
    for name in ("a", "b"):
        scenario(f"many/{name}.yaml")
    pretend(monkeypatch, statuses())
    assert run_command(command.app, ["many", "--seeds", "1-11"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{n} of 22 runs: {n} PASS, 0 FAIL, 0 UNKNOWN" for n in (10, 20)]
    rows = [line.replace("│", " ").split() for line in lines if ".yaml" in line]
    assert rows == [[f"many/{name}.yaml", "11", "0", "0", "55", "28"] for name in ("a", "b")]
    assert lines[-1].startswith("22 of 22 runs in ")
    assert lines[-1].endswith("runs/sweep/many/sweep.json")
    assert len(lines) == 9
    assert [path.name for path in (here / "runs/sweep/many").iterdir()] == ["sweep.json"]


def test_every_scenario_is_seen_before_any_has_a_second_turn(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files as given, directories sorted, nothing twice, files of one name into two directories."""
    for name in ("d/b.yaml", "d/a.yaml", "d/deeper/no.yaml", "e/a.yaml", "e/a-2.yaml", "x.yaml"):
        scenario(name)
    (here / "d/notes.txt").touch()
    began = pretend(monkeypatch, statuses())
    assert run_command(command.app, ["x.yaml", "d", "e", "d/a.yaml", "./x.yaml", "--seeds", "7,3"]) == 0
    expected = ["x", "a", "b", "a-2", "a-3"]
    assert began == [f"{name}-{seed}" for seed in (7, 3) for name in expected]


@pytest.mark.usefixtures("here")
def test_without_seeds_each_scenario_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And `--set seed` counts as its own."""
    scenario("d/a.yaml", SCENARIO.replace("seed: 1", "seed: 5"))
    scenario("d/b.yaml")
    began = pretend(monkeypatch, statuses())
    assert run_command(command.app, ["d"]) == 0
    assert run_command(command.app, ["d", "--set", "seed=9"]) == 0
    assert began == ["a-5", "b-1", "a-9", "b-9"]


@pytest.mark.parametrize(
    ("seeds", "says"),
    [
        ("5-2", "5-2 runs backwards"),
        ("x", "'x' is no seed"),
        ("-3", "'-3' is no seed"),
        ("", "'' is no seed"),
        ("1,,2", "'' is no seed"),
        ("1-2-3", "'1-2-3' is no seed"),
        ("1.5", "'1.5' is no seed"),
        ("٣", "'٣' is no seed"),
        ("3,1-5", "names 3 twice"),
        ("0-999999999999", "too many seeds"),
        ("9999999999999999999", "is no seed"),
    ],
)
def test_bad_seeds_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seeds: str, says: str
) -> None:
    """Code 3, what was written, what may be; nothing is started or made."""
    scenario("x.yaml")
    began = pretend(monkeypatch, statuses())
    assert run_command(command.app, ["x.yaml", "--seeds", seeds]) == 3
    said = capsys.readouterr().err
    assert f"--seed{'s' if says != 'is no seed' else ''} {seeds}: {says}\n    allowed: " in said
    assert (began, [path.name for path in here.iterdir()]) == ([], ["x.yaml"])


def test_everything_is_checked_before_anything_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The problems of all scenarios with file and line, those of paths that lead nowhere, bad options."""
    began = pretend(monkeypatch, statuses())
    scenario("d/bad.yaml", SCENARIO.replace("mtu: 9000", "mtu: nine"))
    scenario("d/good.yaml")
    scenario("d/worse.yaml", SCENARIO.replace("cubic", "cubist"))
    (here / "empty").mkdir()
    for arguments, says in (
        (["d", "--seeds", "1-3"], ("d/bad.yaml:12: link.mtu: ", "d/worse.yaml:10: ")),
        (["empty", "d", "gone.yaml"], ("empty: is a directory without", "gone.yaml: is not there")),
        (["d/good.yaml", "--set", "link.mtu"], ("--set link.mtu: is no override",)),
        (["d/good.yaml", "--out", "d/bad.yaml"], ("--out d/bad.yaml: cannot be made: ",)),
        (["d/good.yaml", "--keep", "some"], ("arguments: ",)),
        (["d/good.yaml", "--jobs", "0"], ("arguments: ",)),
        ([], ("arguments: ",)),
    ):
        assert run_command(command.app, arguments) == 3
        said = capsys.readouterr()
        assert said.out == ""
        assert [said.err.count(one) for one in says] == [1] * len(says)
    assert began == []
    assert not (here / "runs").exists()


@pytest.mark.usefixtures("here")
def test_a_seed_that_makes_no_plan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only some seeds lead to is found before a run starts, unless there are very many runs."""
    file = scenario("x.yaml")

    def check(_file: Path, _overrides: tuple[str, ...], seed: int | None) -> int:
        if seed == 4:
            raise ScenarioError(Problem("x.yaml:3: faults", "leave nobody"))
        return seed or 0

    monkeypatch.setattr(asked, "_check", check)
    with pytest.raises(ScenarioError, match=r"x\.yaml:3: faults: with seed 4: leave nobody"):
        asked.runs_of([file], range(1, 6), (), report=False)
    assert len(asked.runs_of([file], range(1, 502), (), report=False)) == 501


def test_a_machine_that_cannot_run_anything_runs_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 4, told once and not by every run."""

    def place(*_: object) -> None:
        raise MachineError(Problem("--kernel uml", "no kernel", next_step="make setup"))

    scenario("x.yaml")
    began = pretend(monkeypatch, statuses())
    monkeypatch.setattr(command, "place", place)
    assert run_command(command.app, ["x.yaml", "--seeds", "1-9"]) == 4
    assert capsys.readouterr().err.count("no kernel") == 1
    assert (began, (here / "runs").exists()) == ([], False)


@given(st.lists(st.integers(0, 10**18), min_size=1, max_size=20, unique=True))
def test_seeds_are_read_as_written(seeds: list[int]) -> None:
    """In their order; a range is the numbers from its first to its last."""
    assert asked.parse_seeds(", ".join(map(str, seeds))) == seeds
    assert asked.parse_seeds(f"{seeds[0]}-{seeds[0] + 2}") == [seeds[0] + i for i in range(3)]
