"""Profiles that others have measured: each format into the project's own table, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from testbed.command import run_command
from testbed.errors import ScenarioError
from testbed.profiles import imports
from testbed.profiles.read import read
from testbed.profiles.table import About, Row, about_path
from testbed.record.__main__ import app

PREFILL = {"prefill_isl": [100, 1000], "prefill_ttft": [20.0, 150.0], "prefill_thpt_per_gpu": [5e3, 6.6e3]}
DECODE = {
    "x_kv_usage": [0.1, 0.2, 0.4],
    "y_context_length": [1000, 1000, 2000],
    "z_itl": [5.0, 6.0, 7.0],
    "z_thpt_per_gpu": [1.0, 1.0, 1.0],
    "max_kv_tokens": [40_000],
}
STATIC = "model,isl,osl,prefix,bs,ttft,tpot,tp\n"
ATTENTION = (
    "n_embd,n_kv_head,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,"
    "time_stats.attn_prefill.median,time_stats.attn_decode.median\n"
)
OPERATIONS = (
    "input_layernorm attn_pre_proj attn_rope attn_post_proj post_attention_layernorm mlp_up_proj mlp_act "
    "mlp_down_proj add"
)
MLP = (
    "n_embd,n_kv_head,num_tensor_parallel_workers,num_tokens,"
    + ",".join(f"time_stats.{name}.median" for name in OPERATIONS.split())
    + "\n"
)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def convert(*paths: Path, model: str = "", layers: int | None = None) -> list[Row]:
    return imports.convert(paths, None, model=model, layers=layers)


def refused(*paths: Path, says: str, model: str = "", layers: int | None = None) -> None:
    with pytest.raises(ScenarioError, match=re.escape(says)):
        convert(*paths, model=model, layers=layers)


def points(rows: list[Row], kind: str) -> list[tuple[int, int | None, float | None]]:
    return [(row.tokens, row.batch, row.median_s) for row in rows if row.kind == kind]


def npz(path: Path, arrays: dict[str, list[int] | list[float]]) -> Path:
    with path.open("wb") as file:
        np.savez(file, **{name: np.array(values) for name, values in arrays.items()})
    return path


def test_dynamo_prefill_and_decode_are_one_profile(tmp_path: Path) -> None:
    """Milliseconds become seconds, and a share of the KV cache the batch that holds so much."""
    rows = convert(npz(tmp_path / "p.npz", PREFILL), npz(tmp_path / "d.npz", DECODE))
    assert points(rows, "prefill") == [(100, None, 0.02), (1000, None, 0.15)]
    assert points(rows, "decode") == [(1000, 4, 0.005), (1000, 8, 0.006), (2000, 8, 0.007)]


def test_dynamo_json_is_the_same(tmp_path: Path) -> None:
    """The planner's JSON files, where one number is no list, give the same rows as the arrays."""
    both = written(tmp_path / "raw.json", json.dumps({**PREFILL, **DECODE, "max_kv_tokens": 40_000}))
    assert convert(both) == convert(npz(tmp_path / "p.npz", PREFILL), npz(tmp_path / "d.npz", DECODE))


