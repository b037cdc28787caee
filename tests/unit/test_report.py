"""The report: complete, self-contained, safe with any name, and possible for any run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import polars as pl
import pytest

from testbed import audit, expect
from testbed import tables as record
from testbed.plan import Plan
from testbed.report import page, signals
from testbed.report.__main__ import main
from testbed.report.markup import element
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import S, expectation, make_plan, with_expectations
from tests.unit.synthetic_run import note, ns, write_run

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Outline(HTMLParser):
    """Collects tags, attributes and text, and checks that elements nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data


def written(run: RunDir, plan: Plan, manifest: dict[str, object] | None = None) -> str:
    tables = record.build(run, plan)
    findings = audit.judge(plan, tables)
    verdict = expect.judge(plan, tables, expect.trust(run, tables, findings))
    return page.write(run, plan, tables, verdict, manifest or {}, findings=findings).read_text()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> RunDir:
    return write_run(tmp_path_factory.mktemp("runs") / "run", plan)


def test_the_page_answers_its_question(run: RunDir, plan: Plan) -> None:
    """Question, verdict, every expectation's finding, seed and digest stand in the page without scripts."""
    manifest: dict[str, object] = {"virtual_s": 180.0, "wall_s": 60.0, "versions": {"kernel": "6.12.1"}}
    outline = Outline(written(run, plan, manifest))
    shown = outline.text.replace("\u00a0", " ")
    for text in (
        plan.question, "PASS", "6 expectations held", "crossed 22,000 tokens after 1.25 s",
        "300 of 300", "3 times", record.digest(run), f"--seed {plan.seed}", "versions.kernel", "6.12.1",
        "as asked",
    ):  # fmt: skip
        assert text in shown, text


def test_every_kind_of_expectation_has_its_row(run: RunDir, plan: Plan) -> None:
    """With what was measured, what was allowed and how far that was apart; a bar shows upper bounds."""
    trouble: dict[str, object] = {"event": "trouble", "from_ns": 30 * S, "to_ns": 75 * S}
    wanted = with_expectations(
        plan,
        expectation("settling", "threshold_tokens", within_ns=3 * S, band_ratio=0.05, **trouble),
        expectation("overshoot", "threshold_tokens", high=0.2, target=24_000.0, **trouble),
        expectation("oscillation", "threshold_tokens", high=2000.0, cycles=3),
        expectation("fairness", "requests.completed", low=0.9, tenants=("default",)),
        expectation("oracle", "kv_goodput_bps", low=0.9),
    )
    page_text = written(run, wanted)
    shown = Outline(page_text).text
    for text in (
        "settled within 5 % of its end", "beyond its step from 19,400 tokens to 24,000 tokens",
        "repeated no cycle from 0 to 120 s", "Jain's index is 1", "at least 90 % from 0 to 120 s",
    ):  # fmt: skip
        assert text in shown, text
    assert page_text.count('class="meter') == 3


def test_the_page_loads_nothing(run: RunDir, plan: Plan) -> None:
    """No attribute, style or script refers to anything outside the page."""
    text = written(run, plan)
    outline = Outline(text)
    assert not {name for name, _ in outline.attributes} & {"src", "href", "srcset", "action", "data"}
    assert "link" not in outline.tags
    namespace = "http://www.w3.org/2000/svg"  # an identifier of DOM and XML, never fetched
    assert re.findall(r"https?://[^\"'\s<]*|@import|url\((?!#)", text.replace(namespace, "")) == []


def test_a_link_that_was_as_asked_is_said_to_be(run: RunDir, plan: Plan) -> None:
    """Every step of the link stands beside its own read-back, none beside another's."""
    page_text = written(run, plan)
    assert page_text.count("the same</span>") == len(plan.changes)
    assert "differs:" not in page_text
    assert "never set" not in page_text


def test_the_link_stands_right_below_the_verdict(run: RunDir, plan: Plan) -> None:
    """Whether it was as asked comes before all else; what was missed stands there as a sentence."""
    shown = Outline(written(run, plan)).text
    assert shown.index("The link was as asked") < shown.index("What was expected")
    tables = record.build(run, plan)
    lost = pl.when(pl.col("t_s").is_between(10, 10.05)).then(3).otherwise(pl.col("lost_packets"))
    tables["links"] = tables["links"].with_columns(lost.alias("lost_packets"))
    findings = audit.judge(plan, tables)
    verdict = expect.judge(plan, tables, expect.trust(run, tables, findings))
    shown = Outline(page.write(run, plan, tables, verdict, {}, findings=findings).read_text()).text
    assert "The link was as asked" not in shown
    assert shown.index("The link was not as asked") < shown.index("link a_to_b, loss in the run: 3 of ")


def test_every_chart_speaks(run: RunDir, plan: Plan) -> None:
    """Charts are images with a description, shaded in trouble, with the events' names."""
    text = written(run, plan)
    charts = re.findall(r'<svg [^>]*role="img"[^>]*aria-label="([^"]+)"', text)
    assert len(charts) == text.count("<svg ") >= 8
    assert all(" over time in " in chart and "no data" not in chart for chart in charts)
    assert text.count('class="shaded"') == len(charts)
    assert re.findall(r'class="event-label"[^>]*>([^<]+)<', text)[:3] == ["trouble", "tenants", "healed"]


