"""What `testbed.clean` removes, and what it leaves alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed import clean, sysctl
from testbed.command import run_command
from testbed.kernel import enclosed, groups, scratch

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("whole_machine")]
root_only = pytest.mark.skipif(
    os.geteuid() != 0 or groups.missing() != [], reason="needs root and control groups"
)
LABELS = groups.labels
"""The real ones, of which other tests may be making some."""
ID = "0123456789abcdef" * 2


@dataclass
class Places:
    """A machine's places, as far as they can be moved."""

    temporary: Path
    notes: Path
    cache: Path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    places = Places(tmp_path / "tmp", tmp_path / "notes", tmp_path / "cache")
    for place in (places.temporary, places.notes, places.cache):
        place.mkdir()
    monkeypatch.setattr(scratch, "PLACES", (places.temporary,))
    monkeypatch.setattr(tempfile, "tempdir", str(places.temporary))
    monkeypatch.setattr(scratch, "FRESH_S", 0.0)
    monkeypatch.setattr(enclosed, "NOTES", places.notes)
    monkeypatch.setattr(groups, "labels", list)
    monkeypatch.setattr(enclosed, "WORK", places.notes / "work")
    monkeypatch.setenv("TESTBED_CACHE", str(places.cache))
    return places


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    """Whatever is started here ends with the test."""
    with ExitStack() as stack:
        yield stack


