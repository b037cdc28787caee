"""The page of a run in a browser: quick to open, usable by mouse and keyboard, on paper, without scripts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from testbed import audit, expect
from testbed import tables as record
from testbed.report import page
from testbed.rundir import RunDir
from testbed.verdict import conclude
from tests.unit.large_record import large_plan, large_record
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium")
OPENS_WITHIN_MS = 2_000
MOMENT_S = 50.0


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A report of 300 requests."""
    plan = make_plan()
    run = write_run(tmp_path_factory.mktemp("runs") / "run", plan, tcp_lines=1_000)
    tables = record.build(run, plan)
    findings = audit.judge(plan, tables)
    verdict = expect.judge(plan, tables, expect.trust(run, tables, findings))
    page.write(run, plan, tables, verdict, {}, findings=findings)
    return run


def opened(browser: playwright.Browser, report: Path, **context: object) -> playwright.Page:
    """The page, in which any error of a script or request to elsewhere fails the test that waits for it."""
    shown = browser.new_context(viewport={"width": 1280, "height": 900}, **context).new_page()
    shown.problems = []
    shown.on("pageerror", lambda error: shown.problems.append(str(error)))
    shown.on("request", lambda one: shown.problems.append(one.url) if "report.html" not in one.url else None)
    shown.goto(report.as_uri())
    assert shown.problems == []
    return shown


def rows(shown: playwright.Page) -> list[int]:
    """The requests that the waterfall shows, page by page."""
    later = shown.locator("#waterfall [data-do=on]")
    found = [int(one) for one in shown.locator("#waterfall .row-names text").all_text_contents()]
    while later.is_enabled():
        later.click()
        found += [int(one) for one in shown.locator("#waterfall .row-names text").all_text_contents()]
    return found


def under_way(requests: pl.DataFrame, t_s: float) -> list[int]:
    later = pl.col("end_s").is_null() | (pl.col("end_s") >= t_s)
    return requests.filter((pl.col("sent_s") <= t_s) & later).sort("sent_s", "id")["id"].to_list()


def click_at(shown: playwright.Page, chart: str, t_s: float) -> None:
    """Click into a chart at a moment of the run."""
    span, plot = shown.evaluate(
        "(({span, plot}) => [span, plot])(JSON.parse(document.getElementById('chart-data').textContent))"
    )
    area = shown.locator(chart).bounding_box()
    x = plot["left"] + (t_s - span[0]) / (span[1] - span[0]) * plot["width"]
    shown.locator(chart).click(position={"x": x * area["width"] / 1100, "y": 40})


def test_a_moment_in_a_chart_opens_the_requests_under_way(browser: playwright.Browser, run: RunDir) -> None:
    """All of them and no others, by the record; Esc closes them again."""
    shown = opened(browser, run.report)
    click_at(shown, "#chart-2-0", MOMENT_S)
    said = shown.locator("#waterfall .now").text_content()
    moment_s = float(said.partition(" at ")[2].split(" ")[0])
    assert moment_s == pytest.approx(MOMENT_S, abs=0.3)
    expected = under_way(pl.read_parquet(run.record / "requests.parquet"), moment_s)
    assert rows(shown) == expected
    assert said.startswith(f"{len(expected)} requests under way")
    shown.keyboard.press("Escape")
    assert not shown.locator("#waterfall.open").count()


def test_the_keyboard_does_what_the_mouse_does(browser: playwright.Browser, run: RunDir) -> None:
    """Arrows move the cursor and say its values, Enter opens, Escape gives the focus back."""
    shown = opened(browser, run.report)
    shown.locator("#chart-2-0").focus()
    for _ in range(4):
        shown.keyboard.press("Shift+ArrowRight")
    assert "threshold" in shown.locator("#said").text_content()
    shown.keyboard.press("Enter")
    moment_s = float(shown.locator("#waterfall .now").text_content().partition(" at ")[2].split(" ")[0])
    assert rows(shown) == under_way(pl.read_parquet(run.record / "requests.parquet"), moment_s)
    shown.locator("#waterfall [data-do=close]").focus()
    shown.keyboard.press("Escape")
    assert shown.evaluate("document.activeElement.id") == "chart-2-0"


