"""`make fidelity`: measure the link in full and write the error table into docs/fidelity.md.

Exit code 0 when every row is within what it allows, 1 when one is not; the table is written either way. The
clock is virtual and the dice are seeded: the same kernel and the same project write the same table.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.fidelity.boots import TABLE
from tests.fidelity.guest import Results, measure
from tests.fidelity.rows import Row, rows

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fidelity.md"
BEGIN, END = "<!-- make fidelity writes from here -->", "<!-- to here -->"
COLUMNS = ("what", "asked", "measured", "error", "allowed", "ok")
SECTIONS = {
    "goodput": "Goodput of TCP, steady",
    "one_way": "One-way delay, idle",
    "nested": "Delays in a row",
    "full_buffer": "Queueing delay of a full buffer",
    "random_loss": "Random loss",
    "rare_loss": "Rare loss",
    "bursts": "Loss in bursts",
    "shares": "Reordering, duplication, corruption",
    "jitter": "Jitter",
    "trace": "A rate that changes a hundred times a second",
    "under_loss": "TCP under random loss",
    "offloads": "Super-packets or packets",
}


def main() -> int:
    """Boot, measure, compare, write."""
    begun = time.monotonic()
    found: dict[str, Results] = {}
    with tempfile.TemporaryDirectory(prefix="fidelity-") as place:
        for name, asked in TABLE.items():

            def say(line: str, name: str = name) -> None:
                print(f"{time.monotonic() - begun:5.0f} s  {name}: {line}", flush=True)

            found[name] = measure(Path(place) / name.replace(" ", "-"), asked, say)
    tables = {check: rows(found, check) for check in SECTIONS}
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    kernels = sorted({results["kernel"] for results in found.values()})
    lines = "\n".join(_page(tables, kernels))
    PAGE.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", encoding="utf-8")
    missed = [row for table in tables.values() for row in table if not row.ok]
    for row in missed:
        print(f"off: {row.what}: {row.measured} where {row.asked} was asked ({row.allowed})")
    count = sum(map(len, tables.values()))
    print(f"{count - len(missed)} of {count} rows as they should be; {PAGE.name} written")
    return 1 if missed else 0


def _page(tables: dict[str, list[Row]], kernels: list[str]) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield ""
    yield f"Version {project['version']}, Linux {', '.join(kernels)}, `--kernel uml`, virtual time."
    for check, title in SECTIONS.items():
        yield f"\n### {title}\n"
        yield f"| {' | '.join(COLUMNS)} |"
        yield f"|{'---|' * len(COLUMNS)}"
        for row in tables[check]:
            cells = (row.what, row.asked, row.measured, row.error, row.allowed, "yes" if row.ok else "**no**")
            yield f"| {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
