"""A run with real kernels as a profile: what counts, what does not, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.kv_layouts import MODELS
from testbed.command import run_command
from testbed.profiles import imports
from testbed.profiles.read import read
from testbed.profiles.table import About, Row, about_path
from testbed.record.__main__ import app
from testbed.resolve import load_and_resolve
from testbed.rundir import RunDir
from testbed.verdict import conclude

SCENARIO = Path(__file__).parents[2] / "scenarios/recorded_profile.yaml"
LAYERS = len(MODELS["tiny_hybrid"].layers)
MS = 1_000_000


def ran(directory: Path, *overrides: str) -> RunDir:
    """A run's directory with its plan, a verdict, and an empty journal."""
    run = RunDir(directory)
    run.journal.mkdir(parents=True)
    load_and_resolve(SCENARIO, overrides=overrides)[1].write(run.plan)
    conclude((), ()).write(run.verdict)
    return run


def noted(run: RunDir, writer: str, *lines: dict[str, Any]) -> None:
    with (run.journal / f"{writer}.jsonl").open("ab") as file:
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)


def prefill(
    number: int, tokens: int, at_ms: int, *, layer_ms: int, moments: int = LAYERS
) -> list[dict[str, Any]]:
    """Lines of a prefill that took `layer_ms` a layer, and 1 ms after the last of them."""
    named = {"id": number, "attempt": 0}
    done_ms = [at_ms + (layer + 1) * layer_ms for layer in range(moments)]
    produced = [
        {"kind": "produced", "t_ns": at * MS, "layer": layer, "size_bytes": 7, **named}
        for layer, at in enumerate(done_ms)
    ]
    whole = {"tokens": tokens, "kv_bytes": 9 * tokens}
    times = {"t_start_ns": at_ms * MS, "t_end_ns": (at_ms + LAYERS * layer_ms + 1) * MS}
    return [*produced, {"kind": "prefill", "t_ns": at_ms * MS, **whole, **times, **named}]


def decode(number: int, tokens: int, at_ms: int, until_ms: int) -> dict[str, Any]:
    moments = {"t_ns": at_ms * MS, "t_first_ns": until_ms * MS, "t_last_ns": until_ms * MS}
    return {"kind": "decode", "id": number, "tokens": tokens, **moments}


def points(rows: list[Row], kind: str) -> dict[tuple[int, int | None], tuple[float | None, int | None]]:
    return {(one.tokens, one.layer): (one.median_s, one.samples) for one in rows if one.kind == kind}


