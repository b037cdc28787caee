"""Each warning appears where it should, says what to write instead, and stays away right beside."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from agents.policies import POLICIES
from testbed import check
from testbed.command import run_command
from testbed.resolve import lint, lint_system, load_and_resolve
from testbed.resolve.view import Clock
from tests.unit.link_plans import LINK, beside
from topologies import TOPOLOGIES
from topologies.two_dc import TwoDC

ROOT = Path(__file__).parents[2]
BASE = ROOT / "tests/data/base.yaml"
PAPER = sorted((ROOT / "scenarios/paper").glob("*.yaml"))


def warnings(
    *overrides: str, path: Path = LINK, kernel: str | None = None, clock: Clock | None = None
) -> list[str]:
    """The warnings for the link's scenario, or another one, with some values changed, without their place."""
    loaded, plan = load_and_resolve(path, overrides=overrides)
    found = lint.lint(loaded, plan, kernel=kernel, clock=clock)
    assert all(warning.next_step for warning in found)
    return [f"{warning.where.split(': ')[-1]}: {warning.found}" for warning in found]


def test_the_plain_scenario_has_no_warnings() -> None:
    """Nothing is said about a scenario that means what it says."""
    assert warnings() == []


# BDP: 10 Gbps * 10 ms = 12.5 MB, over 4 connections 3.125 MB each.
# On the way: 10 Gbps * 5 ms = 6.25 MB, in frames of 9014 bytes 693.
# One flow: 100 Gbps * 85.9 ms = 1 GiB.
FAST = ("link.a_to_b={rate: 100gbit, buffer: 10ms, delay: 42.95ms}",)
FAST_FAR = (*FAST, "link.b_to_a={rate: 10gbit, buffer: 10ms, delay: 42.96ms}")
FAST_NEAR = (*FAST, "link.b_to_a={rate: 10gbit, buffer: 10ms, delay: 42.94ms}")
TENANT = "timeline=[{at: 1s, tenants: {from: tenant-a, to: tenant-b, size: 1GB}}]"
TENANT_WITHIN = "timeline=[{at: 1s, tenants: {from: a1, to: tenant-a, size: 1GB}}]"
INCAST = "timeline=[{at: 1s, background: {from: [a1, a2], to: tenant-b, burst: 1GB}}]"
TWO_STEPS = "timeline=[{at: 1s, link: both, set: {delay: 4ms}}, {at: %s, link: a_to_b, set: {loss: 1%%}}]"
ECN = "link.a_to_b.queue={kind: red, ecn: true}"


