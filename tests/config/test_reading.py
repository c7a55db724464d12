"""Literals, unknown keys and values: durations, sizes, switches and whole numbers as the contract writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.config.reading import duration, format_duration, integer, size, switch

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("90S", 90),
        ("10m", 600),
        ("12H", 43_200),
        ("7d", 604_800),
        ("2w", 1_209_600),
        (" 5s ", 5),
        ("007s", 7),
    ],
)
def test_duration(text: str, seconds: int) -> None:
    assert duration(text) == seconds * SECOND


@pytest.mark.parametrize(
    "text", ["10", "10x", "0s", "", "s", "-1s", "+1s", "1.5h", "1 s", "1ms", "1s1m", "٣s", "9" * 30 + "w"]
)
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError):
        duration(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1K", 1000),
        ("1Ki", 1024),
        ("3M", 3_000_000),
        ("64Mi", 67_108_864),
        ("2G", 2 * 10**9),
        ("1Gi", 2**30),
        ("1T", 10**12),
        ("1Ti", 2**40),
    ],
)
def test_size(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize(
    "text", ["10m", "0Mi", "10", "", "10k", "10KI", "10KB", "-1K", "1.5G", "1 Ki", "Ki", "9" * 30 + "Ti"]
)
def test_not_a_size(text: str) -> None:
    with pytest.raises(ValueError):
        size(text)


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "on", "On", "yes", "YES"])
def test_true(text: str) -> None:
    assert switch(text) is True


@pytest.mark.parametrize("text", ["0", "false", "False", "off", "no", "NO"])
def test_false(text: str) -> None:
    assert switch(text) is False


@pytest.mark.parametrize("text", ["", " true", "2", "y", "enabled", "truee"])
def test_neither(text: str) -> None:
    with pytest.raises(ValueError):
        switch(text)


@pytest.mark.parametrize("text", ["", " 5", "5 ", "1_000", "5.0", "1e3", "0x10", "٣", "five", "5\n"])
def test_not_a_whole_number(text: str) -> None:
    with pytest.raises(ValueError):
        integer(text)


def test_thousands_of_digits_are_a_large_number_not_a_crash() -> None:
    assert integer("9" * 10_000) > 2**64
    assert integer("-" + "9" * 10_000) < -(2**64)


@given(st.integers())
def test_integers_round_trip(number: int) -> None:
    assert integer(str(number)) == number or abs(number) >= 10**39


@given(st.integers(min_value=1, max_value=10**8))
def test_durations_round_trip(seconds: int) -> None:
    assert duration(format_duration(seconds * SECOND)) == seconds * SECOND
