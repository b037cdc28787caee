"""The link in the guest's kernel: set, read back, loaded, and measured against arithmetic.

`guest_link.py` measures, in a few boots; here stands what must come out.
"""

from __future__ import annotations

import json
import math
import shutil
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from testbed.kernel import Needs
from testbed.kernel.uml import Uml

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

Results = dict[str, Any]
SIGMAS = 5
SUPER_PACKET_BYTES = 184_000


def measure(run_dir: Path, group: str, seed: int) -> Results:
    """Boot a guest, let it measure a group of things, return what it found."""
    run_dir.mkdir()
    for script in sorted(Path(__file__).parent.glob("guest_*.py")):
        shutil.copy(script, run_dir)
    kernel = Uml(payload=("/run/testbed/run/guest_link.py", group, str(seed)))
    said: list[str] = []
    needs = Needs(memory_bytes=3 << 30, clock="virtual", seed=1, wall_limit_s=120)
    kernel.execute(run_dir, needs, said.append)
    results = run_dir / "results.json"
    assert results.is_file(), "\n".join(said)
    found: Results = json.loads(results.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return measure(tmp_path_factory.mktemp("clean") / "run", "clean", 1)


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return measure(tmp_path_factory.mktemp("trouble") / "run", "trouble", 1)


def test_a_handshake_takes_both_delays(clean: Results) -> None:
    """From 0.1 to 170 ms, symmetric or not: both delays together, within 50 us."""
    for one in clean["delays"]["handshakes"]:
        assert one["handshake_ns"] == pytest.approx(one["wanted_ns"], abs=50_000)


def full_queue(load: Results) -> tuple[float, float]:
    """Seconds of the longest time in which the queue cannot have run dry, and the bits per second in it."""
    samples, rate_bps = load["samples"], load["rate_bps"]
    best, first = (0, 0), 0
    for now, (sample, following) in enumerate(pairwise(samples)):
        if sample[2] * 8e9 / rate_bps < following[0] - sample[0]:
            first = now + 1
        elif now + 1 - first > best[1] - best[0]:
            best = (first, now + 1)
    start, end = samples[best[0]], samples[best[1]]
    if end[0] == start[0]:
        return 0, 0
    return (end[0] - start[0]) / 1e9, (end[1] - start[1]) * 8e9 / (end[0] - start[0])


@pytest.mark.parametrize("number", range(3), ids=["1 Gbps", "8 Gbps", "100 Gbps"])
def test_a_full_queue_leaves_at_the_rate(clean: Results, number: int) -> None:
    """As long as something waits, the link carries its rate within 1 %."""
    load = clean["rates"]["loads"][number]
    seconds, bps = full_queue(load)
    assert seconds > 0.2
    assert bps == pytest.approx(load["rate_bps"], rel=0.01)


def test_the_buffer_is_limited_in_bytes(clean: Results) -> None:
    """Under overload the queue comes within a super-packet of the limit, never above it."""
    for load in clean["rates"]["loads"]:
        most = max(sample[2] for sample in load["samples"])
        assert load["buffer_bytes"] - 2 * SUPER_PACKET_BYTES < most <= load["buffer_bytes"]
    found = clean["buffers"]
    assert found["buffer_bytes"] - SUPER_PACKET_BYTES < found["most_bytes"] <= found["buffer_bytes"]
    assert found["drops"] > 0


def test_the_buffer_delays_by_its_bytes_over_the_rate(clean: Results) -> None:
    """A newcomer's handshake takes the round trip and the time of what waits before it, to a super-packet."""
    found = clean["buffers"]
    grain_ns = SUPER_PACKET_BYTES * 8e9 / found["rate_bps"]
    for one in found["newcomers"]:
        waited_ns = one["handshake_ns"] - 2 * found["delay_ns"]
        assert 0 <= waited_ns - one["backlog_bytes"] * 8e9 / found["rate_bps"] < grain_ns
        assert waited_ns < found["buffer_bytes"] * 8e9 / found["rate_bps"] + grain_ns
    assert max(one["backlog_bytes"] for one in found["newcomers"]) > found["buffer_bytes"] / 2


def test_a_rate_step_takes_effect_under_load(clean: Results) -> None:
    """A millisecond after a step down, or up again, the full queue leaves at the new rate within 1 %."""
    loads = clean["rate_steps"]["loads"]
    assert [load["rate_bps"] for load in loads] == [8e9, 2e9, 8e9]
    for load in loads:
        seconds, bps = full_queue(load)
        assert seconds > 0.01
        assert load["samples"][0][2] > 2 * SUPER_PACKET_BYTES
        assert bps == pytest.approx(load["rate_bps"], rel=0.01)


def test_sock_diag_says_what_the_socket_says(clean: Results) -> None:
    """The dump of a namespace, the agents' reading and getsockopt agree on every field of one connection."""
    found = clean["parsers"]
    diag, agent = found["diag"], found["agent"]
    assert diag["remote"] == found["remote"]
    assert diag["remote_port"] == int(found["remote"].split(":")[1])
    for name in ("cwnd_packets", "notsent_bytes", "bytes_acked", "bytes_retrans", "congestion_control"):
        assert diag[name] == found[name]
    assert (diag["rtt_ns"], diag["delivery_bps"]) == (found["rtt_us"] * 1000, found["delivery_rate"] * 8)
    assert agent["rtt_s"] == pytest.approx(found["rtt_us"] / 1e6)
    assert agent["min_rtt_s"] == pytest.approx(0.01, abs=100e-6)
    assert (agent["bytes_acked"], agent["bytes_retrans"]) == (found["bytes_acked"], found["bytes_retrans"])
    assert 4_000_000 <= found["bytes_acked"] <= 4_000_001
    assert found["cwnd_packets"] > 10


def test_qdisc_counters_are_those_of_pyroute2(clean: Results) -> None:
    """The one-message reader and pyroute2's dump give the same numbers for all three stages."""
    for pair in clean["parsers"]["qdiscs"]:
        ours, theirs = pair["ours"], pair["pyroute2"]
        assert ours == {
            "tx_bytes": theirs["basic"]["bytes"],
            "tx_packets": theirs["basic"]["packets"],
            "queue_packets": theirs["queue"]["qlen"],
            "backlog_bytes": theirs["queue"]["backlog"],
            "drops": theirs["queue"]["drops"],
            "overlimits": theirs["queue"]["overlimits"],
            "marked": 0,
        }
        assert ours["tx_packets"] > 100_000


def test_a_value_that_the_kernel_did_not_take_is_refused(clean: Results) -> None:
    """Whatever the kernel has instead of what was set ends the run, and the message names just that."""
    refused = clean["read_back"]["refused"]
    assert len(refused) == 8
    for name, where in refused.items():
        assert where == [f"link a_to_b: {name}"]
    assert clean["read_back"]["after"] == []
    assert clean["read_back"]["sabotaged"] == ["link a_to_b: rate: sustained"]


def test_the_clock_without_system_calls_is_the_clock(clean: Results) -> None:
    """What the C library reads lies between two system calls' readings, which are a grain or two apart."""
    readings = clean["clocks"]["readings"]
    assert len(readings) == 8
    for before, between, after in readings:
        assert before <= between <= after
        assert after - before <= 1024


def binomial(count: int, ratio: float) -> float:
    """What a binomial number of events may be off its mean."""
    return SIGMAS * math.sqrt(count * ratio * (1 - ratio))


@pytest.mark.parametrize("number", range(2), ids=["1e-3", "1e-2"])
def test_random_loss_takes_single_packets(trouble: Results, number: int) -> None:
    """The share lost is that of packets, within 5 sigma of a binomial, though super-packets travel."""
    load = trouble["random_loss"]["loads"][number]
    assert load["packets"] > 250_000
    assert load["lost"] == pytest.approx(
        load["packets"] * load["ratio"], abs=binomial(load["packets"], load["ratio"])
    )
    assert load["pieces"] < load["packets"] / 5


def markov(count: int, p: float, r: float, lost: float) -> tuple[float, float]:
    """Mean and 5 sigma of Gilbert-Elliott losses; `lost` is the share lost in the bad state."""
    bad, memory = p / (p + r), 1 - p - r
    spread = bad * (1 - bad) * (1 + memory) / (1 - memory) * lost**2 + bad * lost * (1 - lost)
    return count * bad * lost, SIGMAS * math.sqrt(count * spread)


def test_bursts_of_loss_have_their_length(trouble: Results) -> None:
    """Gilbert-Elliott with p 0.02, r 0.2: the share lost, and bursts of 5 packets on average."""
    found = trouble["bursts_of_loss"]["single"]
    sent, arrived = found["sent"], set(found["arrived"])
    assert (sent, found["queue_drops"]) == (40_000, 0)
    assert found["lost"] == sent - len(found["arrived"]) == sent - len(arrived)
    mean, slack = markov(sent, 0.02, 0.2, 1.0)
    assert found["lost"] == pytest.approx(mean, abs=slack)
    runs = [len(list(run)) for there, run in groupby(range(sent), key=arrived.__contains__) if not there]
    assert fmean(runs) == pytest.approx(1 / 0.2, abs=SIGMAS * math.sqrt(0.8) / 0.2 / math.sqrt(len(runs)))
    assert len(runs) > 300


def test_bursts_of_loss_take_single_packets(trouble: Results) -> None:
    """In super-packets, too, p 1e-3, r 0.1 and half lost in the bad state lose 0.5 % of all packets."""
    found = trouble["bursts_of_loss"]["transfer"]
    mean, slack = markov(found["packets"], 1e-3, 0.1, 0.5)
    assert found["lost"] == pytest.approx(mean, abs=slack)
    assert found["pieces"] < found["packets"] / 5


def test_jitter_keeps_the_order(trouble: Results) -> None:
    """Far apart or close together, datagrams arrive in the order in which they were sent, all of them."""
    for name in ("apart", "dense"):
        found = trouble["jitter"][name]
        assert found["numbers"] == list(range(found["sent"]))
    transfer = trouble["jitter"]["transfer"]
    assert transfer == {"drops": 0, "retrans_bytes": [0] * 4, "reord_seen": [0] * 4}


def test_jitter_lies_around_the_delay(trouble: Results) -> None:
    """Far apart: uniform within the jitter, mean the delay within 5 sigma; close together: not above it."""
    delay_ns, jitter_ns = trouble["jitter"]["delay_ns"], trouble["jitter"]["jitter_ns"]
    for name in ("apart", "dense"):
        delays_ns = trouble["jitter"][name]["delays_ns"]
        assert delay_ns - jitter_ns <= min(delays_ns)
        assert max(delays_ns) <= delay_ns + jitter_ns + 10_000
    apart = trouble["jitter"]["apart"]["delays_ns"]
    spread_ns = jitter_ns / math.sqrt(3)
    assert fmean(apart) == pytest.approx(delay_ns, abs=SIGMAS * spread_ns / math.sqrt(len(apart)))
    squares = fmean((one - delay_ns) ** 2 for one in apart)
    assert math.sqrt(squares) == pytest.approx(spread_ns, rel=0.1)


def test_a_partition_is_one_way_and_ends(trouble: Results) -> None:
    """While A to B is cut nothing arrives there and everything is counted as lost; B to A goes on."""
    whole = {"there": 500, "back": 500, "lost": 0}
    assert trouble["partition"]["phases"] == [whole, {"there": 0, "back": 500, "lost": 500}, whole]


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    """Boots with one seed count the same to the packet and the nanosecond; another seed otherwise."""
    one, again, other = (
        measure(tmp_path / str(number), "seeded", seed) for number, seed in enumerate((5, 5, 6))
    )
    assert one == again
    assert one["seeded"]["a_to_b"]["lost_packets"] > 20
    assert one["seeded"]["end_ns"] != other["seeded"]["end_ns"]
