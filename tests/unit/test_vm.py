"""The VM's provider, with a program that plays QEMU: what it asks for, what it makes of the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import KernelError
from testbed.kernel import Needs, build, vm
from testbed.rundir import RunDir

NEEDS = Needs(memory_bytes=1 << 30, clock="real", seed=1, wall_limit_s=20)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole image, as far as one can see from outside, of a machine without KVM."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vm, "working_accelerator", lambda _disk: "tcg")
    directory = tmp_path / "cache/vm" / vm.image_name()
    directory.mkdir(parents=True)
    for name in vm.FILES:
        (directory / name).write_text(name)
    return directory


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run directory."""
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


def play(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script in QEMU's place."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / vm.QEMU).write_text(f"#!/bin/sh\n{script}\n")
    (programs / vm.QEMU).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/bin")


def test_the_probe_names_all_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Program by program with its package, the image with the command that builds it, the clock."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(vm, "image_name", lambda: "0123456789ab")
    said = [str(problem) for problem in vm.Vm().probe("virtual")]
    assert any("no virtual clock" in line for line in said)
    assert any("qemu-system-x86_64 is missing" in line and "qemu-system-x86," in line for line in said)
    assert any(f"{tmp_path}/vm/0123456789ab" in line and "scripts/vm build" in line for line in said)


def test_where_nothing_builds_an_image_nobody_is_sent_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the project was installed by pip; in a checkout the command needs no sudo of the user's."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path))
    assert vm.Vm().probe("real")[-1].next_step == "scripts/vm build"
    monkeypatch.setattr(vm, "BUILDER", tmp_path / "vm")
    assert "checkout" in vm.Vm().probe("real")[-1].next_step


def test_a_python_that_the_guest_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built in a home directory, which the guest does not see."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    found = [problem for problem in vm.Vm().probe("real") if "the guest has no" in problem.found]
    assert [problem.found for problem in found] == [f"the guest has no {tmp_path}/python3"]
    monkeypatch.setattr(sys, "executable", vm.GUEST_PYTHON.format(*sys.version_info[:2]))
    assert not any("the guest has no" in problem.found for problem in vm.Vm().probe("real"))


def test_an_image_lacks_nothing_only_when_it_is_whole(disk: Path) -> None:
    """An image without one of its files is none."""
    assert vm.find_image() == disk
    (disk / vm.INITRD).unlink()
    assert vm.find_image() is None


def test_a_cache_with_a_relative_name_is_found_from_elsewhere(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU, and UML's kernel, are started in a directory of the run's own."""
    monkeypatch.chdir(tmp_path)
    for variable in ("TESTBED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv("TESTBED_CACHE", raising=False)
        monkeypatch.setenv(variable, "cache")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert build.cache_dir().is_absolute()
    monkeypatch.setenv("TESTBED_CACHE", "cache")
    assert vm.find_image() == disk


def test_an_image_is_named_after_what_it_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another recipe, another name; the same one, the same name."""
    before = vm.image_name()
    assert vm.image_name() == before
    copy = shutil.copytree(vm.RECIPE, tmp_path / "recipe")
    monkeypatch.setattr(vm, "RECIPE", copy)
    assert vm.image_name() == before
    (copy / "boot.sh").write_text("#!/bin/sh\n")
    assert vm.image_name() != before


def test_only_the_run_directory_can_be_written(disk: Path, tmp_path: Path) -> None:
    """What the guest writes elsewhere goes to a file without a name, which ends with QEMU."""
    place = tmp_path / "a,b"
    argv = vm.command(disk, "tcg", 1 << 30, {"project": place, "run": place})
    shares = [word for word in argv if word.startswith("local,")]
    assert ["readonly=on" in share for share in shares] == [True, False]
    assert all(share.endswith("path=" + str(place).replace(",", ",,")) for share in shares)
    (drive,) = (word for word in argv if "format=raw" in word)
    assert "snapshot=on" in drive


def test_a_good_end_is_the_guest_switching_itself_off(
    disk: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines come through until then; the run directory says which kernel it was."""
    play('echo hello; echo "vm: off"; echo "reboot: Power down"', tmp_path, monkeypatch)
    said: list[str] = []
    vm.Vm().execute(run_dir, NEEDS, said.append)
    assert said == ["@stage booting a virtual machine", "hello"]
    assert "reboot" in RunDir(run_dir).console.read_text()
    noted = json.loads(RunDir(run_dir).guest.read_text())
    assert (noted["kernel_name"], noted["accelerator"], noted["vm_image"]) == ("release", "tcg", disk.name)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Kernel panic - not syncing'", "the VM died (status 0); its last words: Kernel panic"),
        ("kill -KILL $$", "the VM died (ended by SIGKILL); its last words: nothing"),
        ("echo 'vm: could not be set up'; echo 'vm: off'", "the VM could not be set up (status 0)"),
    ],
)
def test_any_other_end_is_an_error(
    script: str, says: str, disk: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that cannot be trusted is never taken for one that went well."""
    assert disk.is_dir()
    play(script, run_dir, monkeypatch)
    with pytest.raises(KernelError) as caught:
        vm.Vm().execute(run_dir, NEEDS, lambda _line: None)
    assert says in str(caught.value)


def test_what_qemu_writes_beside_the_disk_goes_with_the_run(
    disk: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer of the disk has a name until QEMU has opened it, and QEMU may be killed before."""
    assert disk.is_dir()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    play('echo layer >"$TMPDIR/vl.123456" && kill -KILL $$', tmp_path, monkeypatch)
    with pytest.raises(KernelError, match="SIGKILL"):
        vm.Vm().execute(run_dir, NEEDS, lambda _line: None)
    assert list(temporary.iterdir()) == []


def test_a_shell_s_vm_ends_with_it(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed outright, too."""
    (disk.parent / f"kvm-{disk.name}-{vm._boot_id()}").write_text("hangs")
    pid = tmp_path / "pid"
    play(f'echo $$ >"{pid}.new"; mv "{pid}.new" "{pid}"; exec sleep 60', tmp_path, monkeypatch)
    with subprocess.Popen([sys.executable, "-m", vm.__name__], stdin=subprocess.DEVNULL) as process:
        until(pid.is_file)
        process.kill()
    until(lambda: not Path("/proc", pid.read_text().strip()).exists())


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_vm_that_hangs_is_ended(
    disk: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog's patience grows by that of a boot, and the message says why it was slow."""
    assert disk.is_dir()
    play("sleep 60", tmp_path, monkeypatch)
    monkeypatch.setattr(vm, "BOOT_PATIENCE_S", {"tcg": 0.2})
    needs = Needs(memory_bytes=1 << 30, clock="real", seed=1, wall_limit_s=0.1)
    with pytest.raises(KernelError, match="emulated"):
        vm.Vm().execute(run_dir, needs, lambda _line: None)


@pytest.mark.parametrize(
    ("script", "found"), [("echo 'vm: up'", "kvm"), ("sleep 60", "tcg"), ("false", "tcg")]
)
def test_kvm_is_used_only_where_a_guest_has_booted_with_it(
    script: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once; afterwards this machine's answer is known until it boots again."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vm, "KVM_PATIENCE_S", 0.5)
    monkeypatch.setattr(vm.os, "access", lambda *_: True)
    play(script, tmp_path, monkeypatch)
    assert vm.working_accelerator(tmp_path / "image") == found
    (tmp_path / "programs" / vm.QEMU).unlink()
    assert vm.working_accelerator(tmp_path / "image") == found
