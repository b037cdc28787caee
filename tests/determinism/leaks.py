"""`python -m tests.determinism.leaks [NAME ...]`: put each closed leak back, see what the comparison says.

A leak is an edit of a copy of the project. The copy runs here and there (places.py), its two records and
captures are compared. Writes the table of docs/determinism.md to stdout; exit code 1 when runs without a
leak differ, or an edit does not fit the source any more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.determinism import places
from tests.determinism.places import Ended

UML, INIT = "testbed/kernel/uml.py", "testbed/kernel/init.sh"
CONTAINERS, TCPDUMP = "testbed/containers.py", "testbed/capture/tcpdump.py"
EXPORTS = (
    """"".join(f"export {name}={shlex.quote(os.environ[name])}\\n" for name in ("LANG", "MUCH", "TZ")"""
    """ if name in os.environ)"""
)


class Edit(NamedTuple):
    """What stands in a file, and what stood there or might."""

    file: str
    now: str
    then: str


@dataclass(frozen=True)
class Leak:
    """A leak that is closed, and how to put it back."""

    name: str
    edits: tuple[Edit, ...]
    twice_here: bool = False
    """It is one between two runs in the same place."""


LEAKS = (
    Leak("none", ()),
    Leak("the machine's entropy", (Edit(UML, '        f"rng-seed={needs.seed % 2**64}",\n', ""),)),
    Leak(
        "the time of day",
        (
            Edit(UML, "time-travel-start={BOOT_NS}", "time-travel-start={time.time_ns()}"),
            Edit(UML, "import tempfile\n", "import tempfile\nimport time\n"),
        ),
    ),
    Leak("a process id", (Edit(UML, '"quiet",', '"quiet",\n        f"pid={os.getpid()}",'),)),
    Leak("a path", (Edit(UML, '"quiet",', '"quiet",\n        f"path={tempfile.gettempdir()}",'),)),
    Leak(
        "the environment",
        (
            Edit(UML, 'f"set -- {shlex', f'{EXPORTS} + f"set -- {{shlex'),
            Edit(INIT, "env -i ", "env "),
        ),
    ),
    Leak(
        "addresses of the machine", (Edit(UML, 'return [*start, "setarch", "-R"] if fixed else', "return"),)
    ),
    Leak("the limit of open files", (Edit(UML, 'f"--nofile={most_open_files()}:"', '"--core=0"'),)),
    Leak(
        "paths that `mount` walks through",
        (
            Edit(INIT, "command mount -cin", "command mount -in"),
            Edit(INIT, 'cd "$SITE" && mount --bind . ', 'mount --bind "$SITE" '),
        ),
    ),
    Leak("/run/mount of the machine", (Edit(INIT, "command mount -cin", "command mount -ci"),)),
    Leak(
        "the place of the checkout",
        (
            Edit(UML, '"SITE": sysconfig', '"CHECKOUT": str(image.PROJECT), "SITE": sysconfig'),
            Edit(INIT, "/opt/testbed", "$CHECKOUT"),
        ),
    ),
    Leak(
        "byte code that a run leaves behind",
        (
            Edit(INIT, 'cd "$IMAGE" ', 'cd "/sys/host$IMAGE" '),
            Edit(INIT, "\tPYTHONDONTWRITEBYTECODE=1 ", "\t"),
            Edit("testbed/kernel/image.py", 'if copy.suffix == ".py":', "if not copy.suffix:"),
        ),
        twice_here=True,
    ),
    Leak("when a file was read last", (Edit(INIT, "-o noatime ", ""),), twice_here=True),
    Leak(
        "a console that reads",
        (
            Edit(UML, '"con0=null,fd:1"', '"con0=fd:0,fd:1"'),
            Edit("testbed/kernel/supervise.py", "stdin=subprocess.DEVNULL", "stdin=None"),
        ),
    ),
    Leak(
        "tcpdump that opens its file itself",
        (Edit(TCPDUMP, '"-w", "-"', '"-w", f"/run/testbed/run/pcap/{capture.device}.pcap"'),),
    ),
    Leak(
        "dice of the plan without a seed",
        (Edit("testbed/resolve/seeds.py", "PCG64(derive_seed(run_seed, *names))", "PCG64()"),),
    ),
    Leak(
        "order of hashes",
        (
            Edit(INIT, "PYTHONHASHSEED=0", "PYTHONHASHSEED=random"),
            Edit(CONTAINERS, "PYTHONHASHSEED=0", "PYTHONHASHSEED=random"),
        ),
    ),
    Leak("addresses within the guest", (Edit(UML, '        "norandmaps",\n', ""),)),
)


def put_back(leak: Leak, checkout: Path) -> None:
    """Edit a copy; ValueError when the source has no such place any more."""
    for edit in leak.edits:
        file = checkout / edit.file
        text = file.read_text(encoding="utf-8")
        if edit.now not in text:
            raise ValueError(f"{leak.name}: {edit.file} has no {edit.now!r} any more")
        file.write_text(text.replace(edit.now, edit.then), encoding="utf-8")


def run_twice(leak: Leak, work: Path) -> tuple[Ended, Ended]:
    """Run two copies with the leak, in directories below `work`, which anybody may enter."""
    first = places.copy(work / "here")
    put_back(leak, first)
    one = places.here(first, places.cache(work / "cache"), work / "runs")
    if leak.twice_here:
        return one, places.here(first, work / "cache", work / "runs")
    second = places.copy(work / "some-other-place/with/a-longer-name")
    put_back(leak, second)
    return one, places.there(second, places.cache(work / "empty"), work / "results/of/runs")


def main(names: Iterable[str], say: Callable[[str], None]) -> int:
    """Try the leaks that are named, all when none is."""
    chosen = [leak for leak in LEAKS if not names or leak.name in names]
    if unknown := set(names) - {leak.name for leak in chosen}:
        raise SystemExit(
            f"no leak {', '.join(sorted(unknown))}; there are {', '.join(leak.name for leak in LEAKS)}"
        )
    say("| put back | the comparison |\n|---|---|")
    wrong = 0
    for leak in chosen:
        with tempfile.TemporaryDirectory(prefix="leaks-", dir="/var/tmp") as work:
            Path(work).chmod(0o755)
            apart = places.apart(*run_twice(leak, Path(work)))
        say(f"| {leak.name} | {apart[0] if apart else 'the same, byte for byte'} |")
        wrong |= leak.name == "none" and bool(apart)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda line: print(line, flush=True)))
