"""The command that runs a scenario with real kernels: its clock, and what it may not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.config import Config
from agents.profiles import MODELS
from testbed import run
from testbed.command import run_command
from testbed.containers import CONTAINER_SHARED
from testbed.kernel import Clock, Kernel
from testbed.plan import Plan
from testbed.resolve import load_and_resolve
from testbed.resolve.compute import LIBRARY_BYTES
from testbed.resolve.system import MIB
from testbed.system import agent_config, prefixes_bytes, shares_prefixes
from testbed.verdict import conclude

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scenarios/real_kernels.yaml"
REPLAY, VERIFIED = "compute=replay", "transport.payload=verified"
"""What the scenario needs without real kernels: it damages chunks."""


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Clock]:
    """The clock of each run that is executed; nothing is started."""
    ran: list[Clock] = []

    def execute(_directory: object, _plan: Plan, _kernel: Kernel, clock: Clock, *_: Any, **_more: Any) -> Any:
        ran.append(clock)
        return conclude((), ())

    class Anything:
        name = "recorded"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "execute", execute)
    monkeypatch.setattr(run, "choose", lambda _name, _clock: Anything())
    return ran


@pytest.mark.parametrize("more", [["--clock", "virtual"], ["--clock", "virtual", "--verify-determinism"]])
def test_real_kernels_in_virtual_time_end_with_3(
    more: list[str], clocks: list[Clock], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it says so, why, and what to do instead; nothing is started or created."""
    assert run_command(run.app, [str(SCENARIO), *more]) == 3
    line = next(
        number
        for number, text in enumerate(SCENARIO.read_text().splitlines(), 1)
        if text.startswith("compute:")
    )
    assert capsys.readouterr().err == (
        f"{SCENARIO}:{line}: compute: real kernels in virtual time, where computing takes no time at all\n"
        "    allowed: --clock real, or compute: replay\n"
        "    next: to replay what real kernels take: python -m testbed.record --model tiny_hybrid\n"
    )
    assert (clocks, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("kernel", ["auto", "uml", "host"])
def test_the_clock_of_real_kernels_is_real(clocks: list[Clock], kernel: str) -> None:
    """Without being asked for, and when it is; a replay of the same scenario has its own default."""
    arguments = [str(SCENARIO), "--kernel", kernel]
    for more in ([], ["--clock", "real"]):
        assert run_command(run.app, [*arguments, *more]) == 0
    assert clocks == ["real", "real"]
    assert run_command(run.app, [*arguments, "--set", REPLAY, "--set", VERIFIED]) == 0
    assert clocks[2:] == ["real" if kernel == "host" else "virtual"]


def test_a_machine_without_torch_ends_with_4(
    clocks: list[Clock], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started, with what to do about it; a replay does without."""
    monkeypatch.setattr(run, "find_spec", lambda _name: None)
    assert run_command(run.app, [str(SCENARIO)]) == 4
    said = capsys.readouterr().err
    assert said == "real kernels: torch is not installed\n    next: make setup\n"
    assert (clocks, list(tmp_path.iterdir())) == ([], [])
    assert run_command(run.app, [str(SCENARIO), "--set", REPLAY, "--set", VERIFIED]) == 0


def test_runs_with_real_kernels_are_never_verified_as_the_same(
    clocks: list[Clock], capsys: pytest.CaptureFixture[str]
) -> None:
    """Real time, so --verify-determinism is refused."""
    assert run_command(run.app, [str(SCENARIO), "--verify-determinism"]) == 3
    assert "no two runs in real time are the same" in capsys.readouterr().err
    assert clocks == []


def test_who_computes_has_the_memory_for_it() -> None:
    """A reference beside the instances, torch and the weights in the limits of those that compute alone."""
    overrides = {"real": [], "replay": [REPLAY, VERIFIED]}
    plans = {how: load_and_resolve(SCENARIO, overrides=overrides[how])[1] for how in overrides}
    real, replay = ({agent.role: agent for agent in plans[how].agents} for how in ("real", "replay"))
    assert set(real) - set(replay) == {"reference"}
    assert (plans["real"].transport.payload, plans["replay"].transport.payload) == ("tensors", "verified")
    more = {
        role: agent.memory_bytes - replay[role].memory_bytes for role, agent in real.items() if role in replay
    }
    assert {role: size >= LIBRARY_BYTES for role, size in more.items()} == {
        "prefill": True,
        "decode": True,
        "router": False,
        "client": False,
    }
    assert more["router"] == more["client"] == 0
    more_bytes = plans["real"].memory_bytes - plans["replay"].memory_bytes
    assert more_bytes >= 3 * LIBRARY_BYTES
    assert plans["real"].compute == "real"


def test_cached_prefixes_have_the_memory_for_it() -> None:
    """Of the guest for both clusters, of each instance for its own, and a directory for those alone.

    All prompts count, not the size of the cache: nothing is deleted.
    """
    path = ROOT / "scenarios/real_prefixes.yaml"
    plans = [
        load_and_resolve(path, overrides=[f"cache={{prfaas: {size}, pd: 0B}}"])[1] for size in ("9MB", "9GB")
    ]
    without = load_and_resolve(path, overrides=["cache=null"])[1]
    for plan in plans:
        both_bytes = prefixes_bytes(plan)
        assert both_bytes > 2 * 10 * MODELS["tiny_hybrid"].bytes_per_token * 512
        assert 0 <= plan.memory_bytes - without.memory_bytes - both_bytes < MIB
        for one, other in zip(plan.agents, without.agents, strict=True):
            more_bytes = one.memory_bytes - other.memory_bytes
            computes = one.role in {"prefill", "decode", "reference"}
            assert computes * both_bytes // 2 <= more_bytes <= computes * (both_bytes // 2 + MIB)
            shares = one.cluster if one.role in {"prefill", "decode"} else ""
            assert (shares_prefixes(plan, one), shares_prefixes(without, other)) == (shares, "")
            for agent, told, where in ((one, plan, shares), (other, without, "")):
                config = msgspec.json.decode(agent_config(told, agent, str), type=Config)
                assert config.compute is not None
                assert config.compute.prefixes == (CONTAINER_SHARED if where else "")
    assert prefixes_bytes(without) == 0
    assert prefixes_bytes(msgspec.structs.replace(plans[0], compute="replay")) == 0


def test_the_watchdog_waits_for_the_reference() -> None:
    """It comes after the run, and computes all again."""
    _, plan = load_and_resolve(SCENARIO)
    assert run._wall_limit_s(plan, "real") > 600
