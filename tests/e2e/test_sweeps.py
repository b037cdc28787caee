"""Sweeps of real runs: a kill costs what was under way and nothing else, and engines give the same bytes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import SCENARIOS, call, start, survivors, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]
SHORT = ("--set", "duration=2s", "--set", "timeline=[]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a sweep of two points; what is run into its out/ is for all tests here."""
    place = tmp_path_factory.mktemp("sweep")
    (place / "x.yaml").write_text(
        f"sweep: {SCENARIOS / 'small.yaml'}\nquestion: Is it the same?\n"
        "parameters: {link.a_to_b.rate: [25gbit, 50gbit]}\n",
        encoding="utf-8",
    )
    return place


def digests(out: Path) -> list[tuple[str, str]]:
    """Verdict and record of each point."""
    return pl.read_parquet(out / "results.parquet").select("status", "record_digest").rows()


def test_a_killed_sweep_goes_on_where_it_was(place: Path) -> None:
    """SIGKILL in the second run: its processes end, the first is kept, only the second is run again."""
    out = place / "out"
    arguments = (place / "x.yaml", "--jobs", "1", "--out", out, *SHORT)
    with start("testbed.sweep", *arguments, temporary=place) as process:
        try:
            until(
                lambda: len(list(out.glob("work-*/*/small-5"))) > 0 and len(list(out.glob("points/*"))) == 1
            )
            kept = next(out.glob("points/*/row.json"))
            before = kept.stat().st_mtime_ns
        finally:
            process.kill()
    until(lambda: not survivors(out))
    code, said = call(place, "testbed.sweep", *arguments)
    assert (code, "Traceback" in said) == (0, False), said
    assert "2 points, 2 runs, 1 of them done before" in said
    assert "1 runs in" in said
    assert kept.stat().st_mtime_ns == before
    assert sorted(path.name for path in out.iterdir()) == [
        "lock", "points", "results.parquet", "sweep.html", "sweep.json",
    ]  # fmt: skip
    assert [status for status, _ in digests(out)] == ["PASS", "PASS"]


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: requirements-ray.txt")
def test_ray_gives_the_same_records(place: Path) -> None:
    """Byte for byte those of local processes, though they came from workers as bytes."""
    out = place / "ray"
    arguments = (place / "x.yaml", "--jobs", "2", "--engine", "ray", "--out", out, *SHORT)
    code, said = call(place, "testbed.sweep", *arguments)
    assert (code, "Traceback" in said) == (0, False), said
    assert digests(out) == digests(place / "out")
