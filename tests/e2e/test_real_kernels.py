"""Real kernels, in real time: KV that crosses a bad link, and answers that have to be right bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, Ended, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(bool(Uml().probe("real")), reason="no UML kernel: make setup"),
]

LINK = PROJECT / "scenarios/real_kernels.yaml"
PREFIXES = PROJECT / "scenarios/real_prefixes.yaml"
UNKNOWN, TRIES = 2, 3
ONE_REQUEST = ("--set", "duration=2s", "--set", "timeline=[{at: 100ms, corrupt: prfaas-1, chunks: 2}]")
"""The first one's KV is damaged; no other is needed to tell whether that is noticed."""


def trusted(directory: Path, scenario: Path, *options: str) -> Ended:
    """A run that can be trusted: on a busy machine one in real time need not be."""
    for number in range(TRIES):
        ended = run(directory / str(number), scenario, "--no-report", *options)
        if ended.code != UNKNOWN:
            break
    return ended


def results(ended: Ended) -> dict[str, str]:
    found = json.loads((ended.run / "verdict.json").read_text())
    return {result["name"]: result["status"] for result in found["results"]}


def test_answers_survive_a_bad_link(tmp_path: Path) -> None:
    """Loss, jitter, damage, an outage and connections opened anew change not a bit of any answer."""
    ended = trusted(tmp_path, LINK)
    assert ended.code == 0, ended.output
    assert set(results(ended).values()) == {"PASS"}
    answers = ended.table("answers")
    assert answers["same"].all()
    assert answers["received"].list.len().min() == 16
    transfers = ended.table("transfers").filter(pl.col("use") == "kv")
    assert transfers["resumed"].any()
    assert transfers["checksum_errors"].sum() >= 2


def test_cached_prefixes_change_no_answer(tmp_path: Path) -> None:
    """Prompts that begin with what a cluster has cached, or fetched over the link, are answered alike."""
    ended = trusted(tmp_path, PREFIXES)
    assert ended.code == 0, ended.output
    assert set(results(ended).values()) == {"PASS"}
    fetched = ended.table("transfers").filter((pl.col("use") == "cache") & (pl.col("state") == "completed"))
    assert fetched.height >= 3
    assert fetched["source"].str.starts_with("prfaas").n_unique() == 2
    assert ended.table("requests")["cached_tokens"].max() >= 512


@pytest.mark.parametrize("scenario", [LINK, PREFIXES], ids=lambda path: path.stem)
def test_damaged_kv_gives_wrong_answers(tmp_path: Path, scenario: Path) -> None:
    """Where damaged chunks are decoded, the answers say so: the check can fail."""
    ended = trusted(tmp_path, scenario, *ONE_REQUEST, "--set", "flaws=[fail_open]")
    assert ended.code == 1, ended.output
    assert results(ended)["answers"] == "FAIL"
