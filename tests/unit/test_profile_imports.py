"""Profiles that others have measured: each format into the project's own table, and what is refused."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from testbed.command import run_command
from testbed.errors import ScenarioError
from testbed.profiles import imports
from testbed.profiles.cells import MAX_FILE_BYTES, MAX_ROWS
from testbed.profiles.read import check, read
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
    "time_stats.attn_prefill.median,time_stats.attn_decode.median,time_stats.attn_kv_cache_save.median\n"
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


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"prefill_isl": [1e30, 2e30]}, "prefill_isl[0]: 1e+30"),
        ({"prefill_isl": [0.2, 64.0]}, "prefill_isl[0]: 0.2"),
        ({"prefill_ttft": [5e-324, 3.0]}, "prefill_ttft[0]: 4.94066e-324"),
        ({"prefill_ttft": [1.0, 1e308]}, "prefill_ttft[1]: 1e+308"),
        ({**DECODE, "y_context_length": [1e-300, 1000, 2000]}, "y_context_length[0]: 1e-300"),
        ({**DECODE, "max_kv_tokens": [1e300]}, "max_kv_tokens[0]: 1e+300"),
        ({**DECODE, "max_kv_tokens": []}, "max_kv_tokens: 0 numbers"),
        ({"prefill_isl": [True, True]}, "prefill_isl: an array of bool"),
        ({"prefill_isl": [64 + 1j, 128]}, "prefill_isl: an array of complex128"),
        ({"prefill_isl": np.array(["2020", "2021"], "datetime64[Y]")}, "prefill_isl: an array of datetime64"),
        ({"prefill_isl": np.arange(1.0, MAX_ROWS + 2)}, f"at most {MAX_ROWS}"),
    ],
)
def test_numbers_that_nothing_could_be_are_refused(
    tmp_path: Path, arrays: dict[str, list[float]], says: str
) -> None:
    """Arrays with lengths or times that cannot be, too many, or no real numbers, with their place."""
    refused(npz(tmp_path / "a.npz", {**PREFILL, **arrays}), says=says)


def test_archives_are_measured_before_they_are_unpacked(tmp_path: Path) -> None:
    """A member that says it has more numbers than a profile may is not read, however small the file is."""
    packed, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("prefill_isl.npy", header.getvalue() + bytes(80))
    (tmp_path / "liar.npz").write_bytes(packed.getvalue())
    refused(tmp_path / "liar.npz", says=f"at most {MAX_ROWS}")
    with (tmp_path / "large.npz").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    refused(tmp_path / "large.npz", says="is larger than 64 MiB")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("null", "not an object with arrays"),
        ('{"prefill_isl": [null, 64], "prefill_ttft": [1, 2]}', "prefill_isl[0]: not a number"),
        ('{"prefill_isl": [1' + "0" * 5000 + ', 64], "prefill_ttft": [1, 2]}', "prefill_isl[0]: inf"),
        ("[" * 100_000, "not a file of arrays"),
    ],
)
def test_json_that_is_no_arrays_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Whatever else JSON can be, in words of this project."""
    refused(written(tmp_path / "a.json", text), says=says)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Only regular files are opened: a pipe would be waited for without end."""
    os.mkfifo(tmp_path / "a.csv")
    refused(tmp_path / "a.csv", says="is not a regular file")


def test_what_the_reader_refuses_is_not_imported(tmp_path: Path) -> None:
    """Missing layers, other layers than the model has, and too many rows are refused before it is written."""
    text = "kind,tokens,seconds,layer\nprefill,1,1,\nprefill,2,2,\nlayer,1,1,0\n"
    path = written(tmp_path / "a.csv", text)
    refused(path, model="kimi_linear_48b", says="has 1 layers\n    allowed: 27")
    refused(written(tmp_path / "b.csv", text.replace("1,1,0", "1,1,5")), says="no layer 0 at 1 tokens")
    many = [Row(kind="prefill", tokens=tokens, median_s=1.0) for tokens in range(1, MAX_ROWS + 2)]
    with pytest.raises(ScenarioError, match=f"at most {MAX_ROWS}"):
        check(many, "many")
    lines = "".join(f"{tokens},1\n" for tokens in range(1, MAX_ROWS + 2))
    refused(written(tmp_path / "c.csv", f"tokens,prefill_s\n{lines}"), says=f"at most {MAX_ROWS}")


def test_texts_of_a_file_do_not_control_the_terminal(tmp_path: Path) -> None:
    """What does not print is escaped in messages, and long texts are cut."""
    text = f"model,input_len,t_prefill_p50_ms\n\x1b[31mA,64,1\nB{'b' * 999},\x1b,2\n"
    path = written(tmp_path / "a.csv", text)
    with pytest.raises(ScenarioError) as caught:
        convert(path)
    assert "\\x1b[31mA" in str(caught.value)
    assert len(str(caught.value)) < 600
    refused(path, model="B" + "b" * 999, says=":3: input_len: '\\x1b'")


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
    "64,8,1,1,51,0,True,2.0,0,0.3\n64,8,1,1,101,0,True,4.0,0,0.3\n64,8,1,1,51,64,True,9.0,0,0.3\n"
    "64,8,1,1,0,128,False,0,0.5,0.1\n64,8,1,1,0,256,False,0,0.6,0.1\n64,8,2,1,0,128,False,0,9,0.1\n"
)


def test_vidur_layers_are_summed_up(tmp_path: Path) -> None:
    """A layer is the operations at that many tokens (in between: linearly), the kernel, and saving KV."""
    rows = convert(*vidur(tmp_path, ATTENTION_LINES, MLP_LINES), layers=10)
    assert points(rows, "prefill") == [
        (51, None, pytest.approx(10 * (9 * 0.15 + 2.3) / 1000)),
        (101, None, pytest.approx(10 * (9 * 0.2 + 4.3) / 1000)),
    ]
    assert points(rows, "decode") == [
        (128, 1, pytest.approx(10 * (0.9 + 0.6) / 1000)),
        (256, 1, pytest.approx(10 * (0.9 + 0.7) / 1000)),
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
        ("tokens,prefill_s\n1_000,0.1\n", ":2: tokens: '1_000'"),
        ("tokens,prefill_s\n\u0663,0.1\n", ":2: tokens: '\u0663'"),
        ("tokens,prefill_s\n1,1e-320\n2,1e300\n", ":3: prefill_s: '1e300'"),
        ("tokens,prefill_s,tokens\n1,1,2\n", ":1: more than one column tokens"),
        ("kind,tokens,seconds,batch\ndecode,0,1,1\n", ":2: tokens: '0'"),
        ("tokens,prefill_s\n512,0.1\n", "prefill rows of 1 lengths"),
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


def test_an_import_does_not_replace_its_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of the three files is one of those that are imported, also with --force."""
    path = written(tmp_path / "x.json", json.dumps(PREFILL))
    assert run_command(app, ["--import", str(path), "--out", str(tmp_path / "x.parquet"), "--force"]) == 3
    assert "x.json is what is imported" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_options_without_effect_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of measuring with an import, and --format without."""
    out = ["--out", str(tmp_path / "x.parquet")]
    assert run_command(app, ["--import", "x.csv", "--lengths", "1,2", "--batched", *out]) == 3
    said = capsys.readouterr().err
    assert "--lengths: has no effect with --import" in said
    assert "--batched: has no effect with --import" in said
    assert run_command(app, ["--model", "tiny_hybrid", "--format", "csv", *out]) == 3
    assert "--format: has no effect without --import" in capsys.readouterr().err


def test_of_a_long_profile_the_ends_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thousands of lengths are twenty lines on the terminal, and a picture that a browser can bear."""
    lines = "".join(f"{tokens},{tokens / 1000}\n" for tokens in range(1, 5001))
    path, out = written(tmp_path / "a.csv", f"tokens,prefill_s\n{lines}"), tmp_path / "x.parquet"
    assert run_command(app, ["--import", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "... 4,980 more" in said
    assert said.count("\n") < 30
    assert "5,000" in said
    assert out.with_suffix(".svg").stat().st_size < 100_000


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    """Files that are given together are of one format."""
    two = written(tmp_path / "two.csv", "tokens,prefill_s\n512,0.1\n1024,0.25\n")
    refused(npz(tmp_path / "p.npz", PREFILL), two, says="files of csv and dynamo")


def test_an_unknown_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--format takes one of the formats there are, and says which."""
    options = ["--import", "x", "--format", "excel", "--out", str(tmp_path / "x.parquet")]
    assert run_command(app, options) == 3
    assert "auto, dynamo, aiconfigurator, vidur, csv" in capsys.readouterr().err