def test_failures_are_told(tmp_path: Path, plan: Plan) -> None:
    """Faults shade the charts; the ledger says what is not accounted for and why KV was dropped."""
    run = write_run(tmp_path / "run", plan, tcp_lines=64)
    for t_s, active in ((90, True), (95, False)):
        note(
            run, "bench", "fault", ns(t_s), fault="restart", target="prefill-a1", active=active, detail="out"
        )
    note(run, "bench", "fault", ns(96), fault="corrupt", target="prefill-a2", active=True, detail="3 chunks")
    note(run, "router", "health", ns(92), instance="prefill-a1", up=False, cause="silent for 2 s")
    begun = {"attempt": 1, "peer": "decode-1", "use": "kv", "wan": True, "size_bytes": 9, "chunks": 1}
    note(run, "prefill-a1", "transfer_begin", ns(89), id=3, **begun)
    note(run, "prefill-a2", "transfer_begin", ns(89), id=4, **begun)
    note(run, "prefill-a1", "held", ns(89), pool="send", size_bytes=9, transfers=1)
    note(run, "prefill-a1", "connection", ns(89), peer="decode-1", opened=True, sockets=1)
    text = written(run, plan)
    shown = Outline(text).text
    for said in (
        "the ledger does not balance", "prefill-a1 was killed at 90.0 s", "silent for 2 s",
        "request 4, attempt 1: 0 B produced, 0 B delivered, 0 B dropped", "Instances given up",
    ):  # fmt: skip
        assert said in shown, said
    charts = re.findall(r'<svg [^>]*role="img"[^>]*aria-label="([^"]+)"', text)
    assert {"Faults", "KV held by all pools", "Connections for KV"} <= {
        chart.partition(" over time")[0] for chart in charts
    }
    assert text.count('class="shaded"') == 2 * len(charts), "the link's trouble, and the agent's"


def test_any_name_is_text(tmp_path: Path) -> None:
    """Markup in names, questions, reasons and problems is shown, not run."""
    plan = make_plan(requests=20)
    bound = expectation("bound", "requests.failed", HOSTILE, high=0)
    plan = msgspec.structs.replace(with_expectations(plan, bound), name=HOSTILE, question=HOSTILE)
    run = write_run(tmp_path / "run", plan, tcp_lines=64)
    run.outcome.write_text(json.dumps({"finished": True, "problems": [HOSTILE]}))
    events = (run.journal / "bench.jsonl").read_text()
    (run.journal / "bench.jsonl").write_text(events.replace('"trouble"', json.dumps(HOSTILE)))
    text = written(run, plan, {HOSTILE: HOSTILE})
    assert "<img" not in text
    assert Outline(text).text.count(HOSTILE) >= 6
    assert text.count("</script>") == 4


def test_distrust_comes_first(tmp_path: Path) -> None:
    """A run that cannot be trusted says why before it says anything else."""
    plan = make_plan(requests=20)
    run = write_run(tmp_path / "run", plan, tcp_lines=64, finished=False)
    shown = Outline(written(run, plan)).text
    assert "UNKNOWN" in shown
    assert shown.index("Why this run cannot be trusted") < shown.index("What was expected")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7])
def test_a_killed_run_has_a_report(tmp_path: Path, share: float) -> None:
    """`python -m testbed.report` turns whatever a killed run left into record, verdict and page."""
    plan = make_plan(requests=40)
    run = write_run(tmp_path / "run", plan, tcp_lines=320)
    run.outcome.unlink()
    for path in run.journal.glob("*.jsonl"):
        text = path.read_bytes()
        path.write_bytes(text[: int(len(text) * share)])
    assert main([str(run.path)]) == 2
    assert all(path.is_file() for path in (run.verdict, run.junit, run.report, run.record / "tcp.parquet"))
    Outline(run.report.read_text())


def test_the_command_on_no_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without a plan is a wrong argument: exit code 3, the path, and no traceback."""
    assert main([str(tmp_path)]) == 3
    assert str(tmp_path / "plan.json") in capsys.readouterr().err


def test_the_report_is_small(run: RunDir, plan: Plan) -> None:
    """A page of 300 requests takes less than a megabyte."""
    tables = record.build(run, plan)
    verdict = expect.judge(plan, tables, [])
    path = page.write(run, plan, tables, verdict, {}, findings=audit.judge(plan, tables))
    assert path.stat().st_size < 1_000_000


def test_trouble_is_where_the_link_differs_from_its_start(plan: Plan) -> None:
    """Trouble lasts from the first change to the return, and to the end without one."""
    assert signals.trouble(plan, 120.0) == ((30.0, 75.0),)
    unhealed = msgspec.structs.replace(plan, changes=plan.changes[:3])
    assert signals.trouble(unhealed, 120.0) == ((30.0, 120.0),)
    assert signals.trouble(msgspec.structs.replace(plan, changes=()), 120.0) == ()


def test_retransmissions_survive_a_reused_port() -> None:
    """A counter that starts again belongs to a new socket: nothing negative, nothing counted twice."""
    rows = [
        {"t_s": float(t), "host": "a", "local": "x", "remote": "y", "use": "kv", "bytes_retrans": value}
        for t, value in enumerate((5, 9, 2, 2))
    ]
    tcp = pl.DataFrame(rows, schema=record.TABLES["tcp"])
    assert signals.retransmitted(tcp, "kv")["bytes"].to_list() == [5, 4, 2, 0]


def test_element_escapes_text_and_attributes() -> None:
    """Only Markup is taken as markup."""
    assert (
        element("b", "<i>", element("br"), title='"<', hidden=True, lang=None)
        == '<b title="&quot;&lt;" hidden>&lt;i&gt;<br></b>'
    )
