"""Judging what signals do: settling, overshoot and oscillation hold, fail and are unknown."""

from __future__ import annotations

import polars as pl
import pytest

from testbed.plan import Expectation
from tests.unit.synthetic_plan import S, expectation
from tests.unit.test_expect import EMPTY, controls, every_second, judged, tables

SETTLING = expectation("settling", "threshold_tokens", event="trouble", within_ns=10 * S, band_ratio=0.05)
TO_A_TARGET = expectation(
    "settling", "threshold_tokens", event="trouble", within_ns=10 * S, band=500.0, target=24_000.0
)
OVERSHOOT = expectation("overshoot", "threshold_tokens", event="trouble", high=0.2)
OSCILLATION = expectation("oscillation", "threshold_tokens", high=1000.0, cycles=3)
AFTER_30_S = (SETTLING, TO_A_TARGET, OVERSHOOT)


@pytest.mark.parametrize(
    ("value_at", "status", "measured"),
    [
        ({0: 19_000, 31: 30_000, 35: 24_000}, "PASS", 5.0),
        ({0: 19_000, 31: 30_000, 40: 24_500}, "PASS", 10.0),
        ({0: 19_000, 31: 30_000, 41: 24_000}, "FAIL", 11.0),
        ({0: 19_000, 31: 24_000, 119: 10_000}, "FAIL", None),
        ({0: 24_000}, "UNKNOWN", None),
    ],
)
def test_settling(value_at: dict[int, int], status: str, measured: float | None) -> None:
    """A signal settles in time, wherever; one that never moved had nothing to settle from."""
    result = judged(SETTLING, tables(every_second(value_at)))
    assert (result.status, result.measured) == (status, measured)


def test_settling_at_a_target() -> None:
    """A signal that comes to rest elsewhere, or never moves, did not settle there."""
    good, elsewhere, never = (
        judged(TO_A_TARGET, tables(every_second(value_at)))
        for value_at in ({0: 19_000, 33: 24_500}, {0: 19_000, 33: 25_000}, {0: 19_000})
    )
    assert (good.status, good.measured, good.unit, good.margin) == ("PASS", 3.0, "s", 7.0)
    assert good.sentence == (
        "threshold_tokens settled within 500 tokens of 24,000 tokens after 3 s (allowed 10 s)"
    )
    assert good.bound == "within 500 tokens of 24,000 tokens within 10 s of trouble"
    assert (elsewhere.status, never.status) == ("FAIL", "FAIL")
    assert elsewhere.sentence == (
        "threshold_tokens did not settle within 500 tokens of 24,000 tokens: it was 25,000 tokens at 119.0 s"
        " (allowed 10 s)"
    )


@pytest.mark.parametrize(
    ("value_at", "target", "status", "measured"),
    [
        ({0: 19_000, 31: 24_500, 35: 24_000}, None, "PASS", 0.1),
        ({0: 19_000, 31: 26_000, 35: 24_000}, None, "FAIL", 0.4),
        ({0: 24_000, 31: 18_000, 35: 19_000}, None, "PASS", 0.2),
        ({0: 19_000, 31: 20_000}, None, "PASS", 0.0),
        ({0: 19_000, 31: 25_000}, 24_000.0, "PASS", 0.2),
        ({0: 19_000}, 24_000.0, "PASS", 0.0),
        ({0: 19_000}, None, "UNKNOWN", None),
        ({0: 19_000, 31: 20_000}, 19_000.0, "UNKNOWN", None),
    ],
)
def test_overshoot(
    value_at: dict[int, int], target: float | None, status: str, measured: float | None
) -> None:
    """How far beyond the end of the step, as a share of it, up or down; no step has no share."""
    wanted = expectation("overshoot", "threshold_tokens", event="trouble", high=0.2, target=target)
    result = judged(wanted, tables(every_second(value_at)))
    assert (result.status, result.measured) == (status, pytest.approx(measured))


