"""One thing that was measured of the link, and how people see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from testbed.plan import Direction

ABSENT = "none"
"""Measured, where nothing was: for a run that was broken off that is no news."""
ARROWS: dict[Direction, str] = {"a_to_b": "A → B", "b_to_a": "B → A"}


@dataclass(frozen=True, slots=True)
class Finding:
    """`asked`, `measured` and `allowed` are for people; `sentence` says all of it."""

    what: str
    direction: Direction
    asked: str
    measured: str
    allowed: str
    ok: bool
    more: str = ""
    """What else there is to say; of a miss: what to do."""

    @property
    def sentence(self) -> str:
        said = (
            f"link {self.direction}, {self.what}: {self.measured} where {self.asked} was asked, "
            f"allowed {self.allowed}"
        )
        return f"{said}; {self.more}" if self.more else said

    def saying(self, more: str) -> Finding:
        """The same with something more to say."""
        return replace(self, more=more)


def missing(what: str, direction: Direction) -> Finding:
    """What should have been measured and was not."""
    return Finding(what, direction, "a measurement", ABSENT, "none to be missing", ok=False)


def counted(  # noqa: PLR0917 - a row, in the order of its columns
    what: str,
    direction: Direction,
    count: int,
    of: int,
    within: tuple[int, int],
    asked: str,
    *,
    share: float = 0.0,
) -> Finding:
    """So many of so many, and how many may be. `share`: asked of each, which few cannot prove."""
    low, high = within
    allowed = str(low) if low == high else f"{low} to {high}"
    found = Finding(what, direction, asked, f"{count} of {of}", allowed, ok=low <= count <= high)
    if share > 0 and not low and found.ok:
        return found.saying(f"so rare that {of} packets may show none: read back from the kernel")
    return found


def summary(findings: Sequence[Finding]) -> str:
    """One line for the terminal."""
    missed = [finding for finding in findings if not finding.ok]
    if not missed:
        return f"the link was as asked: {len(findings)} measurements"
    return f"the link was not as asked: {len(missed)} of {len(findings)} measurements missed"


def table(findings: Sequence[Finding]) -> Table:
    """For the terminal: a row per finding."""
    view = Table(title=summary(findings), title_justify="left")
    for head in ("direction", "what", "asked", "measured", "allowed", ""):
        view.add_column(head, overflow="fold")
    for finding in findings:
        style = "green" if finding.ok else "bold red"
        cells = (ARROWS[finding.direction], finding.what, finding.asked, finding.measured, finding.allowed)
        view.add_row(*map(Text, cells), Text("as asked" if finding.ok else "missed", style=style))
    return view