def rows_of(run: RunDir) -> list[Row]:
    return imports.convert([run.path], None, model="tiny_hybrid", layers=None)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Prompts 0 and 3 have 4,096 tokens, 1 has 5,632 (`one_by_one.jsonl`)."""
    run = ran(tmp_path / "run")
    noted(run, "prfaas-1", *prefill(0, 4096, 0, layer_ms=10), *prefill(3, 4096, 9000, layer_ms=20))
    noted(run, "prfaas-1", *prefill(1, 5632, 2000, layer_ms=30))
    noted(run, "decode-1", decode(0, 1, 500, 530), decode(1, 3, 3000, 3120), decode(3, 1, 9500, 9540))
    return run


def test_a_run_is_a_profile(run: RunDir) -> None:
    """Prompts and layers by length as medians over requests, steps by what a request held half-way, sizes."""
    rows = rows_of(run)
    of_4096, of_5632 = (LAYERS * 15 + 1) / 1000, (LAYERS * 30 + 1) / 1000
    assert points(rows, "prefill") == {
        (4096, None): (pytest.approx(of_4096), 2),
        (5632, None): (pytest.approx(of_5632), 1),
    }
    layers = points(rows, "layer")
    assert len(layers) == 2 * LAYERS
    assert layers[4096, 0] == (pytest.approx(0.015), 2)
    assert layers[5632, LAYERS - 1] == (pytest.approx(0.030), 1)
    assert points(rows, "decode") == {
        (4096, None): (pytest.approx(0.035), 2),
        (5633, None): (pytest.approx(0.040), 1),
    }
    assert {one.tokens: one.size_bytes for one in rows if one.kind == "kv"} == {4096: 36864, 5632: 50688}


def test_what_ran_otherwise_does_not_count(run: RunDir) -> None:
    """Prompts with a cached part, layers that left together, requests that decoded together."""
    before = rows_of(run)
    noted(run, "prfaas-1", *prefill(4, 512, 12000, layer_ms=1))
    noted(run, "decode-1", decode(6, 1, 15000, 15100), decode(7, 1, 15050, 15200), decode(9, 1, 15090, 15095))
    assert rows_of(run) == before
    noted(run, "prfaas-1", *prefill(2, 3072, 14000, layer_ms=1, moments=2))
    assert {tokens for tokens, _ in points(rows_of(run), "layer")} == {4096, 5632}


def test_the_command_names_the_model_of_the_run(run: RunDir, tmp_path: Path) -> None:
    """The profile can be replayed, and says which run it is of."""
    out = tmp_path / "mine.parquet"
    assert run_command(app, ["--import", str(run.path), "--out", str(out)]) == 0
    about = msgspec.json.decode(about_path(out).read_bytes(), type=About)
    assert (about.model, about.source) == ("tiny_hybrid", "run (run)")
    profile = read(out)
    assert (profile.bs_max, profile.contexts) == (1, (4096, 5633))
    replay = [f"clusters.{one}.profile={out}" for one in ("prfaas", "pd")]
    trace = tmp_path / "two.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 4096, "output_length": 1, "hash_ids": []}\n')
    options = ["compute=replay", f"workload.trace={trace}", *replay]
    assert load_and_resolve(SCENARIO, overrides=options)[1].profiles


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["compute=replay"], "a run with compute: replay"),
        (["timeline=[{at: 1s, for: 1s, slow: prfaas-1, factor: 2}]"], "a run with faults"),
    ],
)
def test_other_runs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], says: str
) -> None:
    """Replayed times are not measured ones, and faults make an instance another."""
    run = ran(tmp_path / "run", *overrides)
    assert run_command(app, ["--import", str(run.path), "--out", str(tmp_path / "x.parquet")]) == 3
    assert says in capsys.readouterr().err


def test_what_is_no_run_is_refused(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without plan, a journal with a malformed line, a run in which nothing was computed."""
    command = ["--out", str(tmp_path / "x.parquet"), "--import"]
    (tmp_path / "empty").mkdir()
    assert run_command(app, [*command, str(tmp_path / "empty")]) == 3
    assert "has no plan of a run" in capsys.readouterr().err
    assert run_command(app, [*command, str(ran(tmp_path / "idle").path)]) == 3
    assert "prefill rows of 0 lengths" in capsys.readouterr().err
    (run.journal / "router.jsonl").write_text("nonsense\n")
    assert run_command(app, [*command, str(run.path)]) == 3
    assert "router.jsonl: 1 malformed line(s)" in capsys.readouterr().err


def refusal(run: RunDir, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(app, ["--import", str(run.path), "--out", str(run.path / "x.parquet")]) == 3
    return capsys.readouterr().err


def test_a_run_that_is_not_trusted_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """With every reason; one that was never judged, too."""
    conclude((), ("the link was slow", "it was \x1b late")).write(run.verdict)
    assert refusal(run, capsys) == (
        f"{run.path}: its verdict is UNKNOWN: the link was slow\n"
        f"{run.path}: its verdict is UNKNOWN: it was ? late\n"
    )
    run.verdict.unlink()
    assert "has no verdict\n    next: python -m testbed.report" in refusal(run, capsys)


def test_a_damaged_run_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that nobody planned, a model that nobody knows, a pipe that would be waited for."""
    whole = run.plan.read_bytes()
    run.plan.write_bytes(whole.replace(b'"tiny_hybrid"', b'"gone\\u001b"'))
    assert "a run of model 'gone\\x1b'\n    allowed: " in refusal(run, capsys)
    run.plan.write_bytes(whole)
    noted(run, "decode-1", decode(99, 1, 20000, 20100))
    assert "requests that the plan does not have were decoded: [99]" in refusal(run, capsys)
    os.mkfifo(run.journal / "pipe.jsonl")
    assert "journal/pipe.jsonl is not a regular file" in refusal(run, capsys)
    run.plan.unlink()
    os.mkfifo(run.plan)
    assert "has no plan of a run" in refusal(run, capsys)


def test_no_colours_where_the_environment_wants_none(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, too."""
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run_command(app, ["--import", str(run.path), "--out", str(tmp_path / "x.parquet")]) == 0
    assert "\x1b" not in capsys.readouterr().out
