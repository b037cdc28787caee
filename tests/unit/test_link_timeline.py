"""Every kind of timeline entry becomes the states it describes, at their times."""

from __future__ import annotations

from math import isclose
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.plan import (
    DIRECTIONS,
    LinkState,
    Loss,
)
from testbed.resolve.patterns import wave_levels
from testbed.shaping import distributions
from tests.unit.link_plans import MS, S, beside, changes, planned, rates, refused


def test_a_square_wave() -> None:
    """The wave's values for the first half of each period, the present ones for the second, and then."""
    wave = "{at: 1s, link: a_to_b, wave: {rate: 2gbit}, shape: square, period: 2s, until: 6s}"
    assert rates(planned(f"timeline=[{wave}]")) == [
        (0, 10_000), (1, 2_000), (2, 10_000), (3, 2_000), (4, 10_000), (5, 2_000), (6, 10_000),
    ]  # fmt: skip


def test_a_square_wave_may_switch_anything() -> None:
    """What has no values between, such as a queue, can still go back and forth."""
    wave = "{at: 1s, link: a_to_b, wave: {queue: codel}, shape: square, period: 2s, until: 3s}"
    kinds = [change.state.queue.kind for change in changes(planned(f"timeline=[{wave}]"))]
    assert kinds == ["tail_drop", "codel", "tail_drop", "tail_drop"]


def test_a_triangle_and_a_sawtooth() -> None:
    """A triangle goes and returns in equal steps; a sawtooth goes, and falls back at once."""
    triangle = "{at: 1s, link: a_to_b, wave: {rate: 2gbit}, shape: triangle, period: 4s, until: 5s, steps: 4}"
    assert rates(planned(f"timeline=[{triangle}]")) == [
        (0, 10_000), (2, 6_000), (3, 2_000), (4, 6_000), (5, 10_000),
    ]  # fmt: skip
    sawtooth = triangle.replace("triangle", "sawtooth").replace("2gbit", "4gbit")
    assert rates(planned(f"timeline=[{sawtooth}]")) == [
        (0, 10_000), (2, 8_000), (3, 6_000), (4, 4_000), (5, 10_000),
    ]  # fmt: skip


@given(steps=st.integers(1, 500).map(lambda half: 2 * half))
@settings(max_examples=30, deadline=None)
def test_waves_touch_both_ends_and_keep_between(steps: int) -> None:
    """Each shape begins at the present value, reaches the wave's exactly, and is monotone on the way."""
    for shape in ("sine", "triangle", "sawtooth"):
        levels = [level / whole for level, whole in wave_levels(shape, steps)]
        top = levels.index(max(levels))
        assert (len(levels), levels[0], levels[top]) == (steps, 0.0, 1.0)
        assert levels[: top + 1] == sorted(levels[: top + 1])
        assert levels[top:] == sorted(levels[top:], reverse=True)
        if shape != "sawtooth":
            assert isclose(sum(levels) / steps, 0.5)


def test_a_wave_is_periodic() -> None:
    """Every period is the one before, later."""
    wave = "{at: 1s, link: a_to_b, wave: {rate: 2gbit, delay: 9ms}, period: 3s, until: 13s, steps: 10}"
    steps = changes(planned(f"timeline=[{wave}]"))[1:-1]
    first, second = steps[:10], steps[10:20]
    assert [one.t_ns + 3 * S for one in first] == [other.t_ns for other in second]
    assert [one.state for one in first] == [other.state for other in second]
    assert first[5].state.delay_ns == 9 * MS


def test_a_wave_without_end_lasts() -> None:
    """Without `until` a wave goes on to the end of the run, and nothing is restored."""
    plan = planned("timeline=[{at: 1s, link: a_to_b, wave: {rate: 2gbit}, shape: square, period: 2s}]")
    assert rates(plan)[-1] == (19, 2_000)


def test_a_wave_begins_where_the_entry_before_it_ended() -> None:
    """The present values are those that hold when the wave begins."""
    plan = planned(
        "timeline=[{at: 1s, link: a_to_b, ramp: {rate: 4gbit}, over: 1s, steps: 1}, "
        "{at: 2s, link: a_to_b, wave: {rate: 8gbit}, shape: square, period: 2s, until: 4s}]"
    )
    assert rates(plan) == [(0, 10_000), (2, 8_000), (3, 4_000)]


