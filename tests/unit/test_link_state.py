"""Every word of the link reaches the plan as it is meant."""

from __future__ import annotations

import dataclasses
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.plan import (
    LinkState,
    Loss,
    Queue,
    Slot,
    TokenBucket,
)
from testbed.resolve.conditions import Conditions
from testbed.scenario.link import LinkDirection, LinkPatch
from testbed.shaping import distributions
from tests.unit.link_plans import MS, S, beside, changes, planned, refused

FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "rate": ("8gbit", {"rate_bps": 8 * 10**9, "buffer_bytes": 10**7}),
    "buffer": ("2MB", {"buffer_bytes": 2_000_000}),
    "delay": ("7ms", {"delay_ns": 7 * MS}),
    "jitter": ("{scale: 1ms, distribution: normal}", {"jitter_ns": MS, "distribution": "normal"}),
    "loss": ("1%", {"loss": Loss(model="random", ratio=0.01)}),
    "reorder": ("2%", {"reorder": 0.02}),
    "duplicate": ("3%", {"duplicate": 0.03}),
    "corrupt": ("1e-6", {"corrupt": 1e-6}),
    "slot": (
        "{min: 1ms, max: 2ms, packets: 32, size: 64kB}",
        {"slot": Slot(min_ns=MS, max_ns=2 * MS, packets=32, size_bytes=64_000)},
    ),
    "queue": (
        "{kind: fq_codel, target: 4ms, interval: 80ms, ecn: true}",
        {"queue": Queue(kind="fq_codel", ecn=True, target_ns=4 * MS, interval_ns=80 * MS)},
    ),
    "token_bucket": (
        "{sustained: 1gbit, budget: 5GB}",
        {"token_bucket": TokenBucket(sustained_bps=10**9, budget_bytes=5 * 10**9)},
    ),
    "flow_cap": ("5gbit", {"flow_cap_bps": 5 * 10**9}),
    "path_mtu": ("1500", {"path_mtu_bytes": 1500}),
    "black_hole_above": ("1400", {"black_hole_bytes": 1400}),
    "limit": ("1000", {"limit_packets": 1000}),
}
BEFORE = LinkState(rate_bps=10**10, buffer_bytes=12_500_000, delay_ns=5 * MS)


