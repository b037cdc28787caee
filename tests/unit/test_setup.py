"""scripts/setup on machines that lack something, with programs that stand for those of a system."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
REAL = "bash sh cat dirname sha256sum sort sed tail tr id env"
NO_KERNEL = 'case "$*" in *find_kernel*) exit 1 ;; esac'
PLAYED = {
    "make gcc flex bison bc patch xz ip ethtool crun tcpdump mnexec setpriv stty hostname iperf3 lua5.4": "",
    "apt-get apt-cache": "",
    "sudo": 'exec "$@"',
}


def play(directory: Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script in a checkout with an empty lock; nothing of this machine's is found but what is played."""
    checkout, programs = tmp_path / "my checkout", tmp_path / "programs"
    (checkout / "scripts").mkdir(parents=True)
    programs.mkdir()
    text = (PROJECT / "scripts/setup").read_text(encoding="utf-8")
    for ours in ("/usr/bin/python3", "/usr/src/", ":/usr/sbin:/sbin"):
        assert ours in text
        text = text.replace(ours, ours.replace("/usr", "/nowhere").replace("/sbin", "/nowhere"))
    (checkout / "scripts/setup").write_text(text)
    (checkout / "requirements.lock").write_text("")
    for name in REAL.split():
        (programs / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    for names, script in PLAYED.items():
        for name in names.split():
            play(programs, name, script)
    return checkout


def set_up(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(checkout / "scripts/setup"), *arguments],
        env={"PATH": str(checkout.parent / "programs"), "TESTBED_TORCH": "no", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def make_venv(checkout: Path, script: str) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)
    play(checkout / ".venv/bin", "python", script)


@pytest.mark.parametrize(
    ("missing", "says"), [("", "no package linux-source-6.12 on offer"), ("apt-get", "source of Linux 6.12")]
)
def test_a_kernel_source_that_is_nowhere_is_told(checkout: Path, missing: str, says: str) -> None:
    """Exit code 4 and what is missing, with apt and without."""
    make_venv(checkout, NO_KERNEL)
    if missing:
        (checkout.parent / "programs" / missing).unlink()
        (checkout / "scripts/setup").write_text(
            (checkout / "scripts/setup").read_text().replace("\nset_up_packages\n", "\n")
        )
    ended = set_up(checkout)
    assert (ended.returncode, ended.stderr.count(says)) == (4, 1), ended.stderr


def test_without_a_python_it_ends_with_4(checkout: Path) -> None:
    """What is missing is said, and nothing else goes wrong for it."""
    ended = set_up(checkout)
    assert ended.returncode == 4
    assert ended.stderr.splitlines()[-1] == "setup: needs Python 3.11 or newer"


def test_a_virtual_environment_that_was_broken_off_is_made_again(checkout: Path) -> None:
    """It has a Python, and no pip yet."""
    make_venv(checkout, 'case "$*" in "-m pip"*) [ -e "${0%/*}/pip" ] ;; esac')
    play(checkout.parent / "programs", "python3", 'case "$*" in "-m venv .venv") : >.venv/bin/pip ;; esac')
    ended = set_up(checkout)
    assert ended.returncode == 0, ended.stderr
    assert (checkout / ".venv/requirements.sha256").stat().st_size > 0


def test_packages_are_named_in_the_same_order_everywhere(checkout: Path) -> None:
    """Whatever the user's language sorts by."""
    backwards = 'case "$LC_ALL" in C) exec {0} "$@" ;; esac; exec {0} -r "$@"'
    (checkout.parent / "programs/sort").unlink()
    play(checkout.parent / "programs", "sort", backwards.format(shutil.which("sort")))
    said = [set_up(checkout, "packages", LC_ALL=language).stdout for language in ("C", "de_DE.UTF-8")]
    assert said[0] == said[1]
    assert said[0].splitlines() == sorted(said[0].split())
