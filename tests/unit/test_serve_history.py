"""The history: an index that follows the run directories, and can be made again from them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from testbed import carriers
from testbed.serve import main_metrics
from testbed.serve.history import History
from testbed.serve.indexer import Indexer
from tests.unit.serve_runs import write_small, write_verdict

Rows = list[dict[str, object]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def history(runs: Path) -> Iterator[History]:
    opened = History(runs)
    yield opened
    opened.close()


def names(history: History, query: str = "", **wanted: str) -> list[object]:
    return [row["directory"] for row in history.page(query=query, **wanted).rows]


def test_runs_are_listed_newest_first_in_pages(runs: Path, history: History) -> None:
    """A page is a part of one order, and says how many there are in all."""
    for seed in range(5):
        write_small(runs, seed=seed, at_s=seed)
    assert history.refresh() == 5
    page = history.page(limit=2, offset=1)
    assert [row["seed"] for row in page.rows] == [3, 2]
    assert page.total == 5


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("s.yaml", ""),
        ("--quiet --out /tmp/x s.yaml", ""),
        ("--seed 7 --scale=0.1 s.yaml", "seed=7 scale=0.1"),
        ("--set 'link.a_to_b.rate=1 gbit' --set=seed=3 s.yaml", "link.a_to_b.rate=1 gbit seed=3"),
        ("--set 'unfinished s.yaml", ""),
        ("--scale=0.1 -- runs/drafts/s-12/s.yaml", "text=drafts/s-12 scale=0.1"),
        ("-- drafts/s.yaml", ""),
    ],
)
def test_a_run_says_what_its_command_replaced(runs: Path, history: History, words: str, changed: str) -> None:
    """So that a verdict on something else is not taken for one on the scenario as written."""
    write_small(runs, command=f"python -m testbed.run {words}")
    history.refresh()
    assert history.page().rows[0]["changed"] == changed
    assert history.last_of_each()["congestion"]["changed"] == changed
    assert len(names(history, changed)) == 1


def test_only_what_has_changed_is_read_again(runs: Path, history: History) -> None:
    """A second look finds nothing; a new verdict is taken in; a directory that is gone goes."""
    first, second = write_small(runs, seed=1), write_small(runs, seed=2)
    assert history.refresh() == 2
    assert history.refresh() == 0
    write_verdict(first, "FAIL")
    os.utime(first.verdict, (1, 1))
    assert history.refresh() == 1
    assert history.get("congestion-1")["state"] == "FAIL"  # type: ignore[index]
    for path in second.path.iterdir():
        path.unlink()
    second.path.rmdir()
    history.refresh()
    assert names(history) == ["congestion-1"]
    assert history.metrics_of("congestion-2") == []


def test_a_run_that_is_asked_about_keeps_its_metrics(runs: Path, history: History) -> None:
    """What has not changed is not taken in again; a new verdict is, whoever asks."""
    run = write_small(runs, seed=1)
    history.put("congestion-1")
    history.put_measured("congestion-1", [main_metrics.Measured("ttft_s.p90", 14.0, "s")])
    history.put("congestion-1")
    assert [one["name"] for one in history.metrics_of("congestion-1")] == ["threshold crosses", "ttft_s.p90"]
    assert history.unmeasured() is None
    write_verdict(run, "FAIL")
    os.utime(run.verdict, (1, 1))
    history.put("congestion-1")
    assert history.get("congestion-1")["state"] == "FAIL"  # type: ignore[index]
    assert history.unmeasured() == "congestion-1"


def test_half_a_verdict_is_read_again(runs: Path, history: History) -> None:
    """Its file may keep its time while it is written, and a run is not under way for ever."""
    run = write_small(runs, seed=1, status=None)
    carriers.note(run)
    run.verdict.write_text('{"status": ')
    os.utime(run.verdict, (1, 1))
    history.refresh()
    assert history.running() == ["congestion-1"]
    write_verdict(run, "PASS")
    os.utime(run.verdict, (1, 1))
    history.refresh()
    assert history.get("congestion-1")["state"] == "PASS"  # type: ignore[index]


def test_threads_that_have_ended_leave_nothing_open(history: History) -> None:
    """A server's come and go as long as it lives; each has a connection of its own."""
    for _ in range(20):
        one = threading.Thread(target=history.page)
        one.start()
        one.join()
    held = [one.resolve() for one in Path("/proc/self/fd").iterdir()]
    assert held.count(history.path.resolve()) < 5


def test_runs_that_are_all_cleared_away_are_no_error(runs: Path, history: History) -> None:
    """Their directory is made again, and so is the index."""
    write_small(runs, seed=1)
    history.refresh()
    shutil.rmtree(runs)
    assert names(history) == []
    write_small(runs, seed=2)
    history.refresh()
    assert names(history) == ["congestion-2"]


