"""Recording a profile: what is asked for, how samples become rows, and a whole recording of a tiny model."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier, Thread

import msgspec
import polars as pl
import pytest

from agents.kv_layouts import MODELS
from agents.measurements import Decode, Kv, Line, Prefill
from agents.shapes import SHAPES
from testbed.command import run_command
from testbed.errors import MachineError, Problem
from testbed.profiles.read import read
from testbed.profiles.table import COLUMNS, About, Row, about_path, plot_path, write
from testbed.record import asked, samples
from testbed.record.__main__ import app

KIMI = SHAPES["kimi_linear_48b"]


def run(*arguments: str) -> int:
    return run_command(app, arguments)


def measured() -> list[Line]:
    """Three samples of the first period (KDA 1, 2, 3 s, MLA 10 s), the second half as slow again."""
    prefill = [
        Prefill(512, factor * 17.0, tuple(factor * one for one in (1.0, 2.0, 3.0, 10.0)))
        for factor in (1.0, 1.5, 2.0)
    ]
    decode = [Decode(512, 2, 0.5, (0.1, 0.1, 0.1, 0.1))]
    return [*prefill, *decode, Kv(512, (7, 7, 7, 512))]


def test_missing_layers_take_the_mean_of_their_kind() -> None:
    """A model of which one period was measured costs what its 20 KDA and 7 MLA layers would."""
    rows = samples.rows(measured(), KIMI)
    layers = {row.layer: row for row in rows if row.kind == "layer"}
    assert len(layers) == len(KIMI.layers)
    assert [layers[number].median_s for number in (0, 1, 2, 3)] == [1.5, 3.0, 4.5, 15.0]
    assert [layers[number].median_s for number in (4, 7, 25, 26)] == [3.0, 15.0, 3.0, 15.0]
    prefill = next(row for row in rows if row.kind == "prefill")
    assert prefill.median_s == pytest.approx(1.5 * (17 + 17 * 2 + 6 * 10))
    assert prefill.samples == 3


def test_sizes_and_steps_are_of_the_whole_model() -> None:
    """Bytes of KV and the time of a step count the layers that were not measured."""
    rows = samples.rows(measured(), KIMI)
    assert next(row for row in rows if row.kind == "kv").size_bytes == 20 * 7 + 7 * 512
    step = next(row for row in rows if row.kind == "decode")
    assert (step.batch, step.tokens) == (2, 512)
    assert step.median_s == pytest.approx(0.5 + 23 * 0.1)


def test_quartiles_are_those_of_the_samples() -> None:
    """Of three samples the quartiles lie half way to the outer ones; of one all three are the same."""
    rows = samples.rows(measured(), KIMI)
    prefill = next(row for row in rows if row.kind == "prefill")
    assert prefill.p25_s == pytest.approx(1.25 * 111)
    assert prefill.p75_s == pytest.approx(1.75 * 111)
    step = next(row for row in rows if row.kind == "decode")
    assert step.p25_s == step.median_s == step.p75_s


def test_wide_spreads_are_named_widest_first() -> None:
    """Points whose quartiles are more than a tenth of the median apart are said, and no others."""
    rows = [
        Row(kind="prefill", tokens=512, median_s=1.0, p25_s=0.96, p75_s=1.04, samples=5),
        Row(kind="prefill", tokens=1024, median_s=1.0, p25_s=0.9, p75_s=1.1, samples=5),
        Row(kind="decode", tokens=64, batch=2, median_s=1.0, p25_s=0.5, p75_s=1.0, samples=5),
        Row(kind="layer", tokens=512, layer=0, median_s=1.0, p25_s=0.1, p75_s=2.0, samples=5),
    ]
    assert samples.restless(rows) == ["decode of 64 tokens, batch 2: 50 %", "prefill of 1024 tokens: 20 %"]


def test_a_profile_on_disk_has_the_columns_and_nothing_else_stays(tmp_path: Path) -> None:
    """The table has the schema's columns and types; JSON and picture stand beside it, nothing else does."""
    path = tmp_path / "x.parquet"
    write(path, [Row(kind="prefill", tokens=512, median_s=1.0)], About(model="m", source="s"), plot="<svg/>")
    assert pl.read_parquet(path).schema == pl.Schema(COLUMNS)
    assert msgspec.json.decode(about_path(path).read_bytes(), type=About).model == "m"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.json", "x.parquet", "x.svg"]


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    """A profile that cannot be written leaves no temporary file."""
    path = tmp_path / "x.parquet"
    with pytest.raises(OSError, match="too long"):
        write(tmp_path / f"{'x' * 250}.parquet", [], About(model="", source=""))
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write(path, [], About(model="", source=""), force=True)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("512", "at least 2"),
        ("1024,512", "ascending"),
        ("0,512", "from 1 to 4096"),
        ("512,4097", "from 1 to 4096"),
        ("a,b", "whole numbers"),
        ("1,1_0", "whole numbers"),
        ("1,\u0663", "whole numbers"),
        (",".join(map(str, range(1, 400))), "at most 256"),
    ],
)
def test_a_wrong_list_of_lengths_is_said(text: str, found: str) -> None:
    """Lengths are whole numbers in plain digits that rise up to a limit: at least two, and not too many."""
    problems: list[Problem] = []
    asked.numbers("--lengths", text, 2, 4096, problems)
    assert len(problems) == 1
    assert found in str(problems[0])


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    """Of two at the same time one is refused, or with `force` replaces the other: the files are of one."""
    path, lost = tmp_path / "x.parquet", []

    def writes(name: str, points: int, start: Barrier, *, force: bool) -> None:
        rows = [Row(kind="prefill", tokens=tokens, median_s=1.0) for tokens in range(1, points + 1)]
        start.wait()
        try:
            write(path, rows, About(model=name, source="s"), plot=name, force=force)
        except FileExistsError:
            lost.append(name)

    for force in (False, True, True, True):
        start = Barrier(2)
        both = [
            Thread(target=writes, args=(name, points, start), kwargs={"force": force})
            for name, points in (("a", 3), ("b", 3000))
        ]
        for one in both:
            one.start()
        for one in both:
            one.join()
        name = plot_path(path).read_text()
        assert msgspec.json.decode(about_path(path).read_bytes(), type=About).model == name
        assert pl.read_parquet(path).height == {"a": 3, "b": 3000}[name]
        assert len(list(tmp_path.iterdir())) == 3
    assert len(lost) == 1


