"""Units: what people write becomes exact integers, and comes back the same."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.units import (
    DURATION_UNITS,
    MAX_INTEGER,
    RATE_UNITS,
    SIZE_UNITS,
    UnitError,
    format_duration_ns,
    format_rate_bps,
    format_size_bytes,
    parse_duration_ns,
    parse_rate_bps,
    parse_ratio,
    parse_request_rate_per_s,
    parse_size_bytes,
)

PARSERS = (parse_rate_bps, parse_duration_ns, parse_size_bytes, parse_request_rate_per_s, parse_ratio)
AMOUNTS = st.integers(min_value=0, max_value=MAX_INTEGER)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100gbit", 100 * 10**9), ("8mbit", 8 * 10**6), ("1.5gbit", 1_500_000_000), ("1 Tbit", 10**12)],
)
def test_rates_in_bits_per_second(text: str, expected: int) -> None:
    """A rate is read as whole bits per second, its unit in any case."""
    assert expected == parse_rate_bps(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10ms", 10_000_000), ("5.75ms", 5_750_000), ("30s", 30 * 10**9), ("2min", 120 * 10**9), ("0s", 0)],
)
def test_durations_in_nanoseconds(text: str, expected: int) -> None:
    """A duration is read as whole nanoseconds."""
    assert expected == parse_duration_ns(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2MiB", 2 * 2**20), ("64MB", 64 * 10**6), ("125MB", 125 * 10**6), ("8GiB", 8 * 2**30), ("1.5kB", 1500)],
)
def test_sizes_in_bytes(text: str, expected: int) -> None:
    """A size is read as whole bytes; MB and MiB differ."""
    assert expected == parse_size_bytes(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (1, 1.0), (0.001, 0.001), (1e-9, 1e-9), ("1e-9", 1e-9), ("0.1%", 0.001), ("100 %", 1.0)],
)
def test_ratios(value: object, expected: float) -> None:
    """A ratio is a number from 0 to 1 or a percentage."""
    assert expected == parse_ratio(value)


def test_request_rates() -> None:
    """A request rate is read as requests per second."""
    assert parse_request_rate_per_s("2.56/s") == 2.56


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (100, "100 has no unit"),
        ("100", "100 has no unit"),
        ("-3gbit", "-3gbit is negative"),
        ("10gbps", '"10gbps" has the unknown unit gbps'),
        ("0.5bit", "0.5bit is finer than 1 bit"),
        ("1e3gbit", '"1e3gbit" is no rate'),
        ("9999999999tbit", "9999999999tbit is too large"),
        (None, "nothing is no rate"),
        (True, "true is no rate"),
        ({}, "a mapping is no rate"),
        ("", '"" is no rate'),
        ("\u0663gbit", '"\u0663gbit" is no rate'),
    ],
)
def test_wrong_rates_are_named(text: object, found: str) -> None:
    """What is no rate is refused with what was found and what is allowed."""
    with pytest.raises(UnitError) as caught:
        parse_rate_bps(text)
    assert found == caught.value.found
    assert "100gbit" in caught.value.allowed


@pytest.mark.parametrize("value", [-0.1, 1.1, "101%", "-1%", float("nan"), float("inf"), True, None, "half"])
def test_wrong_ratios_are_refused(value: object) -> None:
    """A ratio outside 0 to 1, or none at all, is refused."""
    with pytest.raises(UnitError):
        parse_ratio(value)


def test_a_request_rate_of_zero_is_refused() -> None:
    """No request would ever arrive."""
    with pytest.raises(UnitError):
        parse_request_rate_per_s("0/s")


def test_one_byte_units_are_case_sensitive() -> None:
    """Mb could be megabits: it is refused."""
    with pytest.raises(UnitError):
        parse_size_bytes("64Mb")


@settings(deadline=None)
@given(AMOUNTS)
def test_formatting_is_exact(amount: int) -> None:
    """Every integer survives being written and read again."""
    assert amount == parse_rate_bps(format_rate_bps(amount))
    assert amount == parse_duration_ns(format_duration_ns(amount))
    assert amount == parse_size_bytes(format_size_bytes(amount))


@settings(deadline=None)
@given(st.decimals(min_value=0, max_value=10**6, places=12), st.data())
def test_parsing_is_exact_or_refused(amount: object, data: st.DataObject) -> None:
    """A text becomes exactly its value in the smallest unit; what would have to be rounded is refused."""
    units, parse = data.draw(
        st.sampled_from(
            [
                (RATE_UNITS, parse_rate_bps),
                (DURATION_UNITS, parse_duration_ns),
                (SIZE_UNITS, parse_size_bytes),
            ]
        )
    )
    unit = data.draw(st.sampled_from(sorted(units)))
    text = f"{amount:f}"
    exact = Fraction(text) * units[unit]
    if exact.denominator == 1 and exact <= MAX_INTEGER:
        assert exact == parse(text + unit)
    else:
        with pytest.raises(UnitError):
            parse(text + unit)


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1))
def test_every_float_is_a_ratio(ratio: float) -> None:
    """A ratio given as a number is taken as it is."""
    assert ratio == parse_ratio(ratio)


@settings(deadline=None)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_nothing_but_unit_errors(value: object) -> None:
    """No value whatever makes a parser fail in another way."""
    for parse in PARSERS:
        with contextlib.suppress(UnitError):
            assert parse(value) >= 0
