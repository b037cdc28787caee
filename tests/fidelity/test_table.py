"""The published table: `make fidelity` writes it, and nothing in it is off."""

from __future__ import annotations

from tests.fidelity.make_table import BEGIN, END, PAGE, SECTIONS


def test_the_page_has_every_section_and_no_row_that_failed() -> None:
    """Between the marks stand all sections, each with rows, and every row ends in yes."""
    text = PAGE.read_text(encoding="utf-8")
    written = text.split(BEGIN)[1].split(END)[0]
    sections = dict(section.split("\n", 1) for section in written.split("### ")[1:])
    assert list(sections) == list(SECTIONS.values())
    for section in sections.values():
        lines = [line for line in section.splitlines() if line.startswith("|")][2:]
        assert lines
        assert [line for line in lines if not line.endswith("| yes |")] == []