@pytest.mark.parametrize(("number", "exit_code"), [(errno.ENOSPC, 2), (errno.EROFS, 3)])
def test_a_full_disk_is_the_machine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, exit_code: int
) -> None:
    """No room ends the command with 2, a place where nothing can be written with 3; nothing stays."""
    (tmp_path / "a.csv").write_text("tokens,prefill_s\n1,1\n2,2\n")

    def full(path: Path, _content: bytes) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert run("--import", str(tmp_path / "a.csv"), "--out", str(tmp_path / "x.parquet")) == exit_code
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_a_place_that_cannot_be_is_refused_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below a file, and with too long a name; no directory is made."""
    (tmp_path / "file").touch()
    for out, says in (
        (tmp_path / "file" / "x", "is no directory"),
        (tmp_path / "n" / ("x" * 250), "too long"),
    ):
        assert run("--model", "tiny_hybrid", "--out", f"{out}.parquet") == 3
        assert says in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_step_that_no_memory_holds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest batch at the longest context has a limit of its own."""
    held = ("--batches", "4096", "--contexts", "1,1048576")
    assert run("--model", "tiny_hybrid", *held, "--out", str(tmp_path / "x.parquet")) == 3
    assert "at most 16777216 tokens in all" in capsys.readouterr().err


RECORDER = """
import sys
from rich.console import Console
from agents.measurements import Wanted
from testbed.record.measuring import lines
some = dict(lengths=(1, 2), batches=(1,), contexts=(1, 2), warmup=0, repeats=1, threads=1)
sys.executable = sys.argv[1]
list(lines(Wanted(model="tiny_hybrid", layers=4, device="cpu", exact=True, **some), Console()))
"""