def test_a_lost_or_damaged_index_is_made_again(runs: Path, history: History) -> None:
    """The directories are the truth: the same rows come back."""
    for seed in range(3):
        write_small(runs, seed=seed, at_s=seed)
    history.refresh()
    before = history.page().rows
    history.close()
    for damage in (b"", b"no database at all" * 100):
        history.path.write_bytes(damage)
        again = History(runs)
        again.refresh()
        assert again.page().rows == before
        again.close()


@pytest.mark.parametrize("all_of_it", [True, False])
def test_an_index_that_is_deleted_meanwhile_is_made_again(
    runs: Path, history: History, *, all_of_it: bool
) -> None:
    """With what lies beside it or without, for every thread that had it open."""
    write_small(runs, seed=1)
    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(history.refresh).result() == 1
        assert names(history) == ["congestion-1"]
        for suffix in ("", "-wal", "-shm") if all_of_it else ("",):
            Path(f"{history.path}{suffix}").unlink()
        assert [pool.submit(names, history).result() for _ in range(4)] == [[]] * 4
        assert pool.submit(history.refresh).result() == 1
        assert names(history) == ["congestion-1"]


def test_an_index_that_is_damaged_meanwhile_is_made_again(runs: Path, history: History) -> None:
    """Its head is what SQLite looks at first."""
    write_small(runs, seed=1)
    history.refresh()
    with history.path.open("r+b") as file:
        file.write(b"x" * 8192)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(names, history).result()
        history.refresh()
        assert pool.submit(names, history).result() == ["congestion-1"]


def test_servers_that_start_together_make_one_index(runs: Path) -> None:
    """Neither takes away what the other has just made."""
    together = threading.Barrier(4)

    def started() -> list[object]:
        together.wait()
        opened = History(runs)
        opened.refresh()
        found = names(opened)
        opened.close()
        return found

    write_small(runs, seed=1)
    with ThreadPoolExecutor(4) as pool:
        assert [one.result() for one in [pool.submit(started) for _ in range(4)]] == [["congestion-1"]] * 4


def test_links_and_hidden_directories_are_no_runs(runs: Path, history: History, tmp_path: Path) -> None:
    """Nothing outside the directory of runs gets in, whatever points there."""
    outside = write_small(tmp_path / "elsewhere", seed=9)
    (runs / "latest").symlink_to(outside.path)
    write_small(runs / ".hidden", seed=8)
    inside = write_small(runs, seed=1)
    inside.manifest.unlink()
    inside.manifest.symlink_to(outside.manifest)
    history.refresh()
    assert names(history) == ["congestion-1"]
    assert history.get("congestion-1")["digest"] == ""  # type: ignore[index]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("congestion", ["congestion-1"]),
        ("full rate", ["full_rate-2"]),
        ("held 2", ["full_rate-2"]),
        ("100%", ["full_rate-2"]),
        ("_", ["full_rate-2"]),
        ("%", ["full_rate-2"]),
        ("' OR 1=1 --", []),
        ("\\", []),
        ("no such words", []),
    ],
)
def test_a_search_is_for_texts_as_they_stand(
    runs: Path, history: History, query: str, found: list[str]
) -> None:
    """Every word has to occur; what means something to SQL means nothing here."""
    write_small(runs, "congestion", 1, note="was met")
    write_small(runs, "full_rate", 2, note="100% held")
    history.refresh()
    assert names(history, query) == found


def test_lists_can_be_of_a_scenario_or_a_state(runs: Path, history: History) -> None:
    """Both by the exact word."""
    write_small(runs, "a", 1, status="FAIL")
    write_small(runs, "ab", 1)
    history.refresh()
    assert names(history, name="a") == ["a-1"]
    assert names(history, state="PASS") == ["ab-1"]
    assert history.counts() == {"FAIL": 1, "PASS": 1}


def test_a_run_without_a_verdict_is_under_way_as_long_as_its_process_is(runs: Path, history: History) -> None:
    """Once nobody carries it out any more, it is UNKNOWN, and the note says what to do."""
    alive, dead = write_small(runs, seed=1, status=None), write_small(runs, seed=2, status=None)
    carriers.note(alive)
    history.refresh()
    assert history.get("congestion-1")["state"] == "RUNNING"  # type: ignore[index]
    assert history.get("congestion-2")["state"] == "UNKNOWN"  # type: ignore[index]
    assert "testbed.report" in history.get("congestion-2")["note"]  # type: ignore[index]
    assert history.running() == ["congestion-1"]
    alive.carrier.unlink()
    assert history.refresh() == 1
    assert history.running() == []
    assert not dead.carrier.exists()


