"""Profiles with layers and decode tables: exact at what was measured, between it where nothing was."""

from __future__ import annotations

import itertools
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.compute_profile import FURTHEST_TOKENS, LEAST_STEP_S, ComputeProfile, DecodeSteps, LayerShares
from agents.lengths import Lengths, mean_prefill_s
from agents.model import System, capacity
from agents.profiles import MODELS, PROFILES, find

RECORDED = ComputeProfile(
    name="recorded",
    source="made up",
    knots=((512, 0.5), (4096, 2.5), (8192, 7.0)),
    bs_max=8,
    from_tokens=512,
    layers=(LayerShares(512, (0.2, 0.4, 1.0)), LayerShares(4096, (0.1, 0.2, 1.0))),
    decode=(DecodeSteps(512, ((1, 0.02), (8, 0.025))), DecodeSteps(8192, ((1, 0.03), (8, 0.045)))),
)
FURTHER = msgspec.structs.replace(RECORDED, extrapolate=True)
seconds = st.floats(min_value=1e-4, max_value=100)


def ascending(least: int, most: int) -> st.SearchStrategy[list[int]]:
    """A few whole numbers."""
    numbers = st.integers(min_value=least, max_value=most)
    return st.lists(numbers, min_size=2, max_size=5, unique=True).map(sorted)


@given(st.data())
def test_prefill_lies_between_its_neighbours(data: st.DataObject) -> None:
    """At a knot it is what was measured, and between two knots neither below nor above both."""
    tokens = data.draw(ascending(1, 100_000))
    knots = tuple((one, data.draw(seconds)) for one in tokens)
    profile = ComputeProfile("p", "s", knots, from_tokens=tokens[0])
    for one, measured_s in knots:
        assert profile.prefill_s(one) == pytest.approx(measured_s, rel=1e-9)
    for (left, first_s), (right, second_s) in itertools.pairwise(knots):
        one_s, two_s = sorted((first_s, second_s))
        between = data.draw(st.integers(left, right))
        assert one_s * (1 - 1e-9) <= profile.prefill_s(between) <= two_s * (1 + 1e-9)


@given(st.data())
def test_a_step_lies_between_its_four_neighbours(data: st.DataObject) -> None:
    """Exactly what was measured at a point; between points never below or above all around it."""
    contexts, batches = data.draw(ascending(1, 100_000)), data.draw(ascending(2, 64))
    grid = tuple(
        DecodeSteps(context, tuple((batch, data.draw(seconds)) for batch in [1, *batches]))
        for context in contexts
    )
    profile = ComputeProfile("p", "s", ((1, 1.0), (2, 2.0)), bs_max=batches[-1], decode=grid)
    for row in grid:
        for batch, measured_s in row.steps:
            assert profile.step_s(batch, row.context_tokens) == measured_s
    context = data.draw(st.floats(contexts[0], contexts[-1]))
    batch = data.draw(st.integers(1, batches[-1]))
    rows = [
        max(one for one in range(len(grid)) if contexts[one] <= context),
        min(one for one in range(len(grid)) if contexts[one] >= context),
    ]
    columns = [
        max(one for one in [1, *batches] if one <= batch),
        min(one for one in [1, *batches] if one >= batch),
    ]
    around_s = [dict(grid[row].steps)[column] for row in rows for column in columns]
    assert min(around_s) * (1 - 1e-9) <= profile.step_s(batch, context) <= max(around_s) * (1 + 1e-9)


@given(tokens=st.integers(512, 8192), more_ns=st.integers(0, 10**10))
def test_layers_end_one_after_the_other(tokens: int, more_ns: int) -> None:
    """In their order, the last when all the time is spent, that of other work included."""
    ends_ns = RECORDED.layer_ends_ns(tokens, 3, more_ns)
    assert list(ends_ns) == sorted(ends_ns)
    assert ends_ns[-1] == round(RECORDED.prefill_s(tokens) * 1e9) + more_ns


def test_layers_end_where_they_were_measured() -> None:
    """At measured lengths by their shares, halfway between by the mean, outside by the nearest length's."""

    def shares(tokens: int) -> list[float]:
        whole_ns = RECORDED.prefill_s(tokens) * 1e9
        return [end_ns / whole_ns for end_ns in RECORDED.layer_ends_ns(tokens, 3)]

    assert shares(512) == pytest.approx([0.2, 0.4, 1.0])
    assert shares(2304) == pytest.approx([0.15, 0.3, 1.0])
    assert shares(4096) == shares(8192) == pytest.approx([0.1, 0.2, 1.0])


