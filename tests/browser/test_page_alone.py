"""The page in a real browser when answers are late, missing or gone: without a kernel, and without runs.

`make browser` runs this; it needs playwright and Debian's chromium.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import carriers
from testbed.serve import application
from tests.unit.serve_client import client_of
from tests.unit.serve_runs import write_small

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")

CHROMIUM = shutil.which("chromium")
SCENARIO = Path(__file__).parents[2] / "scenarios/full_rate.yaml"
RUNS = 120
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("served")
    (place / "scenarios").mkdir()
    shutil.copy(SCENARIO, place / "scenarios")
    for seed in range(RUNS):
        write_small(place / "runs", seed=seed, at_s=seed)
    carriers.note(write_small(place / "runs", "live", 1, status=None))
    app, _ = application.make(place / "runs", place / "scenarios")
    with client_of(app) as client:
        yield str(client.base_url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Whatever goes wrong in its scripts fails the test."""
    wrong: list[str] = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    yield opened
    opened.close()
    assert wrong == []


def until(page: Any, came_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not came_true():
        assert time.monotonic() < deadline_s
        page.wait_for_timeout(50)


def test_an_answer_that_comes_late_is_not_shown(page: Any, url: str) -> None:
    """The list is always of what stands in the search."""
    held: list[Any] = []
    page.route(
        lambda address: "query=congestion-11&" in address,
        lambda route: held.append(route) if not held else route.continue_(),
    )
    page.goto(f"{url}/#/runs")
    page.get_by_label("Search").fill("congestion-11")
    until(page, lambda: bool(held))
    page.get_by_label("Search").fill("congestion-119")
    page.get_by_text("1 to 1 of 1").wait_for()
    held[0].continue_()
    page.wait_for_timeout(500)
    assert page.locator("tbody tr").count() == 1


def test_pages_are_turned_by_keyboard(page: Any, url: str) -> None:
    """The focus stays where somebody works."""
    page.goto(f"{url}/#/runs")
    page.get_by_role("button", name="Older").focus()
    for text in ("51 to 100", "101 to 121"):
        page.keyboard.press("Enter")
        page.get_by_text(text).wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Newer"


def test_a_view_that_was_left_asks_no_more(page: Any, url: str) -> None:
    """Even if an answer was on its way when it was left."""
    asked: list[Any] = []

    def hold(route: Any) -> None:
        asked.append(route)

    page.clock.install()
    page.goto(f"{url}/#/runs")
    page.locator("tbody tr").first.wait_for()
    page.route("**/api/v1/runs?limit=50*", hold)
    page.clock.run_for(3100)
    until(page, lambda: len(asked) == 1)
    page.goto(f"{url}/#/trends")
    page.get_by_role("heading", name="Trends").wait_for()
    asked[0].continue_()
    page.wait_for_timeout(300)
    page.clock.run_for(10_000)
    page.wait_for_timeout(300)
    assert len(asked) == 1


def test_a_server_that_does_not_answer_is_missed(page: Any, url: str) -> None:
    """What stands on the page is said to be old; a search says that it found no answer."""
    page.route("**/events", lambda route: route.abort())
    page.goto(f"{url}/#/run/live-1")
    page.get_by_text("the server does not answer; what stands here is the last that it sent").wait_for()
    page.goto(f"{url}/#/runs")
    page.locator("tbody tr").first.wait_for()
    page.route("**/api/v1/runs?*", lambda route: route.abort())
    page.get_by_label("Search").fill("x")
    page.get_by_text("does not answer").wait_for()
    page.unroute("**/api/v1/runs?*")
    page.get_by_label("Search").fill("congestion-119")
    page.get_by_text("1 to 1 of 1").wait_for()
    assert page.get_by_text("does not answer").count() == 0


def test_a_run_that_left_nothing_says_why(page: Any, url: str) -> None:
    """Its directory was there for a moment: what it printed is what its reader needs."""
    said = "memory: 1 GiB is free\n    next: close something"
    told: list[dict[str, Any]] = [{"run": "short-1", "exit_code": None, "said": ""}]

    def start(route: Any) -> None:
        route.fulfill(json={"start": 1, **told[0]})

    page.route("**/api/v1/runs", lambda route: route.fulfill(status=202, json={"start": 1}))
    page.route("**/api/v1/starts/1", start)
    page.goto(f"{url}/#/scenarios")
    page.route(
        "**/api/v1/runs/short-1",
        lambda route: (
            told.__setitem__(0, {"run": None, "exit_code": 4, "said": said}),
            route.fulfill(status=404, json={"problems": [{"where": "run short-1", "found": "is not there"}]}),
        ),
    )
    page.get_by_role("button", name="Run full_rate.yaml").click()
    page.get_by_text("exit code 4").wait_for()
    assert page.locator("pre").inner_text() == said
    assert page.get_by_text("is not there").count() == 0


def test_whoever_goes_elsewhere_while_a_run_starts_stays_there(page: Any, url: str) -> None:
    """They are told of it, and not taken away from what they read."""
    told: list[dict[str, Any]] = [{"run": None, "exit_code": None, "said": ""}]
    page.route("**/api/v1/runs", lambda route: route.fulfill(status=202, json={"start": 1}))
    page.route("**/api/v1/starts/1", lambda route: route.fulfill(json={"start": 1, **told[0]}))
    page.goto(f"{url}/#/scenarios")
    page.get_by_role("button", name="Run full_rate.yaml").click()
    page.get_by_text("starting").wait_for()
    page.goto(f"{url}/#/trends")
    page.get_by_role("heading", name="Trends").wait_for()
    told[0] = {"run": "live-1", "exit_code": None, "said": ""}
    page.get_by_text("live-1 is under way").wait_for(state="attached")
    assert page.url.endswith("#/trends")


def test_what_is_under_the_cursor_is_said(page: Any, url: str) -> None:
    """In the place that screen readers read aloud when it changes."""
    page.goto(f"{url}/#/trends/congestion")
    chart = page.locator("figure svg[role=img]")
    chart.focus()
    page.keyboard.press("Home")
    until(page, lambda: "at 1: value" in page.locator("#status").inner_text())