def test_measuring_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    """When the recorder is killed outright, the process that measures, here one that sleeps, ends too."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    recorder = subprocess.Popen([sys.executable, "-c", RECORDER, str(sleeper)])
    try:
        measuring = _sleeping(Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children"))
    finally:
        recorder.kill()
        recorder.wait()
    ended_by_s = time.monotonic() + 5
    while (said := Path(f"/proc/{measuring}/cmdline")).exists() and said.read_bytes():
        assert time.monotonic() < ended_by_s
        time.sleep(0.02)


def _sleeping(children: Path) -> str:
    """The process that measures, once it is what it will be."""
    ended_by_s = time.monotonic() + 30
    while time.monotonic() < ended_by_s:
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0060\0":
                return pid
        time.sleep(0.02)
    raise AssertionError("it was never started")


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line with several mistakes ends with 3 and names each, before anything is started."""
    out = tmp_path / "x.csv"
    wrong = ("--model", "gpt", "--device", "tpu", "--kernel", "vax", "--lengths", "9", "--contexts", "9")
    assert run(*wrong, "--out", str(out)) == 3
    said = capsys.readouterr().err
    for part in ("--model", "--device", "--kernel", "--lengths", "--contexts", "--out"):
        assert f"{part}" in said
    assert "kimi_linear_48b" in said


def test_a_profile_that_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any of the three files in the way ends the command with 3; --force is named."""
    (tmp_path / "x.json").write_text("{}")
    assert run("--model", "tiny_hybrid", "--out", str(tmp_path / "x.parquet")) == 3
    assert "--force overwrites" in capsys.readouterr().err


def test_each_kind_of_layer_must_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer layers than show every kind are refused, with the least that does."""
    out = str(tmp_path / "x.parquet")
    assert run("--model", "kimi_linear_48b", "--layers", "3", "--out", out) == 3
    assert "4 to 27" in capsys.readouterr().err


def test_without_torch_the_machine_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is not installed, the error is the machine's and says how to get it."""
    monkeypatch.setattr(asked, "find_spec", lambda _name: None)
    with pytest.raises(MachineError, match=r"pip install -r requirements-torch\.txt"):
        asked.require_torch()


def test_without_a_gpu_cuda_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for CUDA where there is none, the command ends with 4 and leaves no profile."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out = tmp_path / "x.parquet"
    assert run("--model", "tiny_hybrid", "--device", "cuda", "--out", str(out)) == 4
    assert "no CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_tiny_model_is_recorded_whole(tmp_path: Path) -> None:
    """What the command leaves behind can be read, covers what was asked, and has the layout's KV sizes."""
    pytest.importorskip("torch")
    out = tmp_path / "new" / "x.parquet"
    options = (
        "--lengths",
        "16,48",
        "--batches",
        "1,2",
        "--contexts",
        "8,24",
        "--repeats",
        "2",
        "--warmup",
        "0",
    )
    assert run("--model", "tiny_hybrid", "--device", "cpu", *options, "--out", str(out)) == 0
    profile = read(out)
    assert [tokens for tokens, _ in profile.knots] == [16, 48]
    assert profile.model == "tiny_hybrid"
    assert profile.bs_max == 2
    assert len(profile.layers[0].ends) == len(SHAPES["tiny_hybrid"].layers)
    table = pl.read_parquet(out)
    layers = table.filter((pl.col("kind") == "layer") & (pl.col("tokens") == 48))["median_s"].sum()
    whole = table.filter((pl.col("kind") == "prefill") & (pl.col("tokens") == 48))["median_s"][0]
    assert layers == pytest.approx(whole, rel=0.5)
    sizes = table.filter(pl.col("kind") == "kv").sort("tokens")["size_bytes"].to_list()
    assert sizes == [MODELS["tiny_hybrid"].kv_bytes(tokens) for tokens in (16, 48)]
    about = msgspec.json.decode(about_path(out).read_bytes(), type=About)
    assert about.exact
    assert "--lengths 16,48" in about.command
    assert plot_path(out).read_text().startswith("<svg")