@pytest.mark.parametrize(
    ("overrides", "near_miss", "says"),
    [
        (
            ("transport.window=3MB",),
            ("transport.window=3.2MB",),
            "window: 4 connections with such windows carry",
        ),
        (("link.a_to_b.limit=692",), ("link.a_to_b.limit=693",), "a_to_b: limit 692 is less than the 693"),
        ((*FAST_FAR, TENANT), (*FAST_NEAR, TENANT), "tenants: 1 flows cannot fill 100gbit"),
        ((*FAST_FAR, TENANT), (*FAST_FAR, TENANT_WITHIN), "tenants: 1 flows cannot fill 100gbit"),
        ((*FAST_FAR, TENANT), (*FAST_FAR, INCAST), "tenants: 1 flows cannot fill 100gbit"),
        (
            ("link.a_to_b.flow_cap=2.4gbit",),
            ("link.a_to_b.flow_cap=2.5gbit",),
            "transport: 4 connections of a bulk transfer get at most 9.6gbit of 10gbit",
        ),
        (
            ("link.offload=on", "link.a_to_b.duplicate=1%"),
            ("link.offload=auto", "link.a_to_b.duplicate=1%"),
            "offload: a_to_b has duplicate, which act on super-packets",
        ),
        (
            ("link.offload=on", "link.a_to_b.loss={model: periodic, every: 9}", "link.a_to_b.queue=codel"),
            ("link.offload=on", "link.a_to_b.loss=1%"),
            "offload: a_to_b has loss, codel, which act on super-packets",
        ),
        (
            ("expect=[{bound: link.a_to_b.throughput_bps.mean, from: 1s, to: 1.09s, min: 0bit}]",),
            ("expect=[{bound: link.a_to_b.throughput_bps.mean, from: 1s, to: 1.1s, min: 0bit}]",),
            "expect.0: link.a_to_b.throughput_bps.mean is noted every 100ms",
        ),
        (
            ("expect=[{bound: link.a_to_b.throughput_bps.mean, from: 20s, to: 21s, min: 0bit}]",),
            ("expect=[{bound: link.a_to_b.throughput_bps.mean, from: 19s, to: 21s, min: 0bit}]",),
            "expect.0: link.a_to_b.throughput_bps.mean is noted after the run only as long as",
        ),
        (
            ("expect=[{oscillation: link.a_to_b.throughput_bps, from: 1s, to: 2.1s, max_amplitude: 1gbit}]",),
            ("expect=[{oscillation: link.a_to_b.throughput_bps, from: 1s, to: 2.2s, max_amplitude: 1gbit}]",),
            "expect.0: link.a_to_b.throughput_bps is noted every 100ms",
        ),
        (
            ("expect=[{bound: bulk.goodput_bps.min, from: 1s, min: 0bit}]",),
            ("expect=[{bound: bulk.goodput_bps.min, min: 0bit}]",),
            "expect.0: bulk.goodput_bps.min has no value, as no transfer starts from 1s to 20s",
        ),
        (
            ("link.a_to_b.jitter=0.26ms",),
            ("link.a_to_b.jitter=0.25ms",),
            "a_to_b: a late packet holds up those behind it",
        ),
        (
            ("link.a_to_b.jitter={scale: 0.1ms, distribution: pareto}",),
            ("link.a_to_b.jitter={scale: 0.06ms, distribution: pareto}",),
            "a_to_b: a late packet holds up those behind it",
        ),
        (("link.a_to_b.buffer=1.1ms",), ("link.a_to_b.buffer=1.2ms",), "buffer: the buffer holds 1.1ms"),
        (
            (ECN, "transport.congestion_control=bbr"),
            (ECN,),
            "congestion_control: bbr takes no notice of ECN marks",
        ),
        (
            ("transport.congestion_control=dctcp",),
            (ECN, "transport.congestion_control=dctcp"),
            "congestion_control: dctcp without a queue that marks is Reno",
        ),
        (
            ("link.a_to_b.outage={up_to: 21s}",),
            ("link.a_to_b.outage={up_to: 20s}",),
            "outage: an outage of up to 21s is cut to the run's 20s",
        ),
        (
            ("timeline=[{at: 5s, link: a_to_b, wave: {rate: 9gbit}, period: 16s}]",),
            ("timeline=[{at: 5s, link: a_to_b, wave: {rate: 9gbit}, period: 15s}]",),
            "period: a period of 16s does not end within the wave's 15s",
        ),
        (
            ("link.a_to_b.path_mtu=1500", "link.a_to_b.black_hole_above=1400"),
            ("link.a_to_b.path_mtu=1400", "link.a_to_b.black_hole_above=1400"),
            "a_to_b: path_mtu 1500 is above black_hole_above 1400",
        ),
        (
            (TWO_STEPS % "1000500us",),
            (TWO_STEPS % "1001ms",),
            "timeline.1: something else happens 500us before",
        ),
    ],
)
def test_rules(overrides: tuple[str, ...], near_miss: tuple[str, ...], says: str) -> None:
    """A rule speaks, alone, about what it is for, and is silent about what only looks like it."""
    found = warnings(*overrides)
    assert len(found) == 1
    assert says in found[0]
    assert warnings(*near_miss) == []


