"""Recording a profile: what is asked for, how samples become rows, and a whole recording of a tiny model."""

from __future__ import annotations

from pathlib import Path

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
    with pytest.raises(OSError, match="No such file"):
        write(tmp_path / "gone" / "x.parquet", [], About(model="", source=""))
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write(path, [], About(model="", source=""))
    assert not [one.name for one in tmp_path.iterdir() if one.name.endswith(".part")]


@pytest.mark.parametrize(
    ("text", "found"),
    [("512", "at least 2"), ("1024,512", "ascending"), ("0,512", "from 1 on"), ("a,b", "whole numbers")],
)
def test_a_wrong_list_of_lengths_is_said(text: str, found: str) -> None:
    """Lengths are whole numbers from 1 on that rise, at least two."""
    problems: list[Problem] = []
    asked.numbers("--lengths", text, 2, problems)
    assert len(problems) == 1
    assert found in str(problems[0])


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line with several mistakes ends with 3 and names each, before anything is started."""
    out = tmp_path / "x.csv"
    assert (
        run("--model", "gpt", "--device", "tpu", "--lengths", "9", "--contexts", "9", "--out", str(out)) == 3
    )
    said = capsys.readouterr().err
    for part in ("--model", "--device", "--lengths", "--contexts", "--out"):
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