def test_overshoot_of_a_signal_that_does_not_rest() -> None:
    """Where it swings until the end there is no end of a step; with a target it need not rest."""
    swings = every_second({0: 19_000, **{t: 24_000 + 2_000 * (t % 2) for t in range(31, 120)}})
    result = judged(OVERSHOOT, tables(swings))
    assert result.status == "UNKNOWN"
    assert "did not come to rest: it still moved by 2,000 tokens" in result.sentence
    aimed = expectation("overshoot", "threshold_tokens", event="trouble", high=0.5, target=24_000.0)
    assert judged(aimed, tables(swings)).measured == pytest.approx(0.4)


def test_overshoot_sentence() -> None:
    """The finding names the step."""
    result = judged(OVERSHOOT, tables(every_second({0: 19_000, 31: 26_000, 35: 24_000})))
    assert result.sentence == (
        "threshold_tokens went 40 % beyond its step from 19,000 tokens to 24,000 tokens"
        " (allowed at most 20 %)"
    )
    assert (result.unit, result.bound) == ("ratio", "at most 20 % after trouble")


def test_overshoot_of_a_signal_without_an_earlier_value() -> None:
    """Nobody knows how large its step was."""
    values = [(t, None if t < 30 else 24_000) for t in range(120)]
    result = judged(OVERSHOOT, tables(controls([(float(t), value) for t, value in values])))
    assert result.status == "UNKNOWN"
    assert "was not measured before the event" in result.sentence


@pytest.mark.parametrize(
    ("amplitude", "until", "status"),
    [(900, 120, "PASS"), (1000, 120, "PASS"), (1100, 120, "FAIL"), (5000, 40, "PASS"), (0, 120, "PASS")],
)
def test_oscillation(amplitude: int, until: int, status: str) -> None:
    """A square wave of 20 s fails above its amplitude; one that ends does not go on swinging."""
    swinging = {t: 20_000 + (amplitude if t // 10 % 2 else -amplitude) for t in range(0, until, 10)}
    result = judged(
        OSCILLATION, tables(every_second({**swinging, **({} if until == 120 else {until: 20_000})}))
    )
    assert (result.status, result.unit) == (status, "tokens")
    if until == 120 and amplitude:
        assert result.measured == amplitude
        assert f"swung by {amplitude:,} tokens up and down every 20 s from 0 to 120 s" in result.sentence
    else:
        assert result.measured == 0.0
        assert "repeated no cycle from 0 to 120 s" in result.sentence


def test_a_short_window_shows_no_oscillation() -> None:
    """Twelve samples are needed for three cycles."""
    for seconds, status in ((11, "UNKNOWN"), (12, "PASS")):
        wanted = expectation(
            "oscillation", "threshold_tokens", high=1000.0, cycles=3, from_ns=50 * S, to_ns=(50 + seconds) * S
        )
        result = judged(wanted, tables(every_second({0: 19_000})))
        assert result.status == status
    assert "too few to see 3 cycles" in judged(OSCILLATION, tables(controls([(0.0, 1), (118.0, 1)]))).sentence


@pytest.mark.parametrize("wanted", [*AFTER_30_S, OSCILLATION], ids=lambda wanted: wanted.kind)
def test_without_samples_signals_are_unknown(wanted: Expectation) -> None:
    """Neither an empty table, nor telemetry that dies, nor one with a hole passes or fails."""
    moving = every_second({0: 19_000, 32: 26_000, 35: 24_000})
    holed = moving.filter((pl.col("t_s") < 40) | (pl.col("t_s") > 60))
    for decisions in (EMPTY["decisions"], moving.filter(pl.col("t_s") < 60), holed):
        assert judged(wanted, tables(decisions)).status == "UNKNOWN"


@pytest.mark.parametrize("wanted", AFTER_30_S)
def test_an_event_that_never_came_leaves_nothing_to_judge(wanted: Expectation) -> None:
    """What should have followed an event cannot be judged without it."""
    result = judged(wanted, tables(every_second({0: 19_000}), event_s=None))
    assert result.status == "UNKNOWN"
