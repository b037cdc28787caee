"""A run directory that somebody has damaged, or made: its report says UNKNOWN and why, and never breaks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from testbed import audit, expect
from testbed import tables as record
from testbed.plan import Plan
from testbed.report.__main__ import main, rebuild
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import T0_NS, note, write_run


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(requests=5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", plan, tcp_lines=1).path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> RunDir:
    return RunDir(shutil.copytree(whole, tmp_path / "run"))


def reasons(run: RunDir) -> str:
    """Why the run is not to be trusted."""
    plan = Plan.read(run.plan)
    tables = record.build(run, plan)
    return "\n".join(expect.trust(run, tables, audit.judge(plan, tables)))


def change(run: RunDir, writer: str, kind: str, **values: Any) -> None:
    """Other values in the first line of a kind."""
    path = run.journal / f"{writer}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    lines[number] = json.dumps({**json.loads(lines[number]), **values}).encode() + b"\n"
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("content", [b"", b'["the guest', b"null", b"\xff", b"{}", b"[" * 100_000])
@pytest.mark.parametrize("name", ["trouble", "outcome"])
def test_what_the_run_says_of_itself_may_be_anything(run: RunDir, name: str, content: bytes) -> None:
    """Trouble that nobody can read is trouble."""
    (run.path / f"{name}.json").write_bytes(content)
    assert f"{name}.json is not readable: " in reasons(run)


def test_trouble_is_told_as_it_was_noted(run: RunDir) -> None:
    """One sentence each."""
    run.trouble.write_text('["the guest died"]')
    assert reasons(run) == "the guest died"


def test_what_the_policy_was_shown_is_text(run: RunDir) -> None:
    """It is kept as it stands, and looked at before that."""
    path = run.journal / "router.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"step":1,', b'"step":1,"seen":{"view":"\xff"},', 1))
    assert "journal/router.jsonl: 1 malformed line(s), first line 1: " in reasons(run)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_the_link_changes_as_often_as_was_planned(run: RunDir, count: int) -> None:
    """A line that is there once more, or has gone, is told."""
    path = run.journal / "bench.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    (changed,) = [line for line in lines if b"link_set" in line and b'"rate_bps":8000000000' in line]
    others = [line for line in lines if line != changed]
    path.write_bytes(b"".join([*others, *[changed] * count]))
    assert f"link a_to_b: {2 + count} changes noted where 3 were planned" in reasons(run)


PLACE = {"packets": 1, "bytes": 1, "drops": 0}


@pytest.mark.parametrize(
    ("writer", "kind", "values"),
    [
        ("client", "request", {"state": "gone"}),
        ("client", "request", {"tokens": 2**70}),
        ("client", "request", {"t_end_ns": 10**30}),
        ("prefill-a1", "transfer", {"state": "gone"}),
        ("link", "link", {"direction": "up"}),
        ("link", "link", {"tx_bytes": 2**63}),
        ("link", "link", {"loss_ratio": 1e300}),
        ("audit", "train", {"sizes": [72]}),
        ("audit", "train", {"arrived": [[10**6, 1, True]]}),
        ("audit", "calibration", {"rtt_ns": 10**400}),
        ("audit", "counters", {"places": {"rate": PLACE}}),
        ("audit", "counters", {"places": {"attic": PLACE}}),
        ("router", "control", {"cache": {"attic": {}}}),
        ("router", "control", {"cache": {"pd": {"prefix_blocks": 1}}}),
    ],
)
def test_a_value_that_cannot_be_makes_its_line_malformed(
    run: RunDir, writer: str, kind: str, values: dict[str, Any]
) -> None:
    """It becomes a reason where lines are read; what judges them never sees it."""
    change(run, writer, kind, **values)
    assert f"journal/{writer}.jsonl: 1 malformed line(s), first line " in reasons(run)


def test_numbers_at_the_limit_are_counted_with(run: RunDir) -> None:
    """The largest that a line may have neither overflow a column nor what is computed of them."""
    change(run, "link", "link", tx_bytes=-(2**58), tx_packets=-(2**58), lost_packets=-(2**58))
    change(run, "client", "request", tokens=2**58, t_end_ns=2**58)
    change(run, "audit", "calibration", rtt_ns=2**58, span_ns=1, rate_bps=1e18)
    burst = {"source": "a1", "sink": "b1", "t_first_ns": 0, "t_end_ns": 2**58, "waited": True}
    sizes = {"packet_bytes": 2**30, "sent_packets": 2**30, "received_packets": 0}
    note(run, "tenants", "microburst", T0_NS, **burst, **sizes)
    note(run, "bench", "event", -(2**58), name="long ago")
    note(run, "client", "request", T0_NS, id=2**58, state="failed")
    verdict = rebuild(run).verdict
    assert verdict.status == "UNKNOWN"
    assert any("requests that the plan does not have" in one for one in verdict.trust)


def test_a_journal_is_made_of_regular_files(run: RunDir, tmp_path: Path) -> None:
    """A directory, a link to nothing, a pipe that never ends and a device without end are damage."""
    (run.journal / "directory.jsonl").mkdir()
    (run.journal / "dangling.jsonl").symlink_to(tmp_path / "nothing")
    (run.journal / "endless.jsonl").symlink_to("/dev/zero")
    os.mkfifo(run.journal / "pipe.jsonl")
    said = reasons(run)
    for name in ("directory", "dangling", "endless", "pipe"):
        assert f"journal/{name}.jsonl is not a regular file" in said


@pytest.mark.parametrize("name", ["plan", "manifest", "outcome", "trouble"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    run: RunDir, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a plan there is no run; without a manifest there is."""
    path = run.path / f"{name}.json"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert main([str(run.path)]) == {"plan": 3, "manifest": 0}.get(name, 2)
    said = capsys.readouterr()
    assert name == "manifest" or "is not a regular file" in " ".join(f"{said.out}{said.err}".split())


