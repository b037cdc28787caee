"""scripts/vm, with programs that stand for the build, sudo and the project's Python."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
ID = "0123456789abcdef" * 2
PYTHON = """
image=$TESTBED_CACHE/vm/0123456789ab
case "$*" in
*find_image*) [ ! -e "$image/disk.img" ] || echo "$image" ;;
*cache_dir*) echo "$TESTBED_CACHE" ;;
*image_name*) echo 0123456789ab ;;
*testbed.run*) flock -n "$TESTBED_CACHE/vm" echo "nobody holds the lock" ;;
esac
"""
BUILD = 'mkdir "$2"; echo disk >"$2/disk.img"; echo key >"$2/ssh_key"'
PROGRAMS = "mmdebstrap mke2fs sfdisk qemu-system-x86_64"
PATIENCE_S = 10.0

pytestmark = pytest.mark.skipif(
    "ID=debian\n" not in Path("/etc/os-release").read_text(encoding="utf-8"), reason="this is no Debian"
)


def play(program: Path, script: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One in which a build takes no time; its cache is `cache` beside it."""
    checkout = tmp_path / "my checkout"
    play(checkout / ".venv/bin/python", PYTHON)
    play(checkout / "testbed/kernel/vm_recipe/build.sh", BUILD)
    play(checkout / "scripts/setup", "echo one two")
    shutil.copy(PROJECT / "scripts/vm", checkout / "scripts/vm")
    for name in PROGRAMS.split():
        play(tmp_path / "programs" / name, "")
    play(tmp_path / "programs/sudo", 'exec "$@"')
    play(tmp_path / "programs/qemu-img", 'for last; do :; done; echo image >"$last"')
    return checkout


def command(checkout: Path, *arguments: str) -> list[str]:
    return ["bash", str(checkout / "scripts/vm"), *arguments]


def environment(checkout: Path) -> dict[str, str]:
    top = checkout.parent
    return {"PATH": f"{top}/programs:{os.defpath}", "TESTBED_CACHE": str(top / "cache")}


