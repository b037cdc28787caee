"""A run on traces of every format: what stands in the files is what the client sends."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, SCENARIOS, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

SENT = {
    "azure": [(0, 700, 20), (2, 2800, 40), (2.5, 2100, 30)],
    "burstgpt": [(0.25, 512, 64), (0.75, 100, 8), (3, 1100, 32)],
    "aiperf": [
        (0, 1000, 10), (0.2505, 600, 20), (0.5, 1100, 500), (0.5, 512, 8), (2, 1800, 30), (3.0005, 2130, 5),
    ],
    "vidur": [(2, 640, 16), (2.25, 1280, 8), (3.75, 320, 1)],
}  # fmt: skip
"""By tenant: when (s), input and output tokens, as the files in tests/data say."""


def test_traces_of_every_format_are_served(tmp_path: Path) -> None:
    """Each row becomes a request of that length, at its time, and ends; bursts come while on."""
    ended = run(tmp_path, SCENARIOS / "formats.yaml", "--traces", PROJECT / "tests/data")
    assert ended.code == 0, ended.output
    requests = ended.table("requests").sort("id")
    for tenant, expected in SENT.items():
        of_tenant = requests.filter(pl.col("tenant") == tenant)
        assert of_tenant.select("input_tokens", "tokens").rows() == [row[1:] for row in expected]
        for sent_s, (t_s, *_) in zip(of_tenant["sent_s"], expected, strict=True):
            # asyncio and select each round a wait up to the next millisecond
            assert 0 <= sent_s - t_s < 0.0035
    bursts = requests.filter(pl.col("tenant") == "bursts")["sent_s"]
    assert bursts.len() > 10
    assert all(t_s % 2.5 < 0.505 for t_s in bursts)
    assert len(ended.plan["traces"]) == 4