def started(processes: ExitStack, *command: str | Path, cwd: Path) -> subprocess.Popen[bytes]:
    process = processes.enter_context(subprocess.Popen(list(map(str, command)), cwd=cwd))
    processes.callback(process.kill)
    return process


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run_command(clean.app, arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_where_nothing_is_left_it_says_so(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    """And removes nothing."""
    assert said(capsys) == ["nothing is left of any run"]
    assert places.temporary.is_dir()


def test_directories_are_listed_first_and_removed_then(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run only lists; the next one removes; then nothing is left. What has an owner stays."""
    left = places.temporary / f"testbed-run-{ID}"
    (left / "deep").mkdir(parents=True)
    left.chmod(0o700)
    draft = places.cache / "images" / f"draft-{ID}"
    draft.mkdir(parents=True)
    os.utime(draft, (0, 0))
    new = places.cache / "images" / f"draft-{ID[::-1]}"
    new.mkdir()
    with scratch.scratch("run") as (held,):
        listed = said(capsys, "--dry-run")
        assert listed == [f"would remove directory {left}", f"would remove directory {draft}"]
        assert left.is_dir()
        assert said(capsys) == [line.replace("would remove", "removed") for line in listed]
        assert said(capsys) == ["nothing is left of any run"]
        assert held.is_dir()
    assert new.is_dir()


def test_a_cache_may_lie_among_other_things(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that only begin like ours, directories that we never make, what lies behind a link."""
    elsewhere = places.temporary / "elsewhere"
    foreign = [
        places.cache / f"papers/draft-{ID}",
        places.cache / "images/draft-2",
        places.cache / "kernel-build-notes",
        elsewhere / f"draft-{ID}",
    ]
    for one in foreign:
        one.mkdir(parents=True)
        os.utime(one, (0, 0))
    (places.cache / "bytecode").symlink_to(elsewhere)
    (places.cache / f"images/draft-{ID}").symlink_to(elsewhere)
    (places.cache / f"kernel-build-{ID}").symlink_to(elsewhere)
    build = places.cache / f"kernel-build-{ID[::-1]}"
    build.mkdir()
    assert said(capsys) == [f"removed directory {build}"]
    assert all(one.is_dir() for one in foreign)


def test_what_a_killed_build_of_a_disk_left_is_root_s_to_remove(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its whole name, and not while somebody builds there."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    left = places.cache / f"vm/vm-build-{ID}"
    (left / "root").mkdir(parents=True)
    foreign = places.cache / "vm/vm-build-notes"
    foreign.mkdir()
    lock = os.open(left.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert said(capsys) == ["nothing is left of any run"]
    os.close(lock)
    assert said(capsys) == [f"removed directory {left}"]
    assert foreign.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_root_has_closed_to_others_stops_nobody(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where root makes directories that only root may enter."""
    assert places.notes.is_dir()
    with tempfile.TemporaryDirectory(dir="/tmp") as closed:  # in a place that is open
        monkeypatch.setattr(enclosed, "NOTES", Path(closed))
        monkeypatch.setattr(enclosed, "WORK", Path(closed, "work"))
        os.seteuid(65534)
        try:
            assert said(capsys) == ["nothing is left of any run"]
        finally:
            os.seteuid(0)


def test_a_guest_without_an_owner_is_ended(
    places: Places,
    processes: ExitStack,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its program and the directory it works in; not the same program in a directory of somebody's.

    Also where the cache is named by a link.
    """
    (places.temporary / "cache").symlink_to(places.cache)
    monkeypatch.setenv("TESTBED_CACHE", str(places.temporary / "cache"))
    program = places.cache / "kernel-abc/linux"
    program.parent.mkdir()
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    left, mine = places.temporary / f"testbed-run-{ID}", places.temporary / "testbed-mine"
    for directory in (left, mine):
        directory.mkdir(mode=0o700)
    orphan, other = (started(processes, program, "60", cwd=one) for one in (left, mine))
    wait(orphan.pid, program)
    assert said(capsys)[0] == f"removed process {orphan.pid}, a guest of a run that has ended ({left})"
    assert orphan.wait(5) == -9
    assert other.poll() is None
    assert (left.exists(), mine.exists()) == (False, True)


def wait(pid: int, program: Path) -> None:
    """Until the process has become that program."""
    while Path("/proc", str(pid), "exe").readlink() != program:
        pass


def test_a_name_alone_does_not_make_groups_ours(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a note nothing is killed, and no run takes over what is there."""
    label = "testbed-4190001"
    monkeypatch.setattr(groups, "labels", lambda: [label])
    monkeypatch.setattr(groups, "of_label", lambda _: [places.temporary])
    monkeypatch.setattr(groups, "remove", lambda _: pytest.fail("these are somebody else's"))
    for arguments in ((), ("--dry-run",)):
        assert said(capsys, *arguments) == [f"left alone: control groups {label}, which no run has noted"]
    with pytest.raises(SystemExit, match="are there already"), enclosed.noted(label):
        pass
    assert list(places.notes.iterdir()) == []


@pytest.mark.parametrize("what", ["[]", "{}", '{"net.core.netdev_max_backlog": 5}', '{"net', "null"])
def test_a_damaged_note_stops_nothing(
    what: str, places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the next run, which notes the settings that it finds, nor what cleans up."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    dead, held = (places.notes / f"testbed-{pid}.json" for pid in (dead_pid(), os.getpid()))
    for note in (dead, held):
        note.write_text(what, encoding="utf-8")
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with enclosed.noted("testbed-4190001"):
            noted = json.loads((places.notes / "testbed-4190001.json").read_bytes())
            assert noted == sysctl.of_kernel()
    held.rename(dead)
    assert said(capsys) == [f"removed run {dead.stem} on this kernel: groups, containers, settings"]
    assert list(places.notes.iterdir()) == []


def test_what_is_root_s_does_not_keep_a_user_from_his_own(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """He is told what only root can remove, before and after; whatever else fails is told, too."""
    left, stays = (places.temporary / f"testbed-run-{name}" for name in (ID, ID[::-1]))
    for one in (left, stays):
        one.mkdir(mode=0o700)
    note = places.notes / f"testbed-{dead_pid()}.json"
    note.write_text("{}", encoding="utf-8")

    def remove() -> bool:
        shutil.rmtree(left)
        return True

    def refuse() -> bool:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(scratch, "is_abandoned", lambda path: path in {left, stays} and path.exists())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(clean, "_remove", lambda path: remove() if path == left else refuse())
    roots = f"could not remove run {note.stem} on this kernel: groups, containers, settings: it is root's"
    assert run_command(clean.app, ["--dry-run"]) == 2
    listed = capsys.readouterr()
    assert listed.out.splitlines() == [f"would remove directory {one}" for one in (left, stays)]
    assert listed.err.splitlines() == [roots]
    assert run_command(clean.app, []) == 2
    ended = capsys.readouterr()
    assert ended.out.splitlines() == [f"removed directory {left}"]
    assert ended.err.splitlines() == [
        roots,
        f"could not remove directory {stays}: Operation not permitted",
    ]
    assert note.exists()


def test_mounts_are_found_whatever_they_are_called(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that are not ASCII, not even UTF-8; what is mounted somewhere is never emptied."""
    table = places.notes / "mountinfo"
    monkeypatch.setattr(clean, "MOUNTS", table)
    monkeypatch.setattr(clean, "_unmount", lambda _: False)
    place = places.temporary / "\N{LATIN SMALL LETTER E WITH ACUTE} b"
    left = place / f"testbed-run-{ID}"
    (left / "m").mkdir(parents=True)
    left.chmod(0o700)
    monkeypatch.setattr(scratch, "PLACES", (place,))
    points = [bytes(places.temporary) + b"/\xff", bytes(left / "m"), bytes(left / "m") + b"/\xff"]
    lines = [b"36 35 0:32 / " + one.replace(b" ", b"\\040") + b" rw - tmpfs tmpfs rw" for one in points]
    table.write_bytes(b"\n".join(lines))
    assert clean.mounted_below(left) == [Path(os.fsdecode(points[2])), left / "m"]
    assert run_command(clean.app, []) == 2
    assert (left / "m").is_dir()
    assert f"could not remove mount {left}/m/\\udcff: " in capsys.readouterr().err


@root_only
def test_groups_of_the_dead_go_with_all_in_them(
    places: Places,
    processes: ExitStack,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As containers are left, by the note of their run; those without one stay, and are named."""
    top = groups.hierarchies()[0]
    dead, foreign, mine = f"testbed-{dead_pid()}", f"testbed-{dead_pid()}", "testbed-mine"
    (places.notes / f"{dead}.json").write_text(json.dumps(sysctl.of_kernel()), encoding="utf-8")
    for name in (dead, foreign, mine):
        (top / name / "agent").mkdir(parents=True)
        processes.callback((top / name).rmdir)
        processes.callback((top / name / "agent").rmdir)
    member, stranger = (started(processes, "sleep", "60", cwd=places.temporary) for _ in range(2))
    for name, process in ((dead, member), (foreign, stranger)):
        (top / name / "agent/cgroup.procs").write_text(str(process.pid), encoding="ascii")
        processes.callback(process.wait)
        processes.callback(process.kill)
    monkeypatch.setattr(groups, "labels", lambda: sorted({dead, foreign} & set(LABELS())))
    assert said(capsys) == [
        f"removed run {dead} on this kernel: groups, containers, settings",
        f"left alone: control groups {foreign}, which no run has noted",
    ]
    assert mine not in LABELS()
    assert member.wait(5) == -9
    assert stranger.poll() is None
    assert not (top / dead).exists()
    assert (top / foreign / "agent").is_dir()
    assert (top / mine / "agent").is_dir()
    (top / dead / "agent").mkdir(parents=True)  # for the callbacks


@root_only
def test_settings_come_back_after_the_last_run(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    """What runs had set for the whole kernel is put back by their notes, once none of them goes on."""
    before = sysctl.of_kernel()
    dead, held = (places.notes / f"testbed-{pid}.json" for pid in (dead_pid(), os.getpid()))
    for note in (dead, held):
        note.write_text(json.dumps(before), encoding="utf-8")
    removed = "removed run {} on this kernel: groups, containers, settings"
    try:
        sysctl.put_back({**before, "net.core.netdev_max_backlog": "4321"})
        with held.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert said(capsys) == [removed.format(dead.stem)]
            assert sysctl.of_kernel() != before
        assert said(capsys) == [removed.format(held.stem)]
        assert sysctl.of_kernel() == before
    finally:
        sysctl.put_back(before)


@root_only
def test_everything_of_others_survives(
    places: Places, processes: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """A namespace, an interface, a directory and a process that only look like the testbed's."""
    mine = places.temporary / "testbed-run-mine"
    mine.mkdir(mode=0o700)
    process = started(processes, "sleep", "60", cwd=mine)
    if not Path("/run/netns").is_mount():
        processes.callback(subprocess.run, ["umount", "/run/netns"], check=True)
    subprocess.run(["ip", "netns", "add", "testbed-foreign"], check=True)
    processes.callback(subprocess.run, ["ip", "netns", "del", "testbed-foreign"], check=True)
    pair = "add testbed0 type veth peer name testbed1"
    subprocess.run(["ip", "link", *pair.split()], check=True)
    processes.callback(subprocess.run, ["ip", "link", "del", "testbed0"], check=True)
    assert said(capsys) == ["nothing is left of any run"]
    assert Path("/run/netns/testbed-foreign").exists()
    assert Path("/sys/class/net/testbed0").exists()
    assert process.poll() is None
    assert mine.is_dir()
