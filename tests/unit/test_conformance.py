"""What has to agree between kernels, and when it does: with figures made up for the purpose."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import tables as record
from testbed.conformance import agreement, figures
from testbed.conformance.agreement import Ran, exit_code, rows
from testbed.conformance.figures import Figure
from testbed.kernel import Clock
from testbed.plan import Plan
from testbed.resolve import load_and_resolve
from testbed.verdict import Result, Status, Verdict

SUITE = Path(__file__).parents[2] / "scenarios/conformance"
PLACES = ("uml", "uml-real", "vm")


@cache
def losses() -> Plan:
    """1 % random loss and jitter of 1 ms around 20 ms from A to B; bursts and 3 ms sharp back."""
    return load_and_resolve(SUITE / "losses.yaml")[1]


def probes(direction: str, delays_s: list[float]) -> pl.DataFrame:
    """A train of which everything arrives with these delays."""
    rows = [
        {"direction": direction, "number": number, "copy": 0, "delay_s": delay_s}
        for number, delay_s in enumerate(delays_s)
    ]
    return pl.DataFrame(rows, schema=record.TABLES["probes"])


def links(direction: str, sent: int, lost: int) -> pl.DataFrame:
    """Two samples, of which only the second has counts."""
    counts = {"sent_packets": sent, "lost_packets": lost, "filtered_packets": 0}
    rows = [{"t_s": 0.0, "direction": direction}, {"t_s": 1.0, "direction": direction, **counts}]
    return pl.DataFrame(rows, schema=record.TABLES["links"])


def result(name: str, status: Status, measured: float | None = 1.0, unit: str = "s") -> Result:
    return Result(
        name=name, kind="bound", metric="x", status=status, measured=measured, unit=unit,
        bound="at least 96 Mbps", margin=None, sentence="",
    )  # fmt: skip


def verdict(*results: Result) -> Verdict:
    failed = any(one.status == "FAIL" for one in results)
    return Verdict(status="FAIL" if failed else "PASS", results=results, trust=(), note="")


def taken(
    plan: Plan, *, delays: pl.DataFrame | None = None, packets: pl.DataFrame | None = None,
    clock: Clock = "real", judged: Verdict | None = None, must: Status = "PASS",
) -> dict[str, Figure]:  # fmt: skip
    """Figures of a run by what they are, with nothing measured but what is given."""
    empty = {name: pl.DataFrame(schema=schema) for name, schema in record.TABLES.items()}
    tables = {**empty, "probes": delays if delays is not None else empty["probes"]}
    tables["links"] = packets if packets is not None else links("a_to_b", 10_000, 100)
    found = figures.of_run(plan, judged or verdict(), tables, clock, must)
    return {one.what: one for one in found}


@pytest.mark.parametrize(
    ("clock", "off_s", "sound"),
    [
        ("virtual", 9e-6, True),
        ("virtual", 11e-6, False),
        ("real", 0.49e-3, True),
        ("real", 0.51e-3, False),
        ("real", -0.51e-3, False),
    ],
)
def test_a_delay_without_jitter_is_what_was_asked(clock: Clock, off_s: float, sound: bool) -> None:
    """Within 10 us in virtual time, half a millisecond in real time; a few late ones do not count."""
    delays = probes("b_to_a", [0.003 + off_s] * 90 + [0.1] * 10)
    found = taken(losses(), delays=delays, clock=clock)["delay, B → A"]
    assert (found.asked, found.sound) == ("3 ms", sound)


@given(seed=st.integers(0, 2**32 - 1))
def test_jitter_is_sound_when_it_is_drawn_as_asked(seed: int) -> None:
    """Quantiles of 500 draws are as far off as draws are, which no tolerance has to cover."""
    drawn = np.random.default_rng(seed).uniform(0.019, 0.021, 500).tolist()
    found = taken(losses(), delays=probes("a_to_b", drawn))
    kept = [name for name in found if name.startswith("delay")]
    assert kept == ["delay of the quickest 5%, A → B", "delay, A → B", "delay of the quickest 95%, A → B"]
    assert all(found[name].sound for name in kept)


@pytest.mark.parametrize(("low_s", "high_s"), [(0.02, 0.02), (0.016, 0.024), (0.0211, 0.0231)])
def test_jitter_of_another_width_or_place_is_not(low_s: float, high_s: float) -> None:
    """None at all, four times as much, or a millisecond too late."""
    delays = probes("a_to_b", np.linspace(low_s, high_s, 500).tolist())
    found = taken(losses(), delays=delays)
    assert not all(one.sound for one in found.values() if one.kind == "delay")


@pytest.mark.parametrize(("lost", "sound"), [(100, True), (70, True), (131, True), (65, False), (139, False)])
def test_losses_lie_within_the_binomial_interval(lost: int, sound: bool) -> None:
    """Of 10,000 packets at 1 %: 99.9 % of sound links lose 69 to 133 or so."""
    found = taken(losses(), packets=links("a_to_b", 10_000, lost))["random loss, A → B"]
    assert found.sound is sound
    assert f"{lost} of 10,000 (" in found.shown


def test_bursts_may_be_off_by_more_than_single_losses() -> None:
    """Losses that come four in a row vary more: their interval is wider than that of as many single ones."""
    share = 0.005 / 0.255
    expected = round(10_000 * share)
    beyond_a_coin = round(4 * (expected * (1 - share)) ** 0.5)
    found = taken(losses(), packets=links("b_to_a", 10_000, expected + beyond_a_coin))
    assert found["gilbert elliott loss, B → A"].sound
    found = taken(losses(), packets=links("b_to_a", 10_000, expected + 3 * beyond_a_coin))
    assert not found["gilbert elliott loss, B → A"].sound


def test_losses_of_nothing_prove_nothing() -> None:
    """Without a packet none can be lost, which is not as it should be."""
    assert not taken(losses(), packets=links("a_to_b", 0, 0))["random loss, A → B"].sound


def test_a_direction_whose_loss_changes_has_no_figure() -> None:
    """Nobody knows how many packets met which dice."""
    change = "timeline=[{at: 1s, link: a_to_b, set: {loss: 2%}}]"
    changed = load_and_resolve(SUITE / "losses.yaml", overrides=[change])[1]
    assert "random loss, A → B" not in taken(changed)


def test_rates_of_bounds_are_goodputs() -> None:
    """By the names that the scenario gives them; what was not measured, or is no rate, is none."""
    judged = verdict(
        result("one", "PASS", 99e6, "bps"), result("two", "PASS", None, "bps"), result("three", "PASS")
    )
    found = [one for one in taken(losses(), judged=judged).values() if one.kind == "goodput"]
    assert [(one.what, one.value, one.shown) for one in found] == [("one", 99e6, "99 Mbps")]


@pytest.mark.parametrize(("must", "sound"), [("PASS", False), ("FAIL", True)])
def test_a_verdict_is_what_it_must_be(must: Status, sound: bool) -> None:
    """Of a control that is FAIL, and what failed is told."""
    judged = verdict(result("first", "PASS"), result("second", "FAIL"))
    found = taken(losses(), judged=judged, must=must)["verdict"]
    assert (found.shown, found.sound) == ("FAIL: second", sound)


def goodput(bps: float) -> Figure:
    return Figure("goodput", "goodput", "", f"{bps}", sound=True, value=bps)


def judged(shown: str, sound: bool = True) -> Figure:
    return Figure("verdict", "verdict", "PASS", shown, sound)


def ran(place: str, *found: Figure, **others: object) -> Ran:
    return Ran("x", place, found, **others)  # type: ignore[arg-type]


@given(base=st.floats(1e6, 1e9), shares=st.lists(st.floats(1.0, 1.1), min_size=2, max_size=3))
def test_goodputs_agree_within_3_percent_of_each_other(base: float, shares: list[float]) -> None:
    """Whichever kernel is the fastest, and however many there are."""
    runs = [ran(place, goodput(base * share)) for place, share in zip(PLACES, shares, strict=False)]
    (row,) = rows(runs, PLACES)
    apart = max(shares) / min(shares) - 1
    if abs(apart - 0.03) > 1e-9:
        assert row.agrees == ("yes" if apart < 0.03 else "no")


@pytest.mark.parametrize(
    ("verdicts", "agrees"),
    [
        ([judged("PASS"), judged("PASS")], "yes"),
        ([judged("FAIL: a"), judged("FAIL: a")], "yes"),
        ([judged("FAIL: a"), judged("FAIL: a, b")], "no"),
        ([judged("PASS"), judged("FAIL: a", sound=False)], "no"),
        ([judged("FAIL: a", sound=False), judged("FAIL: a", sound=False)], "no"),
    ],
)
def test_verdicts_agree_when_the_same_expectations_failed(verdicts: list[Figure], agrees: str) -> None:
    """For the same reasons, and as the scenario must end: two kernels can be wrong alike."""
    (row,) = rows([ran(place, one) for place, one in zip(PLACES, verdicts, strict=False)], PLACES)
    assert row.agrees == agrees


def test_a_run_that_cannot_be_trusted_is_unknown() -> None:
    """In each row of its scenario, whatever the others have, and alone as well."""
    found = rows([ran("uml", goodput(1e8), judged("PASS")), ran("vm", unknown=("late",))], PLACES)
    assert [(row.what, row.cells["vm"], row.agrees) for row in found] == [
        ("goodput", "UNKNOWN", "unknown"),
        ("verdict", "UNKNOWN", "unknown"),
    ]
    assert exit_code(found) == 2
    (alone,) = rows([ran("vm", unknown=("late",))], PLACES)
    assert (alone.agrees, exit_code([alone])) == ("unknown", 2)


def test_a_difference_is_told_beside_a_run_that_cannot_be_trusted() -> None:
    """What two trusted kernels differ in is no less a difference."""
    runs = [ran("uml", goodput(1e8)), ran("uml-real", goodput(2e8)), ran("vm", unknown=("late",))]
    assert exit_code(rows(runs, PLACES)) == 1


def test_a_figure_that_only_one_kernel_has_is_unknown() -> None:
    """It was to be measured in the other one, too."""
    found = rows([ran("uml", goodput(1e8), judged("PASS")), ran("vm", judged("PASS"))], PLACES)
    assert [row.agrees for row in found] == ["unknown", "yes"]
    assert found[0].cells == {"uml": "100000000.0", "vm": "not measured"}


def test_what_was_left_out_is_missed_by_nobody() -> None:
    """A scenario that a kernel is not asked for leaves the others to agree."""
    found = rows([ran("uml", goodput(1e8)), ran("vm", left_out="too fast")], PLACES)
    assert [(row.agrees, row.cells) for row in found] == [("yes", {"uml": "100000000.0"})]
    assert rows([ran("vm", left_out="too fast")], PLACES) == []
    assert exit_code([]) == 2


def test_every_kernel_has_exit_code_0_when_all_agree() -> None:
    """And rows come in the order of scenarios and figures."""
    runs = [Ran(name, place, (goodput(1e8), judged("PASS"))) for name in "ba" for place in PLACES]
    found = rows(runs, PLACES)
    assert [(row.scenario, row.what) for row in found] == [
        ("b", "goodput"), ("b", "verdict"), ("a", "goodput"), ("a", "verdict"),
    ]  # fmt: skip
    assert {row.agrees for row in found} == {"yes"}
    assert exit_code(found) == agreement.EXIT_CODES["yes"] == 0
