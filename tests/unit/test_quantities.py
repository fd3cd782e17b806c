"""Durations, sizes and money: as people write them, and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.units import (
    format_duration,
    format_number,
    format_size,
    parse_duration,
    parse_money,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 s", 90),
        ("10 min", 600),
        ("6 h", 21600),
        ("1 h 30 min", 5400),
        ("2 d", 172800),
        ("1h30m", 5400),
        ("  5 MIN ", 300),
        ("1 hour 2 seconds", 3602),
        ("1.5 h", 5400),
        ("0.1 s", 1),
        ("2.5 s", 3),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "h",
        "6 hodr",
        "-5 s",
        "1 h 2 h",
        "1 h,",
        "5 s!",
        "1e3 s",
        "٣ s",
        "1 month",
        "five min",
    ],
)
def test_a_duration_that_cannot_be_read_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 90 s, 10 min"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0 s", "0.0 h", "40 000 d".replace(" ", "", 1), "9" * 400 + " s"])
def test_a_duration_has_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="a duration must be between 1 s and 30 years, got"):
        parse_duration(text)


@given(st.integers(0, 365), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_of_several_units_is_their_sum(
    days: int, hours: int, minutes: int, seconds: int
) -> None:
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if total:
        assert parse_duration(f"{days} d {hours} h {minutes} min {seconds} s") == total


@given(st.integers(1, 10**9))
def test_what_is_written_of_a_duration_is_read_back_to_its_two_largest_units(seconds: int) -> None:
    back = parse_duration(format_duration(seconds))
    steps = [unit for unit in (86400, 3600, 60, 1) if unit <= seconds]
    precision = steps[min(1, len(steps) - 1)]
    assert back <= seconds < back + precision


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.04, "0.0 s"),
        (14, "14 s"),
        (125, "2 min 5 s"),
        (5400, "1 h 30 min"),
        (86401, "1 d"),
        (3601, "1 h"),
    ],
)
def test_a_duration_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512 MiB", 512 * 2**20),
        ("200 GiB", 200 * 2**30),
        ("1 TB", 10**12),
        ("1.5kB", 1500),
        ("7 b", 7),
        ("1 KIB", 1024),
    ],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "GB", "5 gigs", "1 GB 2 MB", "-1 GB", "5 PB"])
def test_a_size_that_cannot_be_read_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 512 MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0 GB", "0.2 b", "9999999999 TB", "9" * 400 + " b"])
def test_a_size_has_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="a size must be between 1 byte and 8 EiB, got"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (34_000, "34 kB"), (1_200_000_000, "1.2 GB"), (5e15, "5000.0 TB")],
)
def test_a_size_is_written_in_decimal_units(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "amount"),
    [("50 USD", 50), ("$50", 50), ("12.50 usd", 12.5), ("$ 0.01", 0.01), ("50$", 50)],
)
def test_money_is_read_in_dollars(text: str, amount: float) -> None:
    assert parse_money(text) == amount


@pytest.mark.parametrize("text", ["", "50", "50 EUR", "USD 50", "-5 USD", "1,000 USD", "50 USD 1"])
def test_money_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 50 USD"):
        parse_money(text)


@pytest.mark.parametrize("text", ["0 USD", "$0.00", "1000000000 USD", "9" * 400 + " USD"])
def test_money_has_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="below a billion"):
        parse_money(text)


@given(st.text(max_size=30), st.sampled_from([parse_duration, parse_size, parse_money]))
def test_any_text_is_read_as_something_or_refused(text: str, parse: Callable[[str], float]) -> None:
    with suppress(ValueError):
        assert parse(text) > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.07123, "0.07123"),
        (12_345.0, "12.3k"),
        (999_960.0, "1M"),
        (3e14, "3e+14"),
        (1e300, "1e+300"),
    ],
)
def test_a_metric_is_written_with_one_suffix_or_one_exponent(value: float, text: str) -> None:
    assert format_number(value) == text
