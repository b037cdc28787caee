"""The command that runs a scenario: where results go, and how it ends, whatever happens."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from testbed import cli, probe_templates, run
from testbed.command import run_command
from testbed.errors import KernelError, Problem, ScenarioError
from testbed.kernel import Clock, Needs, build
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

ROOT = Path(__file__).parents[2]
BASE = str(ROOT / "tests/data/base.yaml")


def test_run_directories_are_numbered(tmp_path: Path) -> None:
    """<scenario>-<seed>, then -2, -3; `latest` points to the newest; nothing is overwritten."""
    out, plan = tmp_path / "deep/runs", make_plan("congestion", seed=7)
    for name in ("congestion-7", "congestion-7-2", "congestion-7-3"):
        directory = run.new_run_dir(out, plan)
        assert directory.path == out / name
        assert directory.journal.is_dir()
        assert (out / "latest").resolve() == directory.path.resolve()
    other = run.new_run_dir(out, make_plan("congestion", seed=8))
    assert other.path == out / "congestion-8"
    assert (out / "latest").readlink() == Path("congestion-8")


def test_two_runs_may_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another run makes itself the newest between two steps of this one, both go on."""
    link_to = Path.symlink_to

    def interfere(link: Path, target: str) -> None:
        link_to(link, "other-1")
        link_to(link, target)

    monkeypatch.setattr(Path, "symlink_to", interfere)
    assert run.new_run_dir(tmp_path, make_plan("congestion", seed=7)).journal.is_dir()
    assert (tmp_path / "latest").readlink() == Path("other-1")


@pytest.mark.parametrize(
    ("name", "directory"),
    [("a/b c", "a-b-c-7"), ("../../etc", "etc-7"), ("..", "scenario-7"), ("überlast", "überlast-7")],
)
def test_any_name_makes_a_run_directory(tmp_path: Path, name: str, directory: str) -> None:
    """Whatever a scenario is called, its directory lies directly below --out."""
    assert run.new_run_dir(tmp_path, make_plan(name)).path == tmp_path / directory