def test_a_row_of_a_table_opens_its_request(browser: playwright.Browser, run: RunDir) -> None:
    """The request is shown among those beside it, and stands out."""
    shown = opened(browser, run.report)
    button = shown.locator("button.request").first
    number = button.text_content()
    button.click()
    assert shown.locator("#waterfall .picked").count() == 1
    picked = shown.locator("#waterfall .requests g:has(.picked) title").text_content()
    assert picked.startswith(f"request {number}:")


def test_a_request_that_failed_is_opened_at_its_end(
    browser: playwright.Browser, run: RunDir, tmp_path: Path
) -> None:
    """Each of them, wherever the digits of its last moment are cut off."""
    plan = make_plan()
    tables = dict(record.load(run))
    failed = pl.col("id") < 40
    never = {name: pl.when(~failed).then(name) for name in ("first_token_s", "ttft_s")}
    tables["requests"] = tables["requests"].with_columns(
        pl.when(failed).then(pl.lit("failed")).otherwise("state").alias("state"), **never
    )
    verdict = conclude((), ())
    other = RunDir(tmp_path)
    page.write(other, plan, tables, verdict, {}, findings=[])
    shown = opened(browser, other.report)
    buttons = shown.locator("button.request")
    numbers = [one for one in buttons.all_text_contents() if int(one) < 40]
    assert len(numbers) == 30
    for number in numbers:
        buttons.get_by_text(number, exact=True).first.click()
        picked = shown.locator("#waterfall .requests g:has(.picked) title")
        assert picked.count() == 1, number
        assert picked.text_content().startswith(f"request {number}:")


def test_requests_stay_on_the_axis_of_the_charts(browser: playwright.Browser, run: RunDir) -> None:
    """Zoomed, the moment stands where the cursor of the charts stands at the same time."""
    shown = opened(browser, run.report)
    click_at(shown, "#chart-2-0", MOMENT_S)
    shown.get_by_role("button", name="trouble", exact=True).click()
    at = shown.evaluate(
        "(() => {"
        " const box = document.querySelector('#waterfall .moment').getBoundingClientRect();"
        " const chart = document.querySelector('#chart-2-0').getBoundingClientRect();"
        " return (box.left - chart.left) / chart.width * 1100; })()"
    )
    assert at == pytest.approx(62 + (MOMENT_S - 30) / 45 * 1024, abs=6)


def test_without_scripts_tables_remain(browser: playwright.Browser, run: RunDir) -> None:
    """No control that does nothing; the slowest requests as a table, and every chart."""
    shown = opened(browser, run.report, java_script_enabled=False)
    assert not shown.locator("#waterfall").is_visible()
    assert not shown.locator(".tools").is_visible()
    assert shown.get_by_text("The slowest to their first token").is_visible()
    assert shown.locator("span.request").count() >= 10
    assert shown.locator("svg.chart >> visible=true").count() >= 8


def test_paper_is_light_and_complete(browser: playwright.Browser, run: RunDir) -> None:
    """In print: dark ink whatever the screen had, no controls, nothing folded, nothing beyond the edge."""
    shown = opened(browser, run.report, color_scheme="dark")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 26)"
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).color") == "rgb(22, 32, 44)"
    assert not shown.locator(".tools").is_visible()
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator("details:not([open])").count() == 0
    shown.set_viewport_size({"width": 720, "height": 1000})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 720
    assert shown.pdf().startswith(b"%PDF")


def test_a_page_of_very_many_requests_opens_quickly(browser: playwright.Browser, tmp_path: Path) -> None:
    """100,000 requests: under 2 s and 5 MB, and the number under way is that of all of them."""
    run, tables = RunDir(tmp_path), large_record(100_000)
    report = page.write(run, large_plan(), tables, conclude((), ()), {}, findings=())
    assert report.stat().st_size < 5_000_000
    shown = opened(browser, report)
    timing = shown.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
    assert timing["loadEventEnd"] < OPENS_WITHIN_MS, json.dumps(timing)
    click_at(shown, "#chart-0-0", 300.0)
    said = shown.locator("#waterfall .now").text_content()
    shown_ones, _, rest = said.partition(" of ")
    moment_s = float(said.partition(" at ")[2].split(" ")[0])
    expected = len(under_way(tables["requests"], moment_s))
    assert int(rest.split(" ")[0]) == pytest.approx(expected, abs=3), "the moment is shown to 10 ms"
    assert 0 < int(shown_ones) < expected