@pytest.mark.parametrize(
    ("trace", "near_miss", "says"),
    [
        (
            "t,rate\n0s,1gbit\n5s,2gbit\n",
            "t,rate\n0s,1gbit\n4.999s,2gbit\n",
            "the trace has rows up to 5s, and 5s",
        ),
        ("t,loss\n0s,1%\n", "t,rate\n0s,1gbit\n", "takes the place of the gilbert_elliott loss of a_to_b"),
    ],
)
def test_rules_about_traces(tmp_path: Path, trace: str, near_miss: str, says: str) -> None:
    """Rows that never come, and a loss that takes the place of another, are told."""
    overrides = [
        "timeline=[{at: 1s, link: a_to_b, trace: link.csv, until: 6s}]",
        "link.a_to_b.loss={model: gilbert_elliott, p: 1e-5, r: 0.1}",
    ]
    for text, number in ((trace, 1), (near_miss, 0)):
        path = beside(tmp_path, "link.csv", text)
        found = lint.lint(*load_and_resolve(path, overrides=overrides), kernel=None, clock=None)
        assert len(found) == number
        assert all(says in warning.found for warning in found)


def test_single_packets_on_a_stock_kernel() -> None:
    """Loss with super-packets is per packet in our kernel only."""
    overrides = ("link.offload=on", "link.a_to_b.loss=1%")
    assert warnings(*overrides, kernel="uml") == []
    assert "loss, which act on super-packets" in warnings(*overrides, kernel="host")[0]


def test_rates_in_real_time() -> None:
    """In real time more than 10 Gbps is the machine's business; in virtual time any rate is fine."""
    overrides = ("link.a_to_b.rate=11gbit",)
    assert "11gbit in real time" in warnings(*overrides, clock="real")[0]
    assert warnings(*overrides, clock="virtual") == []
    assert warnings(clock="real") == []


def test_requests_that_no_window_can_hold() -> None:
    """An expectation on requests where none arrives has no value; counting none is a count."""
    bound = "{bound: %s, from: 20s, to: 30s, max: %s}"
    for metric, limit, number in (("ttft_s.p90", "20s", 1), ("requests.failed", "0", 0)):
        loaded, plan = load_and_resolve(BASE, overrides=[f"expect=[{bound % (metric, limit)}]"])
        assert len(lint.lint(loaded, plan, kernel=None, clock=None)) == number


SESSIONS = (
    "workload={kind: sessions, rate: 0.5/s, turns: 2, first: {mu: 8, sigma: 1, low: 1000, high: 9000},"
    " increment: {mu: 7, sigma: 1, low: 100, high: 5000}, think: 2s, output_tokens: 64}"
)
COMPRESSED = "transport.compression=half"
CACHED = "cache={prfaas: 1GB, pd: 1GB}"
SLOW_BUFFER = "timeline=[{at: 1s, link: a_to_b, set: {delay: 300ms}}]"


@pytest.mark.parametrize(
    ("path", "overrides", "near_miss", "says"),
    [
        (
            BASE,
            (COMPRESSED,),
            (COMPRESSED, "policy.name=compression"),
            "compression: static_threshold never compresses: half has no effect",
        ),
        (LINK, (COMPRESSED,), (), "compression: a bulk workload never compresses: half has no effect"),
        (BASE, (CACHED,), (CACHED, SESSIONS), "cache: the workload's prompts have no prefixes in common"),
        (
            BASE,
            ("clusters.pd.conversion=9s",),
            ("clusters.pd.conversion=9s", "policy.name=prfaas"),
            "conversion: static_threshold never changes roles: 9s has no effect",
        ),
        (BASE, ("clusters.pd.conversion=0s",), ("clusters.pd.conversion=10s",), "0ns has no effect"),
        (
            BASE,
            ("model=ring_2_5_1t",),
            ("model=ring_2_5_1t", "clusters.prfaas.profile=h200_ring_2_5_1t"),
            "profile: h200 has the prefill times of another model than ring_2_5_1t",
        ),
        (
            BASE,
            ("timeline=[{at: 2s, kill: decode-2}, {at: 1s, kill: decode-1}]",),
            ("timeline=[{at: 2s, restart: decode-2, after: 1s}, {at: 1s, kill: decode-1}]",),
            "kill: after that there is no decode instance in the cluster pd any more",
        ),
        (
            BASE,
            (SLOW_BUFFER, "failures={probe: 10ms, probe_max: 325ms}"),
            (SLOW_BUFFER, "failures={probe: 10ms, probe_max: 326ms}"),
            "probe_max: an attempt at a connection is given up after 325ms, and a round trip takes",
        ),
    ],
)
def test_settings_of_the_system_that_nothing_uses(
    path: Path, overrides: tuple[str, ...], near_miss: tuple[str, ...], says: str
) -> None:
    """What only some policies or workloads use, with others; a value that is the default may be written."""
    (found,) = warnings(*overrides, path=path)
    assert says in found
    assert warnings(*near_miss, path=path) == []