def test_a_flap_goes_down_first() -> None:
    """Down for a while, up for a while, again and again, and up at the end."""
    plan = planned("timeline=[{at: 1s, link: both, flap: {down: 500ms, up: 1s}, until: 4.2s}]")
    for direction in DIRECTIONS:
        states = [(change.t_ns / S, change.state.partitioned) for change in changes(plan, direction)[1:]]
        assert states == [(1, True), (1.5, False), (2.5, True), (3, False), (4, True), (4.2, False)]


def test_an_outage_has_a_drawn_place() -> None:
    """Both directions go down together, within the window, for up to so long; the seed decides."""
    outage = "timeline=[{at: 2s, event: works, link: both, outage: {up_to: 5s}, until: 15s}]"
    seen = set()
    for seed in range(20):
        plan = planned(outage, seed=seed)
        one, other = (
            [(change.t_ns, change.state.partitioned) for change in changes(plan, direction)[1:]]
            for direction in DIRECTIONS
        )
        (begin, down), (end, up) = one
        assert one == other
        assert (down, up) == (True, False)
        assert 2 * S <= begin < end <= 15 * S
        assert end - begin <= 5 * S
        assert [(event.t_ns, event.name) for event in plan.events] == [(begin, "works"), (end, "works.end")]
        seen.add(begin)
    assert len(seen) == 20


def test_a_trace_is_exact_at_each_of_its_times(tmp_path: Path) -> None:
    """Times are relative to `at`, values hold until the next; what the trace does not name stays."""
    path = beside(tmp_path, "link.csv", "t, rate, delay, loss\n0s, 1gbit, 6ms, 0\n250ms, 2gbit, 7ms, 1%\n")
    plan = planned("timeline=[{at: 3s, link: a_to_b, trace: link.csv}]", path=path)
    states = [(change.t_ns, change.state) for change in changes(plan)[1:]]
    first = LinkState(rate_bps=10**9, buffer_bytes=1_250_000, delay_ns=6 * MS)
    second = LinkState(
        rate_bps=2 * 10**9, buffer_bytes=2_500_000, delay_ns=7 * MS, loss=Loss(model="random", ratio=0.01)
    )
    assert states == [(3 * S, first), (3250 * MS, second)]


def test_a_trace_repeats_and_ends(tmp_path: Path) -> None:
    """A round lasts as long as the trace and one more step; at `until` all is as before the trace."""
    path = beside(tmp_path, "link.csv", "t,rate\n0s,1gbit\n100ms,2gbit\n")
    entry = "{at: 1s, link: a_to_b, trace: link.csv, repeat: true, until: 1.5s}"
    assert rates(planned(f"timeline=[{entry}]", path=path)) == [
        (0, 10_000), (1, 1_000), (1.1, 2_000), (1.2, 1_000), (1.3, 2_000), (1.4, 1_000), (1.5, 10_000),
    ]  # fmt: skip


def test_jitter_of_a_trace_keeps_the_distribution(tmp_path: Path) -> None:
    """A trace moves the scale of the jitter; its shape is the direction's."""
    path = beside(tmp_path, "link.csv", "t,jitter\n0s,0.1ms\n")
    shape = "link.a_to_b.jitter={scale: 1us, distribution: normal}"
    state = changes(planned(shape, "timeline=[{at: 1s, link: a_to_b, trace: link.csv}]", path=path))[-1].state
    assert (state.jitter_ns, state.distribution) == (100_000, "normal")


def test_jitter_of_a_trace_over_a_file_is_a_standard_deviation(tmp_path: Path) -> None:
    """The unit of a file's table is its own; what a trace says is the deviation of what comes out."""
    beside(tmp_path, "delays.csv", "delay\n4ms\n4.5ms\n6ms\n")
    path = beside(tmp_path, "link.csv", "t,jitter\n0s,0.1ms\n")
    plan = planned(
        "link.a_to_b.jitter={file: delays.csv}",
        "timeline=[{at: 1s, link: a_to_b, trace: link.csv}]",
        path=path,
    )
    state = changes(plan)[-1].state
    drawn = distributions.deviations(plan.delay_tables[state.distribution], state.jitter_ns)
    assert isclose(drawn.std(), 100_000, rel_tol=1e-3)


