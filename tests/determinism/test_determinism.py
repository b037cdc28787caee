"""The same seed gives the same bytes, wherever and however it runs, and what would break that is noticed.

All leaks that were closed, and what putting them back does: `python -m tests.determinism.leaks`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.capture.tcpdump import PATH
from testbed.kernel.uml import Uml, fixed_addresses
from tests.determinism import leaks, places
from tests.determinism.leaks import LEAKS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
    pytest.mark.skipif(shutil.which("tcpdump", path=PATH) is None, reason="no tcpdump: make setup"),
    pytest.mark.skipif(not fixed_addresses(), reason="address randomization cannot be switched off here"),
]
BY_NAME = {leak.name: leak for leak in LEAKS}


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory that another user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="determinism-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_the_same_seed_gives_the_same_bytes_anywhere(work: Path) -> None:
    """Another user, checkout, environment, load; nothing cached: every table and every packet is the same."""
    one, two = leaks.run_twice(BY_NAME["none"], work)
    assert (one.code, two.code) == (0, 0), one.output + two.output
    assert places.apart(one, two) == []
    for table in sorted((one.path / "record").iterdir()):
        assert table.read_bytes() == (two.path / "record" / table.name).read_bytes()


def test_a_leak_is_noticed(work: Path) -> None:
    """`mount` walking through a path with more components is enough to part the runs, and it is told when."""
    one, two = leaks.run_twice(BY_NAME["paths that `mount` walks through"], work)
    assert (one.code, two.code) == (0, 0), one.output + two.output
    assert any(" virtual s" in difference for difference in places.apart(one, two))


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_every_leak_can_still_be_put_back(leak: leaks.Leak, tmp_path: Path) -> None:
    """The table of leaks fits the source: each edit finds its place."""
    leaks.put_back(leak, places.copy(tmp_path / "copy"))
