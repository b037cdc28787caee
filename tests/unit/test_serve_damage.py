"""Run directories and files that are damaged, or no files at all: they are left out, and nothing else is."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import polars as pl
import pytest

from testbed import tables
from testbed.errors import ScenarioError
from testbed.rundir import RunDir
from testbed.serve import application, contained, curves, exposition
from testbed.serve.parts import Parts
from testbed.serve.scenarios import Scenarios
from tests.unit.serve_client import client_of
from tests.unit.serve_runs import write_small, write_verdict
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import note, write_run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[httpx.Client, Parts]]:
    (tmp_path / "scenarios").mkdir()
    app, parts = application.make(tmp_path / "runs", tmp_path / "scenarios")
    with client_of(app) as client:
        yield client, parts


def recorded(runs: Path, seed: int) -> RunDir:
    run = write_run(runs / f"congestion-{seed}", make_plan(seed=seed, requests=10), tcp_lines=8)
    tables.build(run, make_plan(seed=seed, requests=10))
    write_verdict(run, "PASS")
    return run


def listed(client: httpx.Client) -> list[str]:
    return sorted(run["directory"] for run in client.get("/api/v1/runs").json()["runs"])


NESTED = '{"x": ' + "[" * 100_000
PLAN = '{"name": "n", "question": "", "scale": 1, '


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("plan.json", f'{PLAN}"seed": {2**63}, "duration_ns": 1}}'),
        ("plan.json", f'{PLAN}"seed": 1, "duration_ns": 1{"0" * 400}}}'),
        ("plan.json", NESTED),
        ("manifest.json", NESTED),
        ("carrier.json", NESTED),
        ("carrier.json", f'{{"pid": {2**70}, "started_ticks": 1, "boot": "", "since_s": 0}}'),
    ],
)
def test_a_damaged_run_holds_up_no_other(served: tuple[httpx.Client, Parts], file: str, text: str) -> None:
    """Neither the list nor the run itself is an error of the server."""
    client, parts = served
    odd = write_small(parts.runs, "odd", 1)
    (odd.path / file).write_text(text)
    write_small(parts.runs, "good", 1)
    parts.history.refresh()
    assert "good-1" in listed(client)
    assert client.get("/api/v1/runs/odd-1").status_code in (200, 404)
    assert client.post("/api/v1/runs/odd-1/stop", json={}).status_code == 409


def test_an_index_that_cannot_be_written_is_told_as_such(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: 503, with what to look at, and not a fault of the server's."""
    client, parts = served

    def full(**_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(parts.history, "page", full)
    answer = client.get("/api/v1/runs")
    assert answer.status_code == 503
    (problem,) = answer.json()["problems"]
    assert (problem["where"], problem["found"]) == ("history", "database or disk is full")
    assert problem["next_step"]


def test_what_nobody_has_thought_of_does_not_end_the_indexer(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reading of runs or the metrics raise, the next look is taken."""

    def broken(*_: object) -> None:
        raise pl.exceptions.PanicException("unforeseen")  # type: ignore[call-arg]

    client, parts = served
    monkeypatch.setattr("testbed.serve.main_metrics.of_run", broken)
    with monkeypatch.context() as context:
        failed = threading.Event()
        context.setattr(parts.history, "_directories", lambda: failed.set() or 1 / 0)
        client.get("/api/v1/runs")
        assert failed.wait(20)
    monkeypatch.setattr("testbed.serve.main_metrics.of_run", broken)
    write_small(parts.runs, "good", 1)
    deadline_s = time.monotonic() + 20
    while listed(client) != ["good-1"] or parts.history.unmeasured() is not None:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(served: tuple[httpx.Client, Parts]) -> None:
    """Among the scenarios it is none; in a run it is as if it were not there."""
    client, parts = served
    run = write_small(parts.runs, "odd", 1, status=None)
    os.mkfifo(parts.scenarios.root / "f.yaml")
    for path in (run.verdict, run.carrier, run.journal / "bench.jsonl"):
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
    parts.history.refresh()
    assert client.get("/api/v1/scenarios").json() == []
    assert client.get("/api/v1/runs/odd-1").json()["run"]["state"] == "UNKNOWN"
    assert client.get("/api/v1/runs/odd-1/signals").status_code == 200


def test_a_run_is_as_it_was_judged_last(served: tuple[httpx.Client, Parts]) -> None:
    """By whomever: nobody has to ask for the list first."""
    client, parts = served
    run = write_small(parts.runs, "odd", 1, status=None)
    assert client.get("/api/v1/runs/odd-1").json()["run"]["state"] == "UNKNOWN"
    write_verdict(run, "PASS")
    found = client.get("/api/v1/runs/odd-1").json()
    assert (found["run"]["state"], found["results"][0]["status"]) == ("PASS", "PASS")


def test_files_that_are_removed_meanwhile_are_not_listed(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a record is made again: the others are listed."""
    client, parts = served
    run = recorded(parts.runs, 1)
    found = contained.find

    def removing(directory: Path, wanted: str) -> Path | None:
        path = found(directory, wanted)
        if wanted == "record/requests.parquet":
            run.record.joinpath("requests.parquet").unlink()
        return path

    monkeypatch.setattr(contained, "find", removing)
    files = [file["name"] for file in client.get("/api/v1/runs/congestion-1").json()["files"]]
    assert "record/transfers.parquet" in files
    assert "record/requests.parquet" not in files


def test_a_damaged_record_leaves_the_metrics_of_others(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of another type, or what breaks the reader itself."""
    client, parts = served
    table = recorded(parts.runs, 1).record / "requests.parquet"
    pl.read_parquet(table).with_columns(ttft_s=pl.lit("soon")).write_parquet(table)
    parts.history.refresh()
    assert client.get("/metrics").status_code == 200

    def broken(*_: object, **__: object) -> pl.DataFrame:
        raise pl.exceptions.PanicException("a flipped byte")  # type: ignore[call-arg]

    exposition._summed.cache_clear()
    monkeypatch.setattr(exposition.pl, "read_parquet", broken)
    assert client.get("/metrics").status_code == 200


def test_damaged_records_cannot_be_compared(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says so; it is no failure of the server."""

    def broken(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("a flipped byte")  # type: ignore[call-arg]

    client, parts = served
    for seed in (1, 2):
        recorded(parts.runs, seed)
    monkeypatch.setattr(curves.comparison, "compare", broken)
    answer = client.get("/api/v1/comparison?first=congestion-1&second=congestion-2")
    assert answer.status_code == 409
    assert "damaged" in answer.json()["problems"][0]["found"]


def test_a_journal_of_impossible_numbers_is_still_followed(served: tuple[httpx.Client, Parts]) -> None:
    """The line is left out, and the events come to their end."""
    client, parts = served
    run = recorded(parts.runs, 1)
    note(run, "client", "request", 10, id=99, state="completed", t_end_ns=10**400)
    assert client.get("/api/v1/runs/congestion-1/signals").status_code == 200
    assert "event: end" in client.get("/api/v1/runs/congestion-1/events").text


def test_odd_scenario_files_leave_the_list_of_the_others(served: tuple[httpx.Client, Parts]) -> None:
    """Names that no path can have, and texts that no answer can."""
    client, parts = served
    root = parts.scenarios.root
    rest = "\nquestion: why?\nlink: {}\n"
    (root / os.fsdecode(b"x\xff.yaml")).write_text(f"name: x{rest}")
    (root / "two\nlines.yaml").write_text(f"name: x{rest}")
    (root / "half.yaml").write_text(f'name: "\\ud800"{rest}')
    (root / "long.yaml").write_text(f"name: 0x{'f' * 6000}{rest}")
    (root / "good.yaml").write_text(f"name: good{rest}")
    found = {one["path"]: one["name"] for one in client.get("/api/v1/scenarios").json()}
    assert set(found) == {"good.yaml", "half.yaml", "long.yaml"}
    assert (found["good.yaml"], found["half.yaml"]) == ("good", "")


def test_runs_below_the_scenarios_are_no_scenarios(tmp_path: Path) -> None:
    """As with `--scenarios .`: each run has a copy of its scenario, each draft too, and that is no loop."""
    text = "name: good\nquestion: why?\nlink: {}\n"
    (tmp_path / "good.yaml").write_text(text)
    for place in ("runs/good-1", "runs/drafts/good-1", "below/runs"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "scenario.yaml").write_text(text)
    scenarios = Scenarios(tmp_path, tmp_path / "runs")
    assert [one.path for one in scenarios.known()] == ["good.yaml", "below/runs/scenario.yaml"]
    draft = scenarios.draft(text, tmp_path / "good.yaml")
    assert sorted(one.name for one in draft.parent.iterdir()) == ["below", "good.yaml"]


@pytest.mark.parametrize("line", ["name: 0x" + "f" * 6000, "seed: 0x" + "f" * 6000, 'name: "\\ud800"'])
def test_odd_values_are_problems_with_their_line(served: tuple[httpx.Client, Parts], line: str) -> None:
    """Not a failure of the server."""
    client, _ = served
    found = client.post("/api/v1/check", json={"text": f"# first\n{line}\n"}).json()
    assert 2 in [problem["line"] for problem in found["problems"]]


def test_a_draft_that_cannot_be_written_leaves_nothing(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be full in the midst of it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _, parts = served
    (parts.scenarios.root / "beside.py").write_text("# a scheduler")
    monkeypatch.setattr("testbed.serve.scenarios.shutil.copy2", full)
    with pytest.raises(ScenarioError, match="No space left"):
        parts.scenarios.draft("name: x", None)
    assert list((parts.runs / "drafts").iterdir()) == []


def test_a_link_that_leads_nowhere_keeps_no_text_from_being_run(served: tuple[httpx.Client, Parts]) -> None:
    """Round in circles, or to what has gone: it lies beside the draft as it lay beside the scenario."""
    _, parts = served
    (parts.scenarios.root / "round").symlink_to("round")
    (parts.scenarios.root / "gone").symlink_to("nothing")
    draft = parts.scenarios.draft("name: x", None)
    assert draft.read_text() == "name: x"
    assert {path.name for path in draft.parent.iterdir() if path.is_symlink()} >= {"round", "gone"}


def test_only_so_many_watch_at_once(
    served: tuple[httpx.Client, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is told so, rather than that the server has no file left for anybody."""
    client, parts = served
    write_small(parts.runs, "quiet", 1)
    monkeypatch.setattr("testbed.serve.live.MOST_WATCHERS", 0)
    assert client.get("/api/v1/runs/quiet-1/events").status_code == 503