def test_nothing_is_written_through_links(run: RunDir, tmp_path: Path) -> None:
    """What stood behind them stays as it was, and the run has files of its own."""
    kept = tmp_path / "kept"
    kept.mkdir()
    names = ("verdict.json", "junit.xml", "report.html", "report.md", "requests.parquet")
    for name in names:
        (kept / name).write_text("mine")
    for path in (run.verdict, run.junit, run.report):
        path.symlink_to(kept / path.name)
    os.link(kept / "report.md", run.path / "report.md")
    run.record.symlink_to(kept)
    assert main([str(run.path), "--format", "md"]) == 0
    assert [(kept / name).read_text() for name in names] == ["mine"] * len(names)
    assert sorted(path.name for path in kept.iterdir()) == sorted(names)
    run.record.joinpath("requests.parquet").unlink()
    run.record.joinpath("requests.parquet").symlink_to(kept / "requests.parquet")
    assert main([str(run.path)]) == 0
    assert (kept / "requests.parquet").read_text() == "mine"


@pytest.mark.parametrize("name", ["plan.json", "verdict.json", "journal/link.jsonl", "record/x"])
def test_a_report_takes_no_part_of_the_run_for_its_place(
    run: RunDir, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """However it is written."""
    before = (run.path / name).read_bytes() if (run.path / name).exists() else None
    place = run.path / "journal" / ".." / name
    assert main([str(run.path), "--out", str(place)]) == 3
    assert f"--out {place}: is a part of the run" in capsys.readouterr().err
    assert ((run.path / name).read_bytes() if (run.path / name).exists() else None) == before


@pytest.mark.parametrize("kind", ["html", "md"])
def test_a_path_may_have_any_bytes(run: RunDir, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Even such as are no text."""
    odd = run.path.rename(os.fsdecode(os.fsencode(run.path.parent) + b"/r\xff\x1b"))
    assert main([str(odd), "--format", kind]) == 0
    assert f"r??/report.{kind}" in capsys.readouterr().out
    record.load(RunDir(odd))


def test_a_link_leads_to_a_file(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the directory is called: it is no scheme, no query and no fragment."""
    monkeypatch.chdir(run.path.parent)
    run.path.rename("javascript:alert(1)?#>")
    main(["javascript:alert(1)?#>", "--format", "md", "--out", "x.md"])
    target = Path("x.md").read_text(encoding="utf-8").rpartition("](<")[2]
    assert target == "./javascript:alert%281%29%3F%23%3E/report.html>)\n"


def test_what_controls_a_terminal_is_not_shown(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever wrote the journal does not write to the terminal, nor into a pull request."""
    note(run, "bench", "trust", T0_NS, what="\x1b]0;title\x07 \x9b31m")
    assert main([str(run.path)]) == 2
    assert main([str(run.path), "--format", "md", "--out", "-"]) == 2
    said = capsys.readouterr().out
    assert said.count("?]0;title? ?31m") == 1
    assert "?\\]0;title? ?31m" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)
