"""A profile that is recorded in a guest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest

from agents.kv_layouts import MODELS
from testbed.command import run_command
from testbed.kernel.uml import Uml
from testbed.profiles.read import read
from testbed.profiles.table import About, about_path
from testbed.record.__main__ import app

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("real")), reason="no UML kernel: make setup"),
]
ASKED = ("--model", "tiny_hybrid", "--lengths", "16,48", "--batches", "1", "--contexts", "8,24")


def test_a_guest_measures_what_the_host_would(tmp_path: Path) -> None:
    """Everything that was asked for, with times, sizes of the layout, and the command that does it again."""
    pytest.importorskip("torch")
    out = tmp_path / "x.parquet"
    assert run_command(app, [*ASKED, "--repeats", "2", "--kernel", "uml", "--out", str(out)]) == 0
    assert [tokens for tokens, _ in read(out).knots] == [16, 48]
    table = pl.read_parquet(out)
    assert table.filter(pl.col("kind") == "decode")["tokens"].to_list() == [8, 24]
    assert table.filter(pl.col("kind") == "prefill")["median_s"].min() > 0  # type: ignore[operator]
    sizes = table.filter(pl.col("kind") == "kv").sort("tokens")["size_bytes"].to_list()
    assert sizes == [MODELS["tiny_hybrid"].kv_bytes(tokens) for tokens in (16, 48)]
    about = msgspec.json.decode(about_path(out).read_bytes(), type=About)
    assert "--kernel uml" in about.command
    assert about.device_name.endswith("in a guest")


def test_what_the_guest_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no GPU: the command ends with 4, and no profile is there."""
    pytest.importorskip("torch")
    out = tmp_path / "x.parquet"
    assert run_command(app, [*ASKED, "--device", "cuda", "--kernel", "uml", "--out", str(out)]) == 4
    assert "no CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