def test_out_that_cannot_be_is_the_user_s_mistake(tmp_path: Path) -> None:
    """A file in the place of --out, or of `latest`, is told as such."""
    (tmp_path / "file").touch()
    with pytest.raises(ScenarioError, match="--out"):
        run.new_run_dir(tmp_path / "file", make_plan())
    (tmp_path / "latest").mkdir()
    with pytest.raises(ScenarioError, match="--out"):
        run.new_run_dir(tmp_path, make_plan())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([BASE, "--clock", "sundial"], "--clock: no clock 'sundial'"),
        ([BASE, "--kernel", "hurd"], "--kernel: no kernel 'hurd'"),
        ([BASE, "--out", BASE], f"--out {BASE}: cannot make a run directory"),
        ([BASE, "--seed", "x"], "arguments: "),
        ([BASE, "--frobnicate"], "arguments: No such option"),
        (["no/such.yaml"], "no/such.yaml: there is no such file"),
        ([BASE, "--set", "link.a_to_b.rate=5"], "link.a_to_b.rate: 5 has no unit"),
        ([], "arguments: "),
    ],
)
def test_wrong_arguments_end_with_3(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Code 3, what is wrong and where on stderr, no traceback, nothing started or created."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "choose", _choose_without_probe)
    for app, command in ((run.app, []), (cli.app, ["run"])):
        assert run_command(app, [*command, *arguments]) == 3
        captured = capsys.readouterr()
        assert (captured.out, says in captured.err) == ("", True)
    assert list(tmp_path.iterdir()) == []


def _choose_without_probe(name: str, _clock: Clock) -> Recorded:
    """What a machine that has everything would choose."""
    if name not in ("auto", "uml", "host"):
        raise ScenarioError(Problem("--kernel", f"no kernel {name!r}"))
    return Recorded()


@pytest.mark.parametrize("kernel", ["auto", "uml", "host"])
def test_a_machine_without_a_kernel_ends_with_4(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 4, everything that is missing and what to do about it, no run directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("TESTBED_CACHE", str(empty))
    monkeypatch.setattr(build, "SHARED_CACHE", empty)
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    arguments = [BASE, "--kernel", kernel, "--out", str(tmp_path / "runs")]
    assert run_command(run.app, arguments) == 4
    said = capsys.readouterr().err
    if kernel in ("auto", "uml"):
        assert f"--kernel uml: no kernel that this user can run in {empty}" in said
        assert "next: make setup" in said
    if kernel in ("auto", "host"):
        assert "--kernel host: the program crun is missing" in said
    assert not (tmp_path / "runs").exists()


def test_a_kernel_cannot_be_built_without_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`testbed kernel build` ends with 4, and says which package is missing."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert run_command(cli.app, ["kernel", "build"]) == 4
    said = capsys.readouterr().err
    assert (
        f"kernel build: no kernel source under {tmp_path}\n    allowed: the package linux-source-6.12" in said
    )
    assert "Traceback" not in said


class Recorded:
    """A kernel in which a recorded run happens, or whatever else is wanted."""

    name = "recorded"

    def __init__(self, happens: Callable[[Path], None] = lambda _path: None) -> None:
        self._happens = happens

    def probe(self, _clock: Clock) -> list[Problem]:
        """Nothing is missing."""
        return []

    def execute(self, run_dir: Path, _needs: Needs, on_line: Callable[[str], None]) -> None:
        """Let it happen."""
        on_line("@stage running")
        self._happens(run_dir)
        on_line("@progress 12.5")


def record(run_dir: Path, *, reacts: bool = True) -> None:
    """A whole run, as the inside would have left it."""
    RunDir(run_dir).journal.rmdir()
    write_run(run_dir, make_plan(), reacts=reacts)


def carried_out(out: Path, happens: Callable[[Path], None]) -> tuple[int, RunDir, str]:
    """Exit code, run directory and terminal output of a run in which that happens."""
    plan, output = make_plan(), io.StringIO()
    directory = run.new_run_dir(out, plan)
    plan.write(directory.plan)
    judged = run.execute(
        directory, plan, Recorded(happens), "virtual", Console(file=output), quiet=False, report=True
    )
    return judged.exit_code, directory, output.getvalue()


def test_a_run_ends_with_its_verdict(tmp_path: Path) -> None:
    """PASS is 0, FAIL is 1; every file is there and named; equal runs have equal digests."""
    out = tmp_path / "any[" / "b]name[red]"
    passed, first, said = carried_out(out, record)
    failed, second, _ = carried_out(out, lambda run_dir: record(run_dir, reacts=False))
    again, third, _ = carried_out(out, record)
    assert f"   {first.report}\n" in said
    assert (passed, failed, again) == (0, 1, 0)
    digests = [json.loads(one.manifest.read_text())["record_digest"] for one in (first, second, third)]
    assert digests[0] == digests[2] != digests[1]
    assert digests[0][:12] in said
    compared = io.StringIO()
    assert run._compare(first, third, Console(file=compared)) == 0
    assert f"{first.path} and {third.path}\n" in compared.getvalue()
    for one in (first, second):
        assert one.report.read_text().startswith("<!doctype html>")
        assert one.junit.is_file()
    assert [msgspec.json.decode(one.verdict.read_bytes())["status"] for one in (first, second)] == [
        "PASS",
        "FAIL",
    ]


def test_a_run_that_nobody_reads_goes_on_to_its_verdict(tmp_path: Path) -> None:
    """As with `| head -1`: every file of the result is there, and the code is the verdict's."""
    script = """
import pathlib, sys
import typer
from rich.console import Console
from tests.unit import test_run as test
app = typer.Typer()
@app.command()
def command(out: pathlib.Path) -> None:
    plan = test.make_plan()
    directory = test.run.new_run_dir(out, plan)
    plan.write(directory.plan)
    kernel, console = test.Recorded(test.record), Console()
    judged = test.run.execute(directory, plan, kernel, "virtual", console, quiet=False, report=True)
    raise typer.Exit(judged.exit_code)
sys.exit(test.run_command(app))
"""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")
    directory = RunDir((tmp_path / "latest").resolve())
    assert msgspec.json.decode(directory.verdict.read_bytes())["status"] == "PASS"
    assert directory.report.is_file()


def interrupted(run_dir: Path) -> None:
    """Ctrl-C, late in a run that would have passed."""
    record(run_dir)
    raise KeyboardInterrupt


def died(run_dir: Path) -> None:
    """The guest dies, late in a run that would have passed."""
    record(run_dir)
    raise KernelError(Problem("--kernel uml", "the guest died"))


def nothing(_run_dir: Path) -> None:
    """The guest ends at once and has nothing to show."""


@pytest.mark.parametrize(
    ("happens", "cause"), [(interrupted, "interrupted"), (died, "the guest died"), (nothing, "")]
)
def test_a_run_that_did_not_end_is_unknown(
    tmp_path: Path, happens: Callable[[Path], None], cause: str
) -> None:
    """Code 2, never 0 or 1; the reason is on the terminal and in the report."""
    code, directory, said = carried_out(tmp_path, happens)
    assert code == 2
    assert "UNKNOWN" in said
    assert cause in said
    assert cause in directory.report.read_text()


def test_a_guest_need_not_wait_for_what_judges() -> None:
    """Neither the tables nor what Mininet and scapy drag along are loaded before the guest is started."""
    late = {
        "polars",
        "scapy",
        "setuptools",
        "mininet.node",
        "pyroute2",
        "testbed.audit",
        "testbed.report.page",
    }
    code = f"import sys, testbed.cli; print(sorted({late} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_probes_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time they come from the cache; where nothing can be kept they are made each time."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TESTBED_CACHE", str(cache))
    first, second, third = (RunDir(tmp_path / name) for name in ("first", "second", "third"))
    for one in (first, second, third):
        one.path.mkdir()
    probe_templates.write(first, make_plan())
    monkeypatch.setattr(probe_templates, "_templates", lambda _plan: {})
    probe_templates.write(second, make_plan())
    assert second.probes.read_bytes() == first.probes.read_bytes() != b"{}"
    monkeypatch.setenv("TESTBED_CACHE", str(first.probes))
    probe_templates.write(third, make_plan())
    assert third.probes.read_bytes() == b"{}"
