"""The page in a real browser, with real runs: started, watched, read, compared. Pictures of it are kept.

`make browser` runs this; it needs playwright, Debian's chromium, and the kernel of `make setup`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import carriers
from testbed.kernel.uml import Uml
from testbed.rundir import RunDir

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")

PROJECT = Path(__file__).resolve().parents[2]
SCENARIO = PROJECT / "tests/e2e/scenarios/small.yaml"
CHROMIUM = shutil.which("chromium")
OWN = PROJECT / ".venv/bin/python"
PYTHON = str(OWN) if OWN.exists() else sys.executable
"""Its packages are those of the guest, which the browser's need not be."""
PICTURES = os.environ.get("TESTBED_PICTURES")
WAIT_MS = 60_000
TOKEN = "a token for this test only"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.skipif(PICTURES is None, reason="TESTBED_PICTURES names no directory: make browser"),
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


class Served:
    """A server in a process of its own, which can be killed and started again."""

    def __init__(self, place: Path) -> None:
        self.runs, self.scenarios = place / "runs", place / "scenarios"
        self.scenarios.mkdir()
        # Long enough to be watched: several seconds.
        text = SCENARIO.read_text(encoding="utf-8").replace("duration: 10s", "duration: 150s")
        self.text = text.replace("until: 9s", "until: 140s")
        (self.scenarios / "small.yaml").write_text(self.text, encoding="utf-8")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                "env", "--default-signal=INT", PYTHON, "-m", "testbed.serve", "--port", "0",
                "--runs", str(self.runs), "--scenarios", str(self.scenarios),
            ],
            cwd=PROJECT, env={**os.environ, "TESTBED_TOKEN": TOKEN}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[0]

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        code = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served"))
    yield server
    for directory in server.runs.glob("*/"):  # of a test that failed in the middle
        carrier = carriers.of_run(RunDir(directory))
        if carrier is not None:
            carrier.send(signal.SIGINT)
    assert server.end(signal.SIGINT) == 0


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[Any]:
    """A page of a browser that has given the token; whatever goes wrong in its scripts fails the test."""
    wrong: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(WAIT_MS)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda said: wrong.append(said.text) if _is_fault(said) else None)
        opened.goto(served.url)
        opened.get_by_label("Token").fill("not the token at all")
        opened.get_by_role("button", name="Enter").click()
        opened.get_by_role("alert").wait_for()
        opened.get_by_label("Token").fill(TOKEN)
        opened.get_by_role("button", name="Enter").click()
        opened.get_by_role("heading", name="Scenarios").wait_for()
        yield opened
        browser.close()
    assert wrong == []


def _is_fault(said: Any) -> bool:
    """What the server refused, or could not answer as it was gone, is shown on the page."""
    return said.type == "error" and not said.text.startswith("Failed to load resource")


def keep(page: Any, name: str) -> None:
    assert PICTURES is not None
    Path(PICTURES).mkdir(parents=True, exist_ok=True)
    page.screenshot(path=f"{PICTURES}/{name}.png")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def line_of(page: Any, title: str) -> str:
    """How the first curve of a chart is drawn now."""
    figure = page.locator("figure", has=page.get_by_text(title, exact=True))
    return str(figure.locator("path.line").last.get_attribute("d"))


def run_ended(page: Any) -> str:
    """Wait for the verdict in the page's heading."""
    chip = page.locator("main .chip").first
    playwright.expect(chip).not_to_have_text("RUNNING", timeout=WAIT_MS)
    return str(chip.inner_text())


def test_a_run_is_started_and_watched_to_its_verdict(page: Any) -> None:
    """The charts move while it goes on, without anybody asking."""
    keep(page, "scenarios")
    page.get_by_role("button", name="Run small.yaml").click()
    page.wait_for_url("**/#/run/small-5")
    page.get_by_text("x real time").first.wait_for()
    before = line_of(page, "Link A → B")
    until(
        lambda: (
            line_of(page, "Link A → B") != before and page.locator("progress").evaluate("e => e.value") > 0.3
        )
    )
    assert page.locator("main .chip").first.inner_text() == "RUNNING"
    keep(page, "live")
    assert run_ended(page) == "PASS"
    page.get_by_role("table", name="Expectations").wait_for()
    keep(page, "run")


def test_its_report_opens(page: Any) -> None:
    """In a page of its own, with its scripts, and without access to this server."""
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Report").click()
    report = opened.value
    report.wait_for_load_state()
    assert "small" in report.title()
    assert report.evaluate("document.documentElement.classList.contains('js')")
    assert report.evaluate("window.origin") == "null"
    report.close()


def test_a_changed_text_shows_its_problems_and_runs_as_a_draft(page: Any, served: Served) -> None:
    """Problems stand at their lines; the file stays as it was."""
    page.get_by_role("link", name="Scenarios").click()
    page.get_by_role("link", name="small.yaml").click()
    text = page.get_by_label("Text of small.yaml")
    page.get_by_text("Nothing is wrong with it.").wait_for()
    good = text.input_value()
    text.fill(good.replace("delay: 5ms", "delay: 5", 1))
    line = 1 + good[: good.index("a_to_b:")].count("\n")
    page.get_by_role("button", name=f"line {line}").first.click()
    assert page.locator(".gutter .bad").all_inner_texts() == [str(line)]
    keep(page, "editor")
    text.fill(good.replace("rate: 50gbit", "rate: 20gbit", 1))
    page.get_by_text("Nothing is wrong with it.").wait_for()
    page.get_by_role("button", name="Run small.yaml as it stands here").click()
    page.wait_for_url("**/#/run/small-5-2")
    run_ended(page)
    assert (served.scenarios / "small.yaml").read_text() == served.text
    assert "20gbit" in (served.runs / "small-5-2/scenario.yaml").read_text()