def test_a_run_under_way_says_what_its_process_was_told(runs: Path, history: History) -> None:
    """It has no manifest yet, and never has one when it is killed.

    Words that are no text keep no other run from being taken in.
    """
    run = write_small(runs, status=None, command="")
    command = [sys.executable, "-c", "input()", "--set", "a b=1", "--scale=0.5", b"--set=c=\xe9"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        carrier = carriers.of_process(process.pid)
        assert carrier is not None
        run.carrier.write_bytes(msgspec.json.encode(carrier))
        history.refresh()
        assert history.page(query="scale=0.5").rows[0]["changed"] == "a b=1 scale=0.5 c=\ufffd"
        process.communicate(b"\n")
    assert history.refresh() == 1
    assert history.get(run.path.name)["changed"] == "a b=1 scale=0.5 c=\ufffd"  # type: ignore[index]


def test_plans_that_cannot_be_read_are_no_runs(runs: Path, history: History) -> None:
    """Somebody's other directories, and damaged runs, are left out."""
    write_small(runs, seed=1).plan.write_text("{")
    (runs / "notes").mkdir()
    write_small(runs, seed=2).verdict.write_text('{"status": "PERHAPS"}')
    history.refresh()
    assert names(history) == ["congestion-2"]
    assert history.get("congestion-2")["state"] == "UNKNOWN"  # type: ignore[index]


def test_checks_of_every_run_come_after_what_a_scenario_expects(runs: Path, history: History) -> None:
    """Whoever looks at trends looks for what this scenario is about."""
    run = write_small(runs)
    verdict = json.loads(run.verdict.read_bytes())
    verdict["results"] += [verdict["results"][0] | {"name": name} for name in ("ledger", "zeal")]
    run.verdict.write_text(json.dumps(verdict))
    history.refresh()
    assert [one["name"] for one in history.metric_names("congestion")] == [
        "threshold crosses",
        "zeal",
        "ledger",
    ]


def test_a_trend_is_of_one_metric_of_one_scenario_oldest_first(runs: Path, history: History) -> None:
    """What expectations measured, and main metrics once they were computed."""
    for seed, measured in ((1, 0.5), (2, 0.4), (3, 0.6)):
        write_small(runs, seed=seed, measured=measured, at_s=seed)
    write_small(runs, "other", 1, measured=9.0)
    history.refresh()
    assert [one["value"] for one in history.trend("congestion", "threshold crosses", 2)] == [0.4, 0.6]
    assert history.unmeasured() == "congestion-3"
    history.put_measured("congestion-3", [main_metrics.Measured("ttft_s.p90", 14.0, "s")])
    assert history.unmeasured() == "congestion-2"
    listed = [(one["name"], one["expected"], one["runs"]) for one in history.metric_names("congestion")]
    assert listed == [("threshold crosses", 1, 3), ("ttft_s.p90", 0, 1)]


def test_the_last_verdict_of_each_scenario_leaves_out_what_runs(runs: Path, history: History) -> None:
    """A run that is under way has no verdict yet."""
    write_small(runs, seed=1, status="FAIL", at_s=1)
    carriers.note(write_small(runs, seed=2, status=None, at_s=2))
    history.refresh()
    assert history.last_of_each()["congestion"]["directory"] == "congestion-1"


def test_a_run_without_a_record_has_no_main_metrics(runs: Path) -> None:
    """It is not an error, and nothing is made up."""
    assert main_metrics.of_run(write_small(runs).path) == []


def test_a_record_that_breaks_the_metrics_does_not_stop_the_index(
    runs: Path, history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the run has none, and the next one is looked at."""

    def broken(directory: Path) -> list[main_metrics.Measured]:
        if directory.name == "congestion-2":
            raise ValueError("damaged")
        return [main_metrics.Measured("ttft_s.p90", 1.0, "s")]

    monkeypatch.setattr(main_metrics, "of_run", broken)
    for seed in (1, 2):
        write_small(runs, seed=seed, at_s=seed)
    index = Indexer(history)
    index.start()
    deadline = time.monotonic() + 20
    while history.get("congestion-1") is None or history.unmeasured() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    index.close()
    assert [one["directory"] for one in history.trend("congestion", "ttft_s.p90", 9)] == ["congestion-1"]
    assert "no metrics of congestion-2" in caplog.text


def test_an_index_that_is_closed_reads_no_more(
    runs: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that have come since nobody looked wait for the next server; this one ends at once."""
    index = Indexer(history)
    measured: list[Path] = []
    monkeypatch.setattr(main_metrics, "of_run", lambda directory: measured.append(directory) or [])
    monkeypatch.setattr("testbed.serve.indexer.EVERY_S", 0.0)
    index.start()
    assert index._ready.wait(20)
    time.sleep(0.1)  # until it waits for somebody to look
    write_small(runs, seed=1)
    index.close()
    assert measured == []