def test_dynamo_arrays_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Other arrays, unequal lengths, a NaN and a file that is no archive are each said."""
    refused(npz(tmp_path / "a.npz", {"x": [1]}), says="prefill_isl, prefill_ttft (prefill)")
    refused(npz(tmp_path / "b.npz", {**PREFILL, "prefill_isl": [1, 2, 3]}), says="equally many of each")
    nan = npz(tmp_path / "c.npz", {**PREFILL, "prefill_ttft": [1.0, float("nan")]})
    refused(nan, says="prefill_ttft[1]: nan")
    refused(written(tmp_path / "d.npz", "no archive"), says="not a file of arrays")
    refused(tmp_path / "none.npz", says="cannot be read")


def test_aiconfigurator_static_estimates(tmp_path: Path) -> None:
    """Batch 1 is prefill; every line with more than one token is decode, at the mean context."""
    text = f"{STATIC}m,1024,512,0,1,80,10,8\nm,1024,512,0,4,300,14,8\nm,4096,512,0,1,310,12,8\n"
    rows = convert(written(tmp_path / "a.csv", text))
    assert points(rows, "prefill") == [(1024, None, 0.08), (4096, None, 0.31)]
    assert points(rows, "decode") == [(1280, 1, 0.01), (4352, 1, 0.012), (1280, 4, 0.014)]


def test_aiconfigurator_results_with_waiting_are_refused(tmp_path: Path) -> None:
    """Aggregated results, two setups, a cached prefix and a malformed line are each said with their place."""
    agg = written(tmp_path / "a.csv", f"num_ctx_reqs,{STATIC}1,m,1024,512,0,1,80,10,8\n")
    refused(agg, says="not a static estimate: has num_ctx_reqs")
    two = written(tmp_path / "b.csv", f"{STATIC}m,1024,512,0,1,80,10,8\nm,2048,512,0,1,80,10,4\n")
    refused(two, says="2 values of tp: 8, 4")
    bad = written(tmp_path / "c.csv", f"{STATIC}m,1024,512,128,1,80,10,8\nm,x,512,0,1,80,10,8\n")
    refused(bad, says=f"{bad}:2: prefix: '128'")
    refused(bad, says=f"{bad}:3: isl: 'x'")


def vidur(tmp_path: Path, attention: str, mlp: str) -> tuple[Path, Path]:
    return written(tmp_path / "attention.csv", ATTENTION + attention), written(
        tmp_path / "mlp.csv", MLP + mlp
    )


MLP_LINES = "64,8,1,1" + ",0.1" * 9 + "\n64,8,1,101" + ",0.2" * 9 + "\n64,8,2,1" + ",9" * 9 + "\n"
ATTENTION_LINES = (
    "64,8,1,1,51,0,True,2.0,0\n64,8,1,1,101,0,True,4.0,0\n64,8,1,1,51,64,True,9.0,0\n"
    "64,8,1,1,0,128,False,0,0.5\n64,8,1,1,0,256,False,0,0.6\n64,8,2,1,0,128,False,0,9\n"
)


def test_vidur_layers_are_summed_up(tmp_path: Path) -> None:
    """A layer is the operations at that many tokens (in between: linearly) and the kernel, per layer."""
    rows = convert(*vidur(tmp_path, ATTENTION_LINES, MLP_LINES), layers=10)
    assert points(rows, "prefill") == [
        (51, None, pytest.approx(10 * (9 * 0.15 + 2) / 1000)),
        (101, None, pytest.approx(10 * (9 * 0.2 + 4) / 1000)),
    ]
    assert points(rows, "decode") == [
        (128, 1, pytest.approx(10 * (0.9 + 0.5) / 1000)),
        (256, 1, pytest.approx(10 * (0.9 + 0.6) / 1000)),
    ]


def test_vidur_needs_both_files_and_the_number_of_layers(tmp_path: Path) -> None:
    """One file alone, no number of layers, files of two models and malformed lines are refused."""
    attention, mlp = vidur(tmp_path, ATTENTION_LINES, MLP_LINES)
    refused(attention, says="1 files of format vidur")
    refused(attention, mlp, says="--layers")
    other = written(tmp_path / "other.csv", MLP + MLP_LINES.replace("64,8,", "32,8,"))
    refused(attention, other, layers=2, says="n_embd is 32, 64")
    bad = written(tmp_path / "bad.csv", ATTENTION + ATTENTION_LINES.replace("True,2.0", "perhaps,2.0"))
    refused(bad, mlp, layers=2, says=f"{bad}:2: is_prefill: 'perhaps'")


def test_a_csv_file_by_hand(tmp_path: Path) -> None:
    """Kinds, layers and batches are taken as they stand, comments, blank lines and other columns are not."""
    text = (
        "kind,tokens,seconds,layer,batch,note\n# mine\n\nprefill,512,0.1,,,\nprefill,1024,0.2,,,warm\n"
        "layer,512,0.05,0,,\ndecode,512,0.01,,4,\ndecode,1024,0.02,,4,\n"
    )
    rows = convert(written(tmp_path / "mine.csv", text))
    assert points(rows, "prefill") == [(512, None, 0.1), (1024, None, 0.2)]
    assert points(rows, "decode") == [(512, 4, 0.01), (1024, 4, 0.02)]
    assert [row.layer for row in rows if row.kind == "layer"] == [0]


def test_two_columns_are_enough(tmp_path: Path) -> None:
    """Lengths and seconds of prefill are a profile."""
    rows = convert(written(tmp_path / "two.csv", "tokens,prefill_s\n512,0.1\n1024,0.25\n"))
    assert points(rows, "prefill") == [(512, None, 0.1), (1024, None, 0.25)]


def test_of_several_models_one_is_picked(tmp_path: Path) -> None:
    """A table of several models gives the lines of the one that --model names, however it is spelt."""
    text = "model,tp,input_len,t_prefill_p50_ms\nA,8,512,10\nA,8,1024,20\nQ-3.5,8,512,5\nQ-3.5,8,1024,7\n"
    path = written(tmp_path / "many.csv", text)
    assert points(convert(path, model="q_3_5"), "prefill") == [(512, None, 0.005), (1024, None, 0.007)]
    refused(path, says="2 models")
    refused(path, model="C", says="no model 'C'")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", ":1: no column kind, tokens, seconds"),
        ("kind,tokens,seconds\nprefill,512\n", ":2: 2 cells"),
        ("kind,tokens,seconds\nprefill,512,0.1\nwarm,1024,0.2\n", ":3: kind: 'warm'"),
        ("kind,tokens,seconds\nprefill,512,-1\nprefill,1.5,0.2\n", ":2: seconds: '-1'"),
        ("kind,tokens,seconds\nprefill,512,-1\nprefill,1.5,0.2\n", ":3: tokens: '1.5'"),
        ("kind,tokens,seconds\nprefill,512,1\ndecode,9,1\n", ":3: batch: ''"),
        ("tokens,prefill_s\n512,0.1\n", "prefill of 1 lengths"),
        ("tokens,prefill_s\n512,0.1\n512,0.1\n1024,1\n", "prefill of 512 tokens is there more than once"),
        ("kind,tokens,seconds,batch\nprefill,1,1,\nprefill,2,2,\ndecode,9,1,1\n", "contexts of one length"),
    ],
)
def test_a_malformed_csv_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """What is wrong is said with file and line, or what is missing from the whole."""
    refused(written(tmp_path / "bad.csv", text), says=says)


def test_the_command_imports(tmp_path: Path) -> None:
    """An imported profile is read like a recorded one, and says where it is from."""
    source, out = (
        written(tmp_path / "two.csv", "tokens,prefill_s\n512,0.1\n1024,0.25\n"),
        tmp_path / "x.parquet",
    )
    assert run_command(app, ["--import", str(source), "--out", str(out)]) == 0
    assert read(out).knots == ((512, 0.1), (1024, 0.25))
    about = msgspec.json.decode(about_path(out).read_bytes(), type=About)
    assert about.source == "two.csv (csv)"
    assert out.with_suffix(".svg").exists()


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    """Files that are given together are of one format."""
    two = written(tmp_path / "two.csv", "tokens,prefill_s\n512,0.1\n1024,0.25\n")
    refused(npz(tmp_path / "p.npz", PREFILL), two, says="files of csv and dynamo")


def test_an_unknown_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--format takes one of the formats there are, and says which."""
    options = ["--import", "x", "--format", "excel", "--out", str(tmp_path / "x.parquet")]
    assert run_command(app, options) == 3
    assert "auto, dynamo, aiconfigurator, vidur, csv" in capsys.readouterr().err
