"""The page in a browser while 20 watch a run and 10,000 runs are in the history."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import control_plane

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")

CHROMIUM = shutil.which("chromium")
ROWS = 50
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


def test_of_10000_runs_a_page_has_one_screenful(tmp_path: Path) -> None:
    """While others watch a live run: the list, by pages, and the live run with its charts."""
    runs = tmp_path / "runs"
    control_plane.write_history(runs, control_plane.RUNS)
    with (
        control_plane.served(runs) as port,
        control_plane.live_run(runs),
        control_plane.watched(port),
        playwright.sync_playwright() as started,
    ):
        control_plane.until_indexed(port, control_plane.RUNS + 1)
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/#/runs")
        page.locator("tbody tr").first.wait_for()
        assert page.locator("tbody tr").count() == ROWS
        assert f"1 to {ROWS} of {control_plane.RUNS + 1}" in page.locator("main").inner_text()
        page.goto(f"http://127.0.0.1:{port}/#/run/{control_plane.LIVE}")
        page.locator("figure > svg path.area").first.wait_for()
        browser.close()