def start(checkout: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(checkout, *arguments),
        env=environment(checkout),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(checkout: Path, *arguments: str) -> tuple[int, str, str]:
    with start(checkout, *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_a_build_leaves_the_image_and_nothing_else(checkout: Path) -> None:
    """Asked for once more it only says where the image lies."""
    image = checkout.parent / "cache/vm/0123456789ab"
    assert call(checkout, "build") == (0, f"{image}\n", f"vm: building {image}, once\n")
    assert names(image.parent) == [image.name]
    assert call(checkout, "build") == (0, f"{image}\n", "")


def test_what_a_killed_build_left_goes_with_the_next(checkout: Path) -> None:
    """By its whole name; directories of others that only look similar stay."""
    vm = checkout.parent / "cache/vm"
    going = 'echo $$ >"$1/new"; mv "$1/new" "$1/pid"; exec sleep 60'
    play(checkout / "testbed/kernel/vm_recipe/build.sh", going)
    with start(checkout, "build") as process:
        until(lambda: list(vm.glob("*/pid")) != [])
        process.kill()
        (noted,) = vm.glob("*/pid")
        os.kill(int(noted.read_text()), signal.SIGKILL)
    left = noted.parent.name
    play(checkout / "testbed/kernel/vm_recipe/build.sh", BUILD)
    others = ["build-kernel", f"my-vm-build-{ID}", "vm-build-notes"]
    for name in others:
        (vm / name).mkdir()
    assert call(checkout, "build")[0] == 0
    assert left not in names(vm)
    assert names(vm) == sorted(["0123456789ab", *others])


def test_a_run_that_has_waited_for_a_build_holds_up_nobody(checkout: Path) -> None:
    """The lock is that of the build alone."""
    vm = checkout.parent / "cache/vm"
    vm.mkdir(parents=True)
    lock = os.open(vm, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with start(checkout, "run", "x.yaml") as process:
        until(lambda: is_awaited(vm))
        (vm / "0123456789ab").mkdir()
        (vm / "0123456789ab/disk.img").touch()
        os.close(lock)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "nobody holds the lock\n", "")


def is_awaited(lock: Path) -> bool:
    """Kernel: Documentation/filesystems/proc.rst, /proc/locks."""
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any(" -> " in line and f":{lock.stat().st_ino} " in line for line in lines)


def test_a_box_is_packed_once(checkout: Path) -> None:
    """What was left of packing that was killed is gone then."""
    image = checkout.parent / "cache/vm/0123456789ab"
    call(checkout, "build")
    (image / "box-123456").mkdir()
    code, out, err = call(checkout, "box")
    assert (code, out, err) == (0, f"{image}/testbed-libvirt.box\n", f"vm: packing {out}")
    assert names(image) == ["disk.img", "ssh_key", "testbed-libvirt.box"]
    assert call(checkout, "box") == (0, out, "")


def test_cleaning_takes_what_is_ours_and_nothing_else(checkout: Path) -> None:
    """Disks, what was left of builds, what is known of KVM; not what somebody keeps beside them."""
    vm = checkout.parent / "cache/vm"
    call(checkout, "build")
    (vm / f"vm-build-{ID}/root").mkdir(parents=True)
    (vm / f"kvm-0123456789ab-{uuid.UUID(ID)}").touch()
    (vm / "my disks").mkdir()
    assert call(checkout, "clean") == (0, "", "")
    assert names(vm) == ["my disks"]
    (vm / "my disks").rmdir()
    assert call(checkout, "clean") == (0, "", "")
    assert not vm.exists()
    assert call(checkout, "clean") == (0, "", "")


def test_disks_that_lie_behind_a_link_are_cleaned_too(checkout: Path) -> None:
    """Somebody may keep gigabytes elsewhere; the link stays."""
    vm, elsewhere = checkout.parent / "cache/vm", checkout.parent / "elsewhere"
    (elsewhere / "0123456789ab").mkdir(parents=True)
    vm.parent.mkdir(exist_ok=True)
    vm.symlink_to(elsewhere)
    assert call(checkout, "clean") == (0, "", "")
    assert names(elsewhere) == []
    assert vm.is_symlink()


def test_without_knowing_where_nothing_is_cleaned(checkout: Path) -> None:
    """As in a checkout that was never set up: no `/vm` goes that is somebody's."""
    (checkout / ".venv/bin/python").unlink()
    play(checkout.parent / "programs/rm", 'echo removed "$@"')
    assert call(checkout, "clean") == (
        4, "", "vm: does not know where disks lie without .venv: scripts/setup\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("where", "program", "starts"),
    [
        ("checkout", "#!{}/bin/python\nprint()\n", "#!/vagrant/.venv/bin/python\n"),
        (
            "my checkout",
            "#!/bin/sh\n'''exec' \"{}/bin/python\" \"$0\" \"$@\"\n' '''\n",
            "#!/bin/sh\n'''exec' \"/vagrant/.venv/bin/python\" ",
        ),
        ("moved", "#!/elsewhere/bin/python\n", "#!/elsewhere/bin/python\n"),
    ],
)
def test_programs_of_the_copied_environment_start_from_where_it_will_stand(
    where: str, program: str, starts: str, tmp_path: Path
) -> None:
    """Whatever the checkout is called: pip writes another beginning where a path has blanks."""
    venv, root = tmp_path / where / ".venv", tmp_path / "root"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/tool").write_text(program.format(venv))
    (venv / "lib/python3.11/site-packages/torch").mkdir(parents=True)
    recipe = (PROJECT / "testbed/kernel/vm_recipe/build.sh").read_text(encoding="utf-8")
    function = recipe[recipe.index("copy_python() {") : recipe.index("configure() {")]
    script = f"set -euo pipefail\nvenv=$1 root=$2 uml=\n{function}\ncopy_python"
    subprocess.run(["bash", "-c", script, "bash", venv, root], check=True)
    assert (root / "opt/venv/bin/tool").read_text().startswith(starts)
    assert names(root / "opt/venv/lib/python3.11/site-packages") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_who_may_not_write_beside_the_disk_is_told_who_may(checkout: Path) -> None:
    """Exit code 4, and the command that does it."""
    call(checkout, "build")
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:  # pytest's are closed
        Path(open_to_all).chmod(0o755)
        copy = shutil.copytree(checkout.parent, Path(open_to_all) / "copy")
        copy.chmod(0o755)
        ended = subprocess.run(
            [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                *command(copy / checkout.name, "box"),
            ],
            env=environment(copy / checkout.name),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr == (
        "vm: the box lies beside the disk, which is root's: "
        "sudo --preserve-env=TESTBED_CACHE scripts/vm box\n"
    )
