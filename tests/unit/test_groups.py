"""Control groups of version 1, version 2 and both, over plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.kernel import groups
from testbed.kernel.host import _missing_groups


def version_1(root: Path, *controllers: str) -> Path:
    for name in (*controllers, "systemd"):
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").write_text("")
    return root


def version_2(root: Path, controllers: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.procs").write_text("")
    (root / "cgroup.controllers").write_text(f"{controllers}\n")
    return root


def hybrid(root: Path, *controllers: str) -> Path:
    version_2(version_1(root, *controllers) / "unified", "")
    return root


def test_version_2_has_what_its_list_says(tmp_path: Path) -> None:
    """One hierarchy; the freezer belongs to every group."""
    root = version_2(tmp_path, "cpuset cpu io memory pids")
    assert (groups.layout(root), groups.missing(root), groups.hierarchies(root)) == ("v2", [], [root])


def test_what_version_2_lacks_is_named(tmp_path: Path) -> None:
    """As where a container was not given its controllers, or memory was switched off at boot."""
    (problem,) = _missing_groups(version_2(tmp_path, "cpu pids"))
    assert f"{tmp_path} has no memory controller (control groups: v2)" in problem.found
    assert "cgroup_enable=memory" in problem.next_step


@pytest.mark.parametrize(
    ("members", "passed_on", "withheld"),
    [("1\n2\n", "cpu pids", ["memory"]), ("1\n", "memory pids", []), ("", "", [])],
)
def test_a_container_s_part_of_version_2_may_have_nothing_to_pass_on(
    members: str, passed_on: str, withheld: list[str], tmp_path: Path
) -> None:
    """Where it has processes itself; the top of all, which has no type, passes on whatever it has."""
    root = version_2(tmp_path, "cpu memory pids")
    (root / "cgroup.procs").write_text(members)
    (root / "cgroup.subtree_control").write_text(f"{passed_on}\n")
    assert (groups.withheld(root), _missing_groups(root)) == ([], [])
    (root / "cgroup.type").write_text("domain\n")
    assert groups.withheld(root) == withheld
    found = [problem.found for problem in _missing_groups(root)]
    assert [f"get no controller for {', '.join(withheld)}" in one for one in found] == [True] * bool(withheld)


def test_version_1_has_a_hierarchy_for_each(tmp_path: Path) -> None:
    """Also two in one, where the other name is a link."""
    root = version_1(tmp_path, "memory", "pids", "freezer", "cpu,cpuacct")
    (root / "cpu").symlink_to("cpu,cpuacct")
    assert (groups.layout(root), groups.missing(root)) == ("v1", [])
    assert len(groups.hierarchies(root)) == 5


@pytest.mark.parametrize("lacks", ["memory", "pids", "freezer"])
def test_what_version_1_lacks_is_named(lacks: str, tmp_path: Path) -> None:
    """Its freezer is a controller like the others."""
    root = version_1(tmp_path, *({"memory", "pids", "freezer"} - {lacks}))
    (problem,) = _missing_groups(root)
    assert f"has no {lacks} controller (control groups: v1)" in problem.found


def test_a_hybrid_is_taken_for_version_1(tmp_path: Path) -> None:
    """What runs need must be there as version 1; their leftovers are looked for in version 2 as well."""
    root = hybrid(tmp_path, "memory", "pids")
    assert (groups.layout(root), groups.missing(root)) == ("hybrid", ["freezer"])
    assert root / "unified" in groups.hierarchies(root)


def test_no_groups_at_all_are_one_problem(tmp_path: Path) -> None:
    """As in a container without /sys/fs/cgroup."""
    (problem,) = _missing_groups(tmp_path)
    assert "has no control groups" in problem.found
    assert "mount -t cgroup2" in problem.next_step


def test_a_run_s_groups_are_found_by_its_label(tmp_path: Path) -> None:
    """In each hierarchy, with all their members; what only begins like a label is somebody else's."""
    root = hybrid(tmp_path, "memory", "pids")
    for top in (root / "memory", root / "unified"):
        for name in ("testbed-12/router", "testbed-mine/x", "testbed-07", "testbed-12b", "my-testbed-12"):
            (top / name).mkdir(parents=True)
        (top / "testbed-12/router/cgroup.procs").write_text("71\n72\n")
    assert groups.labels(root) == ["testbed-12"]
    assert groups.of_label("testbed-12", root) == [root / "memory/testbed-12", root / "unified/testbed-12"]
    assert groups.members("testbed-12", root) == {71, 72}


def test_empty_groups_are_removed_from_every_hierarchy(tmp_path: Path) -> None:
    """The deepest first, and those of others stay."""
    root = hybrid(tmp_path, "memory", "pids")
    for top in groups.hierarchies(root):
        (top / "testbed-12/router").mkdir(parents=True)
        (top / "testbed-13").mkdir()
    assert groups.remove("testbed-12", root)
    assert groups.labels(root) == ["testbed-13"]
