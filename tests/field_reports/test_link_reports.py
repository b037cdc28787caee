"""What people report of other testbeds' links, and the contract here. Each docstring names the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.kernel.uml import Uml
from tests.fidelity import arithmetic
from tests.fidelity.guest import Results, measure

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.slow,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

MTU_BYTES = 9000
WINDOW_BYTES = 2_000_000
U32_BYTES_PER_S = 2**32
STANDARD: dict[str, Any] = {
    "wan": {"mtu_bytes": 1500},
    "checks": {"retransmit_share": {"ratio": 0.01, "seconds": 1.5}},
}
JUMBO: dict[str, Any] = {
    "wan": {"mtu_bytes": MTU_BYTES, "hosts": 10},
    "checks": {
        "long_delay": {"count": 2500},
        "window_over_delay": {
            "window_bytes": WINDOW_BYTES,
            "rtts_ms": [1, 2, 4, 8, 16, 32, 64, 128, 256],
        },
        "rates_read_back": {"rates_bps": [40 * 10**9, 100 * 10**9]},
        "one_change": {},
        "ten_senders": {"cap_bps": 2 * 10**9},
    },
}
CHANGES = {
    "rate": {"rate": {"rate", "sustained", "budget_ticks", "burst_ticks"}},
    "buffer": {"rate": {"buffer"}},
    "delay": {"delay": {"delay", "limit", "seed"}},
    "jitter": {"delay": {"jitter", "seed"}},
    "loss": {"delay": {"loss", "seed"}},
    "duplicate": {"delay": {"duplicate", "seed"}},
    "reorder": {"delay": {"reorder", "gap", "seed"}},
    "corrupt": {"delay": {"corrupt", "seed"}},
}
"""By the field that changes: all that may differ in the kernel, by stage. Buckets are times at the rate, the
limit follows from the delay, and what is written anew has a seed of its own."""


@pytest.fixture(scope="module")
def jumbo(tmp_path_factory: pytest.TempPathFactory) -> Results:
    place: Path = tmp_path_factory.mktemp("jumbo")
    return measure(place / "run", JUMBO, lambda _: None)


def test_the_sender_sends_again_what_the_path_loses(tmp_path: Path) -> None:
    """chaos-mesh #1485: of 1 % loss in the path 1 % is sent again, by a 99 % binomial interval."""
    found = measure(tmp_path / "run", STANDARD, lambda _: None)["retransmit_share"]
    assert found["data_packets"] > 100_000
    assert found["queue_drops"] == 0
    low, high = arithmetic.binomial_interval(found["data_packets"], found["ratio"])
    assert low <= found["retrans_packets"] <= high
    assert found["retrans_packets"] == pytest.approx(found["lost"], rel=0.01)


def test_a_second_of_delay_loses_nothing(jumbo: Results) -> None:
    """iproute2 #56, chaosblade #1080, tcconfig #170: with 1000 ms of delay the limit drops nothing."""
    found = jumbo["long_delay"]
    computed = found["computed"]
    assert computed["arrived"] == found["sent"] > 1000
    assert (computed["limit_drops"], computed["lost"]) == (0, 0)


def test_a_limit_forced_too_small_is_told_from_loss(jumbo: Results) -> None:
    """The same reports: a forced limit of 1000 drops the rest, and the counters say that it was the limit."""
    found = jumbo["long_delay"]
    forced = found["forced"]
    assert forced["limit"] == forced["arrived"] == 1000
    assert forced["limit_drops"] == found["sent"] - 1000
    assert (forced["lost"], forced["queue_drops"]) == (0, 0)


def test_goodput_over_delay_has_no_cliff(jumbo: Results) -> None:
    """Mininet #1129: a fixed window gives the smaller of the link's goodput and window / RTT, by 2 %."""
    found = jumbo["window_over_delay"]
    share = arithmetic.payload_share(MTU_BYTES)
    for cell in found["cells"]:
        by_window_bps = WINDOW_BYTES * 8e3 / cell["rtt_ms"]
        expected_bps = min(found["rate_bps"] * share, by_window_bps)
        assert cell["payload_bps"] == pytest.approx(expected_bps, rel=0.02)


def test_a_hundred_gigabits_are_accepted_and_measured(jumbo: Results) -> None:
    """P4app #78, Mininet's limit of 1000 Mbit/s: 100 Gbps are taken and arrive, within 1 % of arithmetic."""
    fastest = jumbo["rates_read_back"]["cells"][-1]
    assert fastest["rate_bps"] == 100 * 10**9
    measured_bps = fastest["payload_bytes"] * 8 / fastest["span_s"]
    assert measured_bps == pytest.approx(1e11 * arithmetic.payload_share(MTU_BYTES), rel=0.01)


def test_a_rate_beyond_32_bits_is_read_back(jumbo: Results) -> None:
    """Containerlab netem.go: rates beyond 2^32 bytes a second are read back as they were asked."""
    for cell in jumbo["rates_read_back"]["cells"]:
        assert cell["rate_bps"] > U32_BYTES_PER_S * 8
        assert cell["kernel_bps"] == cell["rate_bps"]


def differences(before: Results, after: Results) -> dict[str, set[str]]:
    """Names of the values that differ, by part of the direction."""
    return {
        part: {name for name in before[part] | after[part] if before[part].get(name) != after[part].get(name)}
        for part in before
        if before[part] != after[part]
    }


def test_changing_one_parameter_leaves_the_others(jumbo: Results) -> None:
    """Mininet #1127, coreemu #22, docker-tc #1: a live link changes in just the field that was changed.

    `rate stage` is whether super-packets are cut before the dice; the base state has them cut already.
    """
    found = jumbo["one_change"]
    assert {change["field"] for change in found["changes"]} == set(CHANGES)
    for change in found["changes"]:
        assert differences(change["before"]["back"], change["after"]["back"]) == {}
        changed = differences(change["before"]["there"], change["after"]["there"])
        allowed = CHANGES[change["field"]]
        assert set(changed) == set(allowed)
        assert all(names <= allowed[part] for part, names in changed.items())
        assert change["field"] in changed[next(iter(allowed))]
    before_ns, after_ns = found["delays_ns"]
    assert before_ns == pytest.approx(after_ns, abs=1000)
    assert after_ns == pytest.approx(found["delay_ns"], abs=10_000)


def test_ten_senders_share_the_link(jumbo: Results) -> None:
    """Testground #419: ten senders with a cap of 2 Gbps each get the link's 8 Gbps together, and no more."""
    found = jumbo["ten_senders"]
    share = arithmetic.payload_share(MTU_BYTES)
    assert found["alone"]["payload_bps"] == pytest.approx(found["cap_bps"], rel=0.02)
    together_bps = found["together"]["payload_bps"]
    assert 10 * found["cap_bps"] > 2 * found["rate_bps"]
    assert together_bps == pytest.approx(found["rate_bps"] * share, rel=0.01)