def changed(state: LinkState, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a state that differ from those of the scenario as it is."""
    return {
        name: getattr(state, name)
        for name in LinkState.__struct_fields__
        if getattr(state, name) != getattr(BEFORE, name) or name in fields
    }


def test_every_word_is_tried() -> None:
    """No key of a direction, and no field of its conditions, is left out of the tests below."""
    assert set(FIELDS) == set(LinkPatch.model_fields)
    assert set(FIELDS) == set(LinkDirection.model_fields) - {"preset", "noise", "outage"}
    names = {field.name for field in dataclasses.fields(Conditions)}
    assert set(FIELDS) == names - {"partitioned", "noise", "storm"}


@pytest.mark.parametrize("name", FIELDS)
def test_a_direction_has_what_it_was_given(name: str) -> None:
    """A key of a direction changes the fields of the plan that belong to it, and no others."""
    text, fields = FIELDS[name]
    state = planned(f"link.a_to_b.{name}={text}").link["a_to_b"]
    assert changed(state, fields) == fields


@pytest.mark.parametrize("name", FIELDS)
def test_every_word_can_be_set_and_nothing_else_moves(name: str) -> None:
    """`set` changes what it names at its time; all the rest stays."""
    text, fields = FIELDS[name]
    plan = planned(f"timeline=[{{at: 3s, link: a_to_b, set: {{{name}: {text}}}}}]")
    before, after = changes(plan)
    assert (before.state, after.t_ns, changed(after.state, fields)) == (BEFORE, 3 * S, fields)
    assert len(changes(plan, "b_to_a")) == 1


@pytest.mark.parametrize(
    "name", ["slot", "token_bucket", "flow_cap", "path_mtu", "black_hole_above", "limit"]
)
def test_none_takes_a_limit_away(name: str) -> None:
    """After `set: {x: none}` the direction is as if x had never been there."""
    plan = planned(
        f"link.a_to_b.{name}={FIELDS[name][0]}", f"timeline=[{{at: 3s, link: a_to_b, set: {{{name}: none}}}}]"
    )
    assert [change.state == BEFORE for change in changes(plan)] == [False, True]


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("0", None),
        (
            "{model: correlated, ratio: 25%, correlation: 50%}",
            Loss(model="gilbert_elliott", p=0.125, r=0.375),
        ),
        (
            "{model: four_state, p13: 1%, p31: 20%, p32: 10%, p23: 50%, p14: 0.1%}",
            Loss(model="four_state", p13=0.01, p31=0.2, p32=0.1, p23=0.5, p14=0.001),
        ),
        ("{model: periodic, every: 1000}", Loss(model="periodic", every_packets=1000)),
    ],
)
def test_loss_models(text: str, loss: Loss | None) -> None:
    """Each model reaches the plan with its parameters."""
    assert planned(f"link.a_to_b.loss={text}").link["a_to_b"].loss == loss


@given(ratio=st.floats(1e-6, 0.5), correlation=st.floats(0, 0.99))
@settings(max_examples=50, deadline=None)
def test_correlated_loss_has_its_share_and_its_correlation(ratio: float, correlation: float) -> None:
    """The two-state chain loses the share of packets that was asked for, in runs as correlated as asked."""
    loss = f"{{model: correlated, ratio: {ratio:.9f}, correlation: {correlation:.9f}}}"
    chain = planned(f"link.a_to_b.loss={loss}").link["a_to_b"].loss
    assert chain is not None
    assert isclose(chain.p / (chain.p + chain.r), float(f"{ratio:.9f}"), rel_tol=1e-9)
    assert isclose(1 - chain.p - chain.r, float(f"{correlation:.9f}"), abs_tol=1e-9)


def test_ways_out_of_a_state_never_wrap_around() -> None:
    """The kernel adds two probabilities in 32 bits: a sum of 1 is kept one step below it."""
    loss = planned("link.a_to_b.loss={model: four_state, p13: 50%, p14: 50%, p31: 50%, p32: 50%}").link
    chain = loss["a_to_b"].loss
    assert chain is not None
    assert chain.p13 + chain.p14 == chain.p31 + chain.p32 == 1 - 2.0**-32


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("tail_drop", Queue()),
        ("codel", Queue(kind="codel", target_ns=5 * MS, interval_ns=100 * MS)),
        ("red", Queue(kind="red", min_bytes=2_500_000, max_bytes=7_500_000, probability=0.1)),
        (
            "{kind: red, min: 1MB, max: 2MB, probability: 20%, ecn: true}",
            Queue(kind="red", ecn=True, min_bytes=10**6, max_bytes=2 * 10**6, probability=0.2),
        ),
    ],
)
def test_queues(text: str, queue: Queue) -> None:
    """A queue by its name has the defaults of its RFC; RED's shares are of the buffer."""
    assert planned(f"link.a_to_b.queue={text}").link["a_to_b"].queue == queue


def test_a_share_of_the_buffer_follows_it() -> None:
    """RED's thresholds follow a buffer that follows the rate."""
    plan = planned("link.a_to_b.queue=red", "timeline=[{at: 3s, link: a_to_b, set: {rate: 1gbit}}]")
    assert [change.state.queue.max_bytes for change in changes(plan)] == [7_500_000, 750_000]


def test_scale_multiplies_rates_and_bytes_and_nothing_else() -> None:
    """Rates, buffers, budgets and thresholds shrink; times, ratios and packets do not."""
    words = [f"link.a_to_b.{name}={text}" for name, (text, _) in FIELDS.items() if name != "buffer"]
    red = "link.b_to_a.queue={kind: red, min: 2MB, max: 4MB}"
    full, small = planned(*words, red), planned(*words, red, scale=0.1)
    one, other = full.link["a_to_b"], small.link["a_to_b"]
    assert one.token_bucket is not None
    assert one.slot is not None
    assert other == LinkState(
        rate_bps=one.rate_bps // 10,
        buffer_bytes=one.buffer_bytes // 10,
        delay_ns=one.delay_ns,
        jitter_ns=one.jitter_ns,
        distribution=one.distribution,
        loss=one.loss,
        reorder=one.reorder,
        duplicate=one.duplicate,
        corrupt=one.corrupt,
        slot=Slot(min_ns=MS, max_ns=2 * MS, packets=32, size_bytes=6_400),
        queue=one.queue,
        token_bucket=TokenBucket(sustained_bps=10**8, budget_bytes=5 * 10**8),
        flow_cap_bps=5 * 10**8,
        path_mtu_bytes=1500,
        black_hole_bytes=1400,
        limit_packets=1000,
    )
    assert small.link["b_to_a"].queue.max_bytes == 400_000


def test_tables_of_delay_are_those_that_are_named() -> None:
    """Without jitter there is no table; with jitter the uniform one, and each that is named."""
    assert planned().delay_tables == {}
    assert list(planned("link.a_to_b.jitter=1ms").delay_tables) == ["uniform"]
    plan = planned("timeline=[{at: 1s, link: a_to_b, set: {jitter: {scale: 1us, distribution: pareto}}}]")
    assert plan.delay_tables == {name: distributions.table(name) for name in ("pareto", "uniform")}


def test_jitter_from_a_file(tmp_path: Path) -> None:
    """The delays of a file become a table with its own name, around the delay of the direction."""
    path = beside(tmp_path, "delays.csv", "# measured\ndelay\n4ms\n6ms\n5ms\n5ms\n")
    plan = planned("link.a_to_b.jitter={file: delays.csv}", path=path)
    state = plan.link["a_to_b"]
    assert (state.distribution, state.delay_ns) == ("file:delays.csv", 5 * MS)
    away = distributions.deviations(plan.delay_tables["file:delays.csv"], state.jitter_ns)
    assert {round(float(ns) / MS, 3) for ns in away} == {-1.0, 0.0, 1.0}


def test_a_file_called_like_a_distribution_is_its_own(tmp_path: Path) -> None:
    """Both directions have the jitter they name: the file's here, the normal distribution there."""
    path = beside(tmp_path, "normal", "delay\n4ms\n6ms\n")
    normal = "link.b_to_a.jitter={scale: 0.1ms, distribution: normal}"
    plan = planned("link.a_to_b.jitter={file: normal}", normal, path=path)
    assert plan.link["a_to_b"].distribution == "file:normal"
    assert plan.delay_tables["normal"] == distributions.table("normal")


@pytest.mark.parametrize("delays", ["5ms\n", "5ms\n5ms\n"])
def test_a_file_without_spread_is_refused(tmp_path: Path, delays: str) -> None:
    """It would be no jitter at all, and would make none of any later one."""
    path = beside(tmp_path, "one.csv", f"delay\n{delays}")
    message = refused("link.a_to_b.jitter={file: one.csv}", path=path)
    assert "one.csv makes no distribution: all delays are alike" in message


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("rate", "buffer", "delay")])
def test_none_takes_anything_away(name: str) -> None:
    """Of a preset as of anything else: `none` is as if it had never been there."""
    given = planned("link.a_to_b.preset=near-region-100g", f"link.a_to_b.{name}=none").link["a_to_b"]
    field = {"black_hole_above": "black_hole_bytes", "flow_cap": "flow_cap_bps", "path_mtu": "path_mtu_bytes",
             "jitter": "jitter_ns", "limit": "limit_packets"}.get(name, name)  # fmt: skip
    if hasattr(given, field):
        assert getattr(given, field) == getattr(BEFORE, field)


