"""The report as Markdown and as a picture: the same verdict and numbers, and no name leaves its place."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from testbed.report import picture
from testbed.report.__main__ import main, rebuild
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import expectation, make_plan, with_expectations
from tests.unit.synthetic_run import write_run

HOSTILE = "</script>|<img src=x>`*[_](x)&\"'"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_run(tmp_path_factory.mktemp("runs") / "run", make_plan(requests=60), tcp_lines=320)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    plan = make_plan(requests=20)
    bound = expectation("bound", "requests.failed", HOSTILE, high=-1)
    plan = msgspec.structs.replace(with_expectations(plan, bound), name=HOSTILE, question=HOSTILE)
    return write_run(tmp_path_factory.mktemp("runs") / "run", plan, tcp_lines=64)


def markdown(run: RunDir, out: Path) -> tuple[int, str]:
    code = main([str(run.path), "--format", "md", "--out", str(out)])
    return code, out.read_text()


def test_markdown_has_verdict_measured_values_and_margins(run: RunDir, tmp_path: Path) -> None:
    """A row for every result: measured, allowed and left over; then main numbers, and how to repeat it."""
    code, text = markdown(run, tmp_path / "x.md")
    verdict = json.loads(run.verdict.read_bytes())
    assert text.startswith(f"### {verdict['status']}: congestion, ")
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| (PASS|FAIL|UNKNOWN) \|", line)]
    assert [row[0].strip("| ") for row in rows] == [one["status"] for one in verdict["results"]]
    assert all(len(row) == 5 for row in rows)
    assert ["| PASS", "threshold follows the link", "1.25 s"] in [row[:3] for row in rows]
    for said in (
        "| requests completed | 60 of 60 |",
        "| TTFT P90 | ",
        "| seed | 7 |",
        "Again: `python -m testbed.run",
    ):
        assert said in text
    assert code == {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}[verdict["status"]]


def test_markdown_links_the_report_from_where_it_stands(run: RunDir, tmp_path: Path) -> None:
    """The link leads from the file's directory to the page of the run."""
    _, text = markdown(run, tmp_path / "x.md")
    link = re.search(r"\]\(<(.*)>\)", text)
    assert link is not None
    assert (tmp_path / link[1]).resolve() == run.report.resolve()


def test_markdown_shows_any_name_as_text(hostile: RunDir, tmp_path: Path) -> None:
    """Names neither begin HTML nor end the cell they stand in; what failed is said in a sentence."""
    code, text = markdown(hostile, tmp_path / "x.md")
    outside_code = re.sub(r"(`+) .*? \1", "", text)
    assert "<img" not in outside_code
    assert "</script" not in outside_code
    assert len(outside_code) < len(text)
    assert re.search(r"^- .*requests\.failed was 0", text, re.MULTILINE)
    table = [line for line in text.splitlines() if line.startswith("| FAIL")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in table] == [6]
    assert code == 1


def test_standard_output_has_the_format_only(run: RunDir, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """With --out - there is nothing but the report."""
    main([str(run.path), "--format", "md", "--out", "-"])
    assert capfdbinary.readouterr().out.startswith(b"### ")


def test_a_place_that_cannot_be_written_is_a_wrong_argument(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, the path and the reason."""
    assert main([str(run.path), "--out", str(tmp_path / "no" / "x.html")]) == 3
    assert f"--out {tmp_path}/no/x.html: No such file or directory" in capsys.readouterr().err


def test_the_page_can_go_elsewhere(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of the page stands at --out, and whatever that is called, it is named."""
    place = tmp_path / "x[" / "red][" / "b].html"
    place.parent.mkdir(parents=True)
    main([str(run.path), "--out", str(place)])
    assert place.read_bytes() == run.report.read_bytes()
    assert f"report: {place}\n" in capsys.readouterr().out


def test_the_picture_lacks_a_package_and_says_which(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 and how to get it."""
    monkeypatch.setattr(picture, "find_spec", lambda _: None)
    assert main([str(run.path), "--format", "png"]) == 4
    assert "pip install resvg-py" in capsys.readouterr().err


def test_the_picture_is_drawn_from_verdict_and_main_charts(
    hostile: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Well-formed SVG with every colour resolved, the verdict and the main charts; names are text."""
    drawn: list[str] = []
    monkeypatch.setattr(picture, "png", lambda drawing: drawn.append(drawing) or b"")
    main([str(hostile.path), "--format", "png"])
    root = ET.fromstring(drawn[0])
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "FAIL" in texts
    assert HOSTILE in texts
    assert len([one for one in texts if one.startswith(picture.MAIN_CHARTS)]) == len(picture.MAIN_CHARTS)
    assert "var(" not in drawn[0]


def test_the_picture_has_no_characters_that_xml_lacks(run: RunDir) -> None:
    """An event's name may have any; the drawing can be read."""
    rebuilt = rebuild(run)
    plan = msgspec.structs.replace(rebuilt.plan, question="is \x1b[1m\ud800\uffff it?")
    drawn = picture.draw(plan, rebuilt.tables, rebuilt.verdict, [])
    assert "is ?[1m?? it?" in drawn
    ET.fromstring(drawn.encode())


def test_the_picture_has_texts_as_they_stand_and_all_of_them(run: RunDir) -> None:
    """What looks like a colour is none in a text; a long reason goes on in the next line."""
    rebuilt = rebuild(run)
    plan = msgspec.structs.replace(rebuilt.plan, question="is var(--nothing) a colour, or var(--ink)?")
    words = [f"word{number}" for number in range(60)]
    verdict = msgspec.structs.replace(rebuilt.verdict, trust=(" ".join(words),))
    drawn = picture.draw(plan, rebuilt.tables, verdict, [])
    assert "is var(--nothing) a colour, or var(--ink)?" in drawn
    texts = ["".join(one.itertext()) for one in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    reasons = [one for one in texts if "word" in one]
    assert " ".join(reasons) == f"not trusted: {' '.join(words)}"
    assert max(map(len, reasons)) <= picture.LETTERS_A_LINE + 20


def test_the_picture_is_a_png(run: RunDir, tmp_path: Path) -> None:
    """Of the size that the drawing has."""
    pytest.importorskip("resvg_py", reason="resvg-py is not installed: make setup")
    main([str(run.path), "--format", "png", "--out", str(tmp_path / "x.png")])
    content = (tmp_path / "x.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1148
    assert 900 < height < 2_000