def test_a_text_that_nobody_changed_is_no_draft_and_a_seed_is_what_was_typed(
    page: Any, served: Served
) -> None:
    """Whatever its lines end with, and however many digits there are."""
    (served.scenarios / "crlf.yaml").write_bytes(served.text.replace("\n", "\r\n").encode())
    page.goto(f"{served.url}#/edit/crlf.yaml")
    page.get_by_text("Nothing is wrong with it.").wait_for()
    page.get_by_label("Seed").fill(str(2**53 + 1))
    asked: list[Any] = []

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(status=409, json={"problems": []})

    page.route("**/api/v1/runs", answer)
    page.get_by_role("button", name="Run crlf.yaml as it stands here").click()
    until(lambda: page.evaluate("1") == 1 and bool(asked))
    page.unroute("**/api/v1/runs")
    assert asked == [{"scenario": "crlf.yaml", "text": None, "seed": str(2**53 + 1), "scale": None}]


def test_a_text_of_many_lines_can_be_edited(page: Any, served: Served) -> None:
    """With a number at each."""
    page.goto(f"{served.url}#/edit/small.yaml")
    page.get_by_text("Nothing is wrong with it.").wait_for()
    # Not typed: how long Chromium takes for that is its own affair.
    page.get_by_label("Text of small.yaml").evaluate(
        """(area) => { area.value = "\\n".repeat(99999); area.dispatchEvent(new Event("input")); }"""
    )
    until(lambda: "99999\n100000" in page.locator(".gutter").evaluate("(one) => one.textContent"))
    assert page.locator(".gutter div").count() < 10


@pytest.mark.parametrize("address", ["edit", "run/", "edit/%", "constructor", "__proto__", "toString"])
def test_addresses_that_are_none_lead_to_something(page: Any, served: Served, address: str) -> None:
    """Never to a blank page."""
    page.goto(f"{served.url}#/runs")
    page.get_by_role("heading", name="Runs").wait_for()
    page.goto(f"{served.url}#/{address}")
    page.get_by_role("heading", name=re.compile("Scenarios|That did not work")).wait_for()


def test_two_runs_are_found_and_compared(page: Any) -> None:
    """By the search, two ticks and a link; one cursor in all charts, moved by the keyboard."""
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_label("Search").fill("small everything")
    page.get_by_label("Compare small-5", exact=True).check()
    page.get_by_label("Compare small-5-2").check()
    keep(page, "runs")
    page.get_by_role("link", name="Compare small-5 with small-5-2").click()
    page.get_by_role("heading", name="small-5 and small-5-2").wait_for()
    chart = page.locator("figure svg[role=img]").first
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    assert re.search(r"at [0-9.]+ s", chart.get_attribute("aria-label"))
    assert page.locator("line.cursor[visibility=visible]").count() > 2
    keep(page, "compare")


def test_a_metric_is_followed_over_the_runs_of_a_scenario(page: Any) -> None:
    """Both runs are there, with their verdicts in words."""
    page.get_by_role("link", name="Trends").click()
    page.get_by_role("link", name="small", exact=True).click()
    page.get_by_role("table").wait_for()
    assert page.get_by_role("row").count() == 3
    keep(page, "trends")


def test_dark_and_narrow_the_page_is_still_readable(page: Any) -> None:
    """As the browser asks for it; nothing is wider than the screen."""
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 420, "height": 800})
    page.get_by_role("link", name="small-5", exact=True).first.click()
    page.get_by_role("heading", name="small-5").wait_for()
    page.locator("figure > svg path.area").first.wait_for()
    keep(page, "dark")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")


def test_a_run_outlives_its_server_and_is_stopped_by_the_next(page: Any, served: Served) -> None:
    """Killed or told to end, the server takes no run with it; what is stopped is judged UNKNOWN."""
    page.goto(served.url + "#/edit/small.yaml")
    text = page.get_by_label("Text of small.yaml")
    page.get_by_text("Nothing is wrong with it.").wait_for()
    text.fill(text.input_value().replace("duration: 150s", "duration: 3000s"))
    page.get_by_text("Nothing is wrong with it.").wait_for()
    page.get_by_role("button", name="Run small.yaml as it stands here").click()
    page.wait_for_url("**/#/run/small-5-3")
    page.get_by_text("x real time").first.wait_for()
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    journal = served.runs / "small-5-3/journal/link.jsonl"
    size = journal.stat().st_size
    until(lambda: journal.stat().st_size > size)
    served.start()
    page.goto(f"{served.url}#/run/small-5-3")
    page.get_by_text("x real time").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    assert run_ended(page) == "UNKNOWN"
    page.get_by_text("interrupted").first.wait_for()
    keep(page, "stopped")