@pytest.mark.parametrize("seed", range(3))
def test_noise_beside_a_token_bucket_is_judged_by_its_worst(seed: int) -> None:
    """Whatever the seed draws: 500 Mbps, cv 2 % and drops of half come to 235 Mbps."""
    words = (
        "link.a_to_b.rate=500mbit",
        "link.a_to_b.noise={cv: 2%, excursions: {depth: 50%, gap: 10h, length: 1s}}",
    )
    bucket = "link.a_to_b.token_bucket={sustained: %s, budget: 1GB}"
    assert planned(*words, bucket % "234mbit", seed=seed).link["a_to_b"].token_bucket is not None
    message = refused(*words, bucket % "235mbit")
    assert "noise may take the rate to 235mbit, not above the token bucket's sustained rate" in message
    assert "sustained below 235mbit" in message


# The mtu is 9000: a frame a second is 9014 * 8 = 72112 bit/s. bfifo holds 2^32 bytes but for a super-packet.
@pytest.mark.parametrize(
    ("fits", "fails", "says"),
    [
        ("buffer=4095MiB", "buffer=4293918721B", "does not fit the kernel's 32 bits"),
        ("flow_cap=72112bit", "flow_cap=72104bit", "less than a packet of 9000 bytes a second"),
        ("queue={kind: codel, interval: 2000s}", "queue={kind: codel, interval: 2001s}", "codel's interval"),
        ("queue={kind: codel, target: 2us}", "queue={kind: codel, target: 1us}", "codel's target"),
        (
            "queue={kind: red, min: 9001B, max: 1MB}",
            "queue={kind: red, min: 9kB, max: 1MB}",
            "RED's min of 9kB",
        ),
    ],
)
def test_what_the_kernel_cannot_have_is_refused_when_read(fits: str, fails: str, says: str) -> None:
    """At its very limit a value passes, one step beyond it is refused in words."""
    assert planned(f"link.a_to_b.{fits}").link
    assert says in refused(f"link.a_to_b.{fails}")


def test_a_window_can_be_given() -> None:
    """The window is the scenario's, and shrinks with the link."""
    assert planned("transport.window=64MiB").window_bytes == 64 * 2**20
    assert planned("transport.window=64MiB", scale=0.25).window_bytes == 16 * 2**20


def test_offload_is_passed_on() -> None:
    """The default is auto."""
    assert (planned().offload, planned("link.offload=off").offload) == ("auto", "off")