@given(tokens=st.integers(1, 131_072), more_ns=st.integers(0, 10**10))
def test_layers_that_nobody_measured_take_equally_long(tokens: int, more_ns: int) -> None:
    """Layer i of n ends at i/n of the time in whole nanoseconds, as profiles without layers always had it."""
    took_ns = round(PROFILES["h20"].prefill_s(tokens) * 1e9) + more_ns
    expected = tuple(took_ns * end // 60 for end in range(1, 61))
    assert PROFILES["h20"].layer_ends_ns(tokens, 60, more_ns) == expected


def test_a_step_is_bilinear() -> None:
    """In the middle of four points it is their mean."""
    assert RECORDED.step_s(1, 512) == 0.02
    assert RECORDED.step_s(8, 8192) == 0.045
    assert RECORDED.step_s(8, 4352) == pytest.approx(0.035)
    wide = msgspec.structs.replace(
        RECORDED, bs_max=9, decode=tuple(DecodeSteps(n, ((1, 0.01 * n), (9, 0.03 * n))) for n in (1, 3))
    )
    assert wide.step_s(5, 2) == pytest.approx((0.01 + 0.03 + 0.03 + 0.09) / 4)


@pytest.mark.parametrize(("batch", "context"), [(0, 600), (9, 600), (1, 511), (1, 8193)])
def test_steps_that_nobody_measured_are_refused(batch: int, context: int) -> None:
    """An error names the range; the largest batch is a limit even where the rest is extrapolated."""
    with pytest.raises(ValueError, match="outside"):
        RECORDED.step_s(batch, context)
    if 1 <= batch <= 8:
        assert FURTHER.step_s(batch, context) > 0


def test_a_batch_has_to_be_measured_at_every_context() -> None:
    """What fits at short contexts only is outside at all of them, unless it is extrapolated."""
    ragged = msgspec.structs.replace(
        RECORDED, decode=(RECORDED.decode[0], DecodeSteps(8192, ((2, 0.03), (4, 0.04))))
    )
    assert (ragged.batches, RECORDED.batches, PROFILES["h20"].batches) == ((2, 4), (1, 8), (1, 20))
    with pytest.raises(ValueError, match="outside 2 to 4"):
        ragged.step_s(8, 512)
    further = msgspec.structs.replace(ragged, extrapolate=True)
    assert further.batches == (1, 8)
    assert further.step_s(8, 8192) == pytest.approx(0.06)
    assert further.step_s(1, 8192) == pytest.approx(0.025)


@pytest.mark.parametrize("tokens", [511, 8193])
def test_lengths_that_nobody_measured_are_refused(tokens: int) -> None:
    """A recorded profile ends where it was measured, on both sides; extrapolated the last segment goes on."""
    with pytest.raises(ValueError, match="512 to 8192"):
        RECORDED.prefill_s(tokens)
    assert (RECORDED.min_tokens, RECORDED.max_tokens) == (512, 8192)
    assert (FURTHER.min_tokens, FURTHER.max_tokens) == (1, FURTHEST_TOKENS)
    assert FURTHER.prefill_s(16_384) == pytest.approx(7.0 * 2.8)
    assert FURTHER.prefill_s(64) == pytest.approx(0.1)


def test_a_falling_line_never_ends_below_nothing() -> None:
    """A step that seems to get quicker with the context takes some time at any."""
    falling = (DecodeSteps(512, ((1, 0.02),)), DecodeSteps(1024, ((1, 0.01),)))
    profile = msgspec.structs.replace(FURTHER, bs_max=1, decode=falling)
    assert profile.step_s(1, 100_000) == LEAST_STEP_S


def test_the_mean_of_times_keeps_to_the_range() -> None:
    """Exact within it; lengths on either side of it are refused, and are not when it is extrapolated."""
    lengths = Lengths.from_quantiles([600, 700, 5000, 8000])
    expected_s = sum(RECORDED.prefill_s(tokens) for tokens in lengths.tokens) / 4
    assert mean_prefill_s(lengths, RECORDED) == pytest.approx(expected_s)
    for outside, found in ((511, "below"), (8193, "above")):
        wider = Lengths.from_quantiles([outside, 700])
        with pytest.raises(ValueError, match=found):
            mean_prefill_s(wider, RECORDED)
        wider_s = (FURTHER.prefill_s(outside) + FURTHER.prefill_s(700)) / 2
        assert mean_prefill_s(wider, FURTHER) == pytest.approx(wider_s)
    assert mean_prefill_s(Lengths.from_quantiles([511, 700]), RECORDED, 600, inf) == RECORDED.prefill_s(700)


def test_the_model_decodes_at_the_mean_context() -> None:
    """Full batches, the mean prompt and half of the answer; shorter contexts count as the shortest."""
    system = System(RECORDED, RECORDED, MODELS["internal_1t"], n_prfaas=1, n_p=1, n_d=2, output_tokens=400)
    found = capacity(system, Lengths.from_quantiles([2000, 4000]), 3000, None)
    assert found.theta_d == pytest.approx(2 * 8 / (RECORDED.step_s(8, 3200) * 400))
    brief = msgspec.structs.replace(RECORDED, from_tokens=1, knots=((1, 0.1), (4096, 2.5)))
    short = System(brief, brief, MODELS["internal_1t"], n_prfaas=1, n_p=1, n_d=2, output_tokens=400)
    found = capacity(short, Lengths.from_quantiles([10, 20]), 15, None)
    assert found.theta_d == pytest.approx(2 * 8 / (RECORDED.step_s(8, 512) * 400))


def test_a_profile_survives_json_and_is_found() -> None:
    """What a plan carries is read back the same; a run's own profile comes before that of everybody."""
    text = msgspec.json.encode(RECORDED)
    assert msgspec.json.decode(text, type=ComputeProfile) == RECORDED
    assert find("h20", {"x": RECORDED}) is PROFILES["h20"]
    assert find("h20", {"h20": RECORDED}) is RECORDED
