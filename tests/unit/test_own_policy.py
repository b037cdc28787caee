"""A policy by import path: found, imported, checked, and carried to the run as text."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agents.policies import own
from agents.policies.failure import PolicyFailure
from agents.policies.find import find
from testbed import manifest, replay
from testbed import tables as record
from testbed.errors import ScenarioError
from testbed.plan import Plan, SourceFile
from testbed.resolve import in_child, load_and_resolve, own_policy
from testbed.system import agent_config
from tests.unit.own_policies import policy_text, write
from tests.unit.policy_bench import CONFIG
from tests.unit.test_replay import plan_with, record_run
from tests.unit.test_resolve import BASE, ROOT

MODULE = """\
from types import SimpleNamespace
from agents.policies.static_threshold import route, start, update
READY = SimpleNamespace(start=start, route=route, update=update)
"""


def planned(directory: Path, *overrides: str, name: str = "mine:Mine") -> Plan:
    """The plan of the base scenario in this directory, with a policy of this name."""
    scenario = directory / "base.yaml"
    shutil.copy(BASE, scenario)
    return load_and_resolve(scenario, overrides=(f"policy.name={name!r}", *overrides))[1]


def refused(directory: Path, *overrides: str, name: str = "mine:Mine") -> str:
    """The message with which that is refused."""
    with pytest.raises(ScenarioError) as caught:
        planned(directory, *overrides, name=name)
    return str(caught.value)


def test_a_class_beside_the_scenario(tmp_path: Path) -> None:
    """Its text and the digest of its file are in the plan, and its text reaches the router."""
    text = policy_text()
    policy = planned(write(tmp_path, text)).policy
    assert policy.files["mine.py"].text == text
    assert policy.files["mine.py"].sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert policy.directory == str(tmp_path)
    assert find("mine:Mine", {"mine.py": text}).start(CONFIG).reason == "mine"


def test_only_the_router_needs_the_text_and_it_is_there(tmp_path: Path) -> None:
    """The configuration of the router holds all that it imports."""
    plan = planned(write(tmp_path, policy_text()))
    router = next(agent for agent in plan.agents if agent.role == "router")
    assert b'"mine.py":"from agents.policies.view' in agent_config(plan, router, lambda host: host)


@pytest.mark.parametrize("name", ["mine:", "mine:READY", "pack:mine", "pack.mine:READY"])
def test_a_module_or_an_object_will_do(tmp_path: Path, name: str) -> None:
    """Three functions in a module, also one of a package, or anything that has them."""
    text = MODULE
    write(write(tmp_path, text), text, "pack/mine.py")
    write(tmp_path, "", "pack/__init__.py")
    plan = planned(tmp_path, name=name)
    assert set(plan.policy.files) == (
        {"mine.py"} if "pack" not in name else {"pack/__init__.py", "pack/mine.py"}
    )


def test_what_it_imports_from_beside_it_comes_along(tmp_path: Path) -> None:
    """Modules of the same directory, packages, relative imports; a change in any is another plan."""
    write(tmp_path, policy_text(before="from parts import knob"))
    write(tmp_path, "from .deep import knob\n", "parts/__init__.py")
    write(tmp_path, "import math\nknob = math.pi\n", "parts/deep.py")
    write(tmp_path, "raise RuntimeError\n", "bystander.py")
    first = planned(tmp_path)
    assert set(first.policy.files) == {"mine.py", "parts/__init__.py", "parts/deep.py"}
    write(tmp_path, "knob = 3\n", "parts/deep.py")
    second = planned(tmp_path)
    assert first.policy.files["parts/deep.py"].sha256 != second.policy.files["parts/deep.py"].sha256
    assert find("mine:Mine", {path: file.text for path, file in first.policy.files.items()})


def test_the_scenarios_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the current one, then Python's path."""
    places = [write(tmp_path / name, policy_text(before=f"# {name}")) for name in ("of", "here", "path")]
    monkeypatch.chdir(places[1])
    monkeypatch.setattr(sys, "path", [str(places[2]), *sys.path])
    for place in places:
        assert planned(tmp_path / "of").policy.directory == str(place)
        (place / "mine.py").unlink()
    assert "there is no module mine: neither mine.py nor mine/__init__.py" in refused(tmp_path / "of")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", "mine:Mine: import raised SyntaxError: '(' was never closed at mine.py:1"),
        ("\nimport nowhere_at_all\n", "\"No module named 'nowhere_at_all'\") at mine.py:2"),
        ("x = 1\n\nx.y\n", "raised AttributeError(\"'int' object has no attribute 'y'\") at mine.py:3"),
        ("raise SystemExit\n", "import raised SystemExit() at mine.py:1"),
        ("raise KeyboardInterrupt\n", "import raised KeyboardInterrupt() at mine.py:1"),
        ("import os\nos._exit(0)\n", "mine:Mine: ended the process that tried it, with exit code 0"),
        ("import builtins\nbuiltins.len = None\n", "mine:Mine: "),
        (policy_text(update="import os; os._exit(3)"), "ended the process that tried it, with exit code 3"),
        ("Yours = 1\n", "mine:Mine: mine has no attribute Mine"),
        ("class Mine:\n    def route(self): ...\n", "mine:Mine: Mine has no function start or update"),
        ("class Mine:\n    def __init__(self, size): ...\n", "1 required positional argument: 'size'\")"),
        (policy_text(start="raise KeyError(1)"), "mine:Mine: start() raised KeyError(1) at mine.py:6"),
        (policy_text(start="return 5"), "mine:Mine: start() answers 5 (int) instead of a State"),
        (policy_text(route="return"), "mine:Mine: route() answers None (NoneType) instead of a Decision"),
        (policy_text(route="by_length()"), "arguments: 'threshold_tokens' and 'request'\") at mine.py:9"),
        (policy_text(update="import mine_too"), "\"No module named 'mine_too'\") at mine.py:12"),
        ("import polars.nothing_there\n", "at mine.py:1"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_before_a_run(tmp_path: Path, text: str, said: str) -> None:
    """With the line of the user's own file, and the words of what went wrong."""
    message = refused(write(tmp_path, text))
    assert said in message
    assert message.startswith("--set policy.name='mine:Mine': policy.name: ")


LINGERS = f"""\
import os, threading, time
if os.fork() == 0:
    time.sleep(60)
threading.Thread(target=time.sleep, args=(60,)).start()
print("to stdout")
{policy_text()}"""


def test_what_a_policy_leaves_behind_keeps_nobody(tmp_path: Path) -> None:
    """Threads and children of its import end with its try, which prints nothing to stdout."""
    shutil.copy(BASE, tmp_path / "base.yaml")
    write(tmp_path, LINGERS)
    command = [sys.executable, "-m", "testbed.check", str(tmp_path / "base.yaml")]
    began_s = time.monotonic()
    ended = subprocess.run(
        [*command, "--set", "policy.name='mine:Mine'"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - began_s < 50
    assert "to stdout" not in ended.stdout


def test_who_never_comes_to_an_end_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In C code no lines are counted; the wait is."""
    monkeypatch.setattr(in_child, "PATIENCE_S", 0.5)
    assert "mine:Mine: did not come to an end within 0.5 s" in refused(
        write(tmp_path, "import time\ntime.sleep(30)\n")
    )


def test_an_endless_import_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are counted there as well."""
    monkeypatch.setattr("agents.policies.limits.MOST_LINES", 5_000)
    assert "import ran for more than 5,000 lines at mine.py:" in refused(
        write(tmp_path, "while True:\n    pass\n")
    )


def test_parameters_are_refused_in_the_policys_words(tmp_path: Path) -> None:
    """A ValueError of start(), at the parameters."""
    write(tmp_path, policy_text(start='raise ValueError("gain has to be odd")'))
    said = refused(tmp_path, "policy.params={gain: 2}")
    assert said == "--set policy.params={gain: 2}: policy.params: gain has to be odd"


@pytest.mark.parametrize("name", ["json:tool", "agents.policies:prfaas", "testbed.run:"])
def test_modules_of_others_are_not_the_users(tmp_path: Path, name: str) -> None:
    """Neither Python's nor ours can be hidden by a file, or run as a policy by this way."""
    write(tmp_path, policy_text(), f"{name.partition(':')[0].replace('.', '/')}.py")
    assert "is a module of Python's or of the testbed's: rename yours" in refused(tmp_path, name=name)


@pytest.mark.parametrize("name", ["../mine:Mine", "my scheduler:Mine", ":Mine", "http://here"])
def test_what_is_no_import_path_is_refused(tmp_path: Path, name: str) -> None:
    """A file's path is none."""
    said = refused(tmp_path, name=name)
    assert f"{name} is no import path\n    allowed: module:Class, such as my_scheduler:MyScheduler" in said


def test_two_policies_of_one_name_do_not_mix(tmp_path: Path) -> None:
    """Each directory's own, one after the other in one process; nothing stays on Python's path."""
    path, finders = [*sys.path], [*sys.meta_path]
    plans = [
        planned(write(tmp_path / mark, policy_text(before=f'MARK = "{mark}"'))) for mark in ("one", "two")
    ]
    assert ['MARK = "one"' in plan.policy.files["mine.py"].text for plan in plans] == [True, False]
    assert (sys.path, sys.meta_path) == (path, finders)


def test_the_manifest_says_which_files_a_policy_was(tmp_path: Path) -> None:
    """Name, directory and digests; nothing for a policy of the testbed's."""
    plan = planned(write(tmp_path, policy_text()))
    sha256 = {"mine.py": plan.policy.files["mine.py"].sha256}
    said = {"name": "mine:Mine", "directory": str(tmp_path), "sha256": sha256}
    assert manifest._policy(plan) == {"policy": said}
    assert manifest._policy(load_and_resolve(BASE)[1]) == {}


def test_of_installed_packages_only_the_policys_own_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where everybody's packages lie, the others are there in a run as well."""
    write(tmp_path, policy_text(), "pack/__init__.py")
    write(tmp_path, "x = 1\n", "other.py")
    monkeypatch.setattr(own_policy, "_library", lambda: {tmp_path.resolve()})
    sources = own_policy.Sources(tmp_path, "pack")
    assert sources.read("pack/__init__.py")
    assert sources.read("other.py") is None
    assert set(sources.files()) == {"pack/__init__.py"}


def test_a_plan_without_the_file_is_a_failure() -> None:
    """What a router says when its configuration lacks the module."""
    with pytest.raises(PolicyFailure, match="import raised ModuleNotFoundError"):
        own.load("mine:Mine", {}.get)


def test_the_scheduler_to_copy_is_found_beside_its_scenario() -> None:
    """The example that we ship is whole."""
    policy = load_and_resolve(ROOT / "scenarios/own/own_scheduler.yaml")[1].policy
    assert (policy.name, set(policy.files)) == ("my_scheduler:MyScheduler", {"my_scheduler.py"})


@pytest.mark.parametrize("pure", [True, False])
def test_a_replay_finds_out_who_looks_at_a_clock(tmp_path: Path, *, pure: bool) -> None:
    """The same questions, with the text of the plan: the same answers, or all that differ."""
    reason = '"mine"' if pure else "str(time.monotonic_ns())"
    text = policy_text(route=f'return Decision("pd", 0, {reason})', before="import time")
    plan = plan_with("mine:Mine")
    files = {"mine.py": SourceFile(sha256="", text=text)}
    plan = msgspec.structs.replace(plan, policy=msgspec.structs.replace(plan.policy, files=files))
    decisions = record.load(record_run(tmp_path / "run", plan))["decisions"]
    replayed = replay.replay(plan, decisions)
    assert len(replayed.differences) == (0 if pure else replayed.routes)


def test_a_policy_that_is_named_is_asked_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the run's own had the same name: without a name its text is the plan's, with one the file's."""
    then, now = (policy_text(route=f'return Decision("{route}", 0, "r")') for route in ("pd", "prfaas"))
    plan = plan_with("mine:Mine")
    files = {"mine.py": SourceFile(sha256="", text=then)}
    plan = msgspec.structs.replace(plan, policy=msgspec.structs.replace(plan.policy, files=files))
    decisions = record.load(record_run(tmp_path / "run", plan))["decisions"]
    (tmp_path / "mine.py").write_text(now)
    monkeypatch.chdir(tmp_path)
    assert replay.replay(plan, decisions).differences == ()
    asked = replay.replay(plan, decisions, "mine:Mine")
    assert len(asked.differences) == asked.routes > 0