def test_connections_of_nobody_are_given_up_by_nobody() -> None:
    """A bulk workload has no agents that would."""
    assert warnings("link.a_to_b.delay=1s") == []


@pytest.mark.parametrize(
    ("says", "named"),
    [("compress=", lint_system.COMPRESSING), ("roles.decide(", lint_system.CONVERTING)],
)
def test_which_policies_compress_and_which_change_roles(says: str, named: tuple[str, ...]) -> None:
    """The rules know them by name; a new one is found by what its module says."""
    assert {name for name, policy in POLICIES.items() if says in inspect.getsource(policy)} == set(named)


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_paper_s_scenarios_have_no_warnings(path: Path) -> None:
    """Each means what it says."""
    assert warnings(path=path) == []


def test_netem_on_an_end_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology that shapes on a host whose own TCP sends is worth a warning; ours does not."""

    class Short(TwoDC):
        wan = TwoDC.wan | {"a_to_b": (("edge-a", "edge-a-wan"), ("tenant-a", "tenant-a-eth0"))}

    monkeypatch.setitem(TOPOLOGIES, "short", Short)
    found = warnings("topology.name=short")
    assert len(found) == 1
    assert "a_to_b is shaped on tenant-a-eth0 of the end host tenant-a" in found[0]


def test_the_place_is_the_entry_that_acts() -> None:
    """A warning about a state points to the timeline entry that brings it."""
    entry = "timeline=[{at: 1s, link: a_to_b, set: {jitter: 1ms}}, {at: 2s, link: b_to_a, set: {delay: 6ms}}]"
    loaded, plan = load_and_resolve(LINK, overrides=[entry])
    found = lint.lint(loaded, plan, kernel=None, clock=None)
    assert [warning.where.rsplit(": ", 1)[-1] for warning in found] == ["timeline.0"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (
            ["--set", "link.a_to_b.buffer=1ms"],
            0,
            "warning: --set link.a_to_b.buffer=1ms: link.a_to_b.buffer: the",
        ),
        (["--clock", "real", "--set", "link.a_to_b.rate=40gbit"], 0, "40gbit in real time"),
        (["--kernel", "host", "--set", "link.a_to_b.rate=40gbit"], 0, "40gbit in real time"),
        (["--clock", "sand"], 3, "--clock: unknown 'sand'"),
        (["--kernel", "bsd"], 3, "--kernel: unknown 'bsd'"),
    ],
)
def test_the_check_command_warns(
    options: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m testbed.check` prints warnings and still ends with 0; it knows kernels and clocks."""
    assert run_command(check.app, [str(LINK), *options]) == code
    captured = capsys.readouterr()
    assert says in captured.out + captured.err


def test_checking_loads_no_netlink() -> None:
    """A scenario can be checked where nothing could be run."""
    code = "import sys, testbed.check; sys.exit('pyroute2' in sys.modules or 'scapy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
