"""The frozen copy of the project: made once, whole, and anew for every other source."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.kernel import image

ID = "0123456789abcdef" * 2


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files."""
    package = tmp_path / "project/agents"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("ANSWER = 42\n")
    (package / "deep/table.yaml").write_text("a: 1\n")
    monkeypatch.setattr(image, "PROJECT", package.parent)
    return package


def contents(place: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(place)): one.read_bytes() for one in sorted(place.rglob("*")) if one.is_file()
    }


def test_an_image_is_made_once_for_each_source(project: Path, tmp_path: Path) -> None:
    """The same place for the same sources, another one after an edit; a run goes on with what it had."""
    cache = tmp_path / "cache"
    first = image.provide(cache, tmp_path)
    assert image.provide(cache, tmp_path) == first
    assert (first / "agents/deep/table.yaml").read_text() == "a: 1\n"
    was = contents(first)
    (project / "deep/table.yaml").write_text("a: 2\n")
    second = image.provide(cache, tmp_path)
    assert second != first
    assert (second / "agents/deep/table.yaml").read_text() == "a: 2\n"
    assert contents(first) == was
    assert sorted(one.name for one in (cache / "images").iterdir()) == sorted((first.name, second.name))


def test_byte_code_is_taken_without_a_look_at_the_source(project: Path, tmp_path: Path) -> None:
    """Nothing that depends on the times of files; what cannot be compiled has none."""
    (project / "broken.py").write_text("def\n")
    place = image.provide(tmp_path / "cache", tmp_path)
    source = place / "agents/__init__.py"
    assert Path(importlib.util.cache_from_source(str(source))).is_file()
    assert not Path(importlib.util.cache_from_source(str(place / "agents/broken.py"))).exists()
    source.write_text("ANSWER = 43\n")
    said = subprocess.run(
        [sys.executable, "-c", "import agents; print(agents.ANSWER)"],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "42\n"


@pytest.mark.usefixtures("project")
def test_many_at_once_make_one_image(tmp_path: Path) -> None:
    """Whoever comes second takes what is there; no draft is left."""
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(8) as threads:
        places = set(threads.map(lambda _: image.provide(cache, tmp_path), range(8)))
    (place,) = places
    assert list((cache / "images").iterdir()) == [place]
    assert sorted(one.suffix for one in (cache / "bytecode").iterdir()) == [".pyc"]


@pytest.mark.usefixtures("project")
def test_without_a_cache_there_is_an_image_all_the_same(tmp_path: Path) -> None:
    """Where nothing can be kept, the copy lies in the scratch directory."""
    (tmp_path / "cache").touch()
    place = image.provide(tmp_path / "cache", tmp_path / "scratch")
    assert place == tmp_path / "scratch/image"
    assert (place / "agents/__init__.py").is_file()


def test_what_nobody_uses_goes(project: Path, tmp_path: Path) -> None:
    """Old images, byte code and drafts, once there is a new image; not what was used, not what is foreign."""
    cache = tmp_path / "cache"
    old, used = image.provide(cache, tmp_path), time.time() - image.KEPT_S
    (cache / "images" / f"draft-{ID}").mkdir()
    (cache / "probes").mkdir()
    (cache / "probes" / f"{ID * 2}.json").touch()
    foreign = [cache / kind / name for kind in image.KINDS for name in ("draft-mine", "photograph.jpg")]
    for one in foreign:
        one.mkdir()
    (cache / "kernel-x").mkdir()
    for one in (old, *cache.glob("*/*"), cache / "kernel-x"):
        os.utime(one, (used - 60, used - 60))
    (project / "__init__.py").write_text("ANSWER = 44\n")
    image.provide(cache, tmp_path)
    assert not old.exists()
    assert all(one.is_dir() for one in foreign)
    assert [len(list((cache / kind).iterdir())) - 2 for kind in image.KINDS] == [1, 1, 0]
    assert (cache / "kernel-x").is_dir()
    kept = image.provide(cache, tmp_path)
    os.utime(kept, (used - 60, used - 60))
    assert image.provide(cache, tmp_path) == kept
    (project / "__init__.py").write_text("ANSWER = 45\n")
    image.provide(cache, tmp_path)
    assert kept.is_dir()