def test_a_ramp_of_jitter_needs_one_distribution() -> None:
    """From one to another there is no way between, and the message says both."""
    entry = "{at: 1s, link: a_to_b, ramp: {jitter: {scale: 0.1ms, distribution: normal}}, over: 1s}"
    message = refused("link.a_to_b.jitter=0.2ms", f"timeline=[{entry}]")
    assert "no straight way from 200us to 100us (normal)" in message


def test_an_entry_makes_a_bearable_number_of_changes() -> None:
    """100,000 of them are some hundred seconds at the finest step."""
    flap = "timeline=[{at: 0s, link: a_to_b, flap: {down: 1ms, up: 1ms}}]"
    assert "makes 100001 changes of the link" in refused("duration=100001ms", flap)


def test_a_mahimahi_trace_has_the_mean_that_was_asked_for(tmp_path: Path) -> None:
    """Opportunities become rates: 3 to 1 in the trace, 3 to 1 above the floor in the plan."""
    path = beside(tmp_path, "a.mahi", "10\n20\n30\n150\n200\n")
    entry = "{at: 1s, link: a_to_b, mahimahi: a.mahi, mean_rate: 8gbit, bin: 100ms, until: 1.4s}"
    assert rates(planned(f"timeline=[{entry}]", path=path)) == [
        (0, 10_000), (1, 9_584), (1.1, 6_416), (1.2, 9_584), (1.3, 6_416), (1.4, 10_000),
    ]  # fmt: skip


@given(
    st.lists(
        st.sampled_from(
            [
                "{at: 1s, link: a_to_b, set: {delay: 6ms}}",
                "{at: 2s, link: both, wave: {rate: 4gbit}, period: 900ms, until: 7s}",
                "{at: 2.5s, link: b_to_a, flap: {down: 100ms, up: 300ms}, until: 4s}",
                "{at: 3s, link: a_to_b, noise: {cv: 5%, every: 70ms}, until: 9s}",
                "{at: 8s, link: a_to_b, ramp: {rate: 1gbit}, over: 1s}",
                "{at: 10s, link: both, outage: {up_to: 4s}, until: 16s}",
                "{at: 17s, link: both, partition: true, for: 1s}",
            ]
        ),
        unique=True,
    ),
    st.integers(0, 2**63 - 1),
)
@settings(max_examples=30, deadline=None)
def test_changes_are_in_order_and_alone_at_their_time(entries: list[str], seed: int) -> None:
    """Whatever is combined, changes rise in time, none of a direction shares its time, seeds are own."""
    plan = planned(f"timeline=[{', '.join(entries)}]", "link.b_to_a.noise={cv: 2%, every: 300ms}", seed=seed)
    times = [change.t_ns for change in plan.changes]
    assert times == sorted(times)
    for direction in DIRECTIONS:
        own = [change.t_ns for change in changes(plan, direction)]
        assert own[0] == 0
        assert len(set(own)) == len(own)
    assert len({change.seed for change in plan.changes}) == len(plan.changes)


def test_an_entry_within_another_is_refused() -> None:
    """A step within a wave of the same value would be lost in it."""
    wave = "{at: 1s, link: both, wave: {rate: 4gbit}, period: 1s, until: 9s}"
    message = refused(f"timeline=[{wave}, {{at: 3s, link: a_to_b, set: {{rate: 1gbit, delay: 1ms}}}}]")
    assert "sets rate while the entry" in message


def test_partitions_clash_with_the_outage_of_the_direction() -> None:
    """An outage that may come at any time leaves no room for another."""
    message = refused(
        "link.a_to_b={preset: maintenance}", "timeline=[{at: 3s, link: a_to_b, partition: true, for: 1s}]"
    )
    assert "sets partition while the entry" in message


def test_ramps_of_hundred_hours_are_quick_to_resolve() -> None:
    """Ten thousand steps, and each needs the moment before it only."""
    plan = planned("duration=100h", "timeline=[{at: 0s, link: both, ramp: {rate: 1gbit}, over: 100h}]")
    assert len(changes(plan)) == 10_001
