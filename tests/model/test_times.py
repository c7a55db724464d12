"""Points in time, and the start and end of a request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.times import (
    SECOND,
    Span,
    event_time,
    parse_instant,
    parse_sequence,
    read_end,
    read_start,
    seconds_text,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WHOLE = int(datetime(2031, 4, 5, 6, 7, 8, tzinfo=UTC).timestamp()) * SECOND
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2031-04-05T06:07:08Z", WHOLE),
        ("2031-04-05t06:07:08z", WHOLE),
        ("2031-04-05 06:07:08Z", WHOLE),
        ("  2031-04-05T06:07:08Z\n", WHOLE),
        ("2031-04-05T06:07:08+02:00", WHOLE - 2 * HOUR),
        ("2031-04-05T06:07:08-00:30", WHOLE + HOUR // 2),
        ("2031-04-05T06:07:08.123Z", WHOLE + 123_000_000),
        ("2031-04-05T06:07:08.123456789Z", WHOLE + 123_456_789),
        ("2031-04-05T06:07:08.1234567899Z", WHOLE + 123_456_789),
        ("2031-04-05 06:07:08+00:00", WHOLE),
        ("2031-04-05 06:07:08 +00:00", WHOLE),
        ("2031-04-05 06:07:08+0200", WHOLE - 2 * HOUR),
        ("2031-04-05 06:07:08.5 +0200", WHOLE - 2 * HOUR + SECOND // 2),
        ("2031-04-05T06:07:08", WHOLE),
        ("2031-04-05 06:07:08", WHOLE),
        ("2031-04-05T06:07:08.25", WHOLE + SECOND // 4),
        ("2031-4-5T6:7:8", WHOLE),
        ("2031-4-5 6:7:8", WHOLE),
        ("0", 0),
        ("+0", 0),
        (str(WHOLE // SECOND), WHOLE),
        ("+" + str(WHOLE // SECOND), WHOLE),
        ("000" + str(WHOLE // SECOND), WHOLE),
        ("99999999999", 99_999_999_999 * SECOND),
        ("100000000000", 100_000_000 * SECOND),
        (str(WHOLE // 1_000_000), WHOLE),
        ("1969-12-31T23:59:59Z", -SECOND),
        ("2030-12-31T23:59:60Z", int(datetime(2031, 1, 1, tzinfo=UTC).timestamp()) * SECOND),
        ("0001-01-01T00:00:00Z", -62_135_596_800 * SECOND),
        ("9999-12-31T23:59:59Z", 253_402_300_799 * SECOND),
    ],
)
def test_accepted_instants(text: str, instant: int) -> None:
    assert parse_instant("from_date", text) == instant


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "2031-04-05", "2031-04-05T06:07Z", "2031-04-05T06:07", "-5", "-1000000000", "yesterday", "now"),
        *("1" * 19, "9" * 30, "20310405T060708Z", "2031-04-05T06:07:08+0200", "2031-04-05T06:07:08 +02:00"),
        *("2031-13-05T06:07:08Z", "2031-02-30T06:07:08Z", "2031-04-05T24:00:00Z", "2031-04-05T06:60:08Z"),
        *("2031-04-05T06:07:61Z", "2031-04-05T06:07:08.Z", "2031-04-05T06:07:08+24:00", "2031-04-05T06:07:08+00:60"),
        *("2031-4-5T06:07:08Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "1.5", "1e9", "٣", "+"),
        *("2031-04-05  06:07:08Z", "2031-04-05T06:07:08ZZ", "2031/04/05 06:07:08", "10000-01-01T00:00:00Z"),
    ],
)
@pytest.mark.parametrize("name", ["from_date", "to_date"])
def test_refused_instants(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_instant(name, text)
    assert refusal.value.field == name
    words = "must be a valid datetime/timestamp" if text.strip() else "cannot be empty"
    assert refusal.value.message.startswith(f"{name} {words}")
    assert "RFC 3339" in refusal.value.details


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (WHOLE, "2031-04-05T06:07:08Z"),
        (WHOLE + 500_000_000, "2031-04-05T06:07:08.500Z"),
        (WHOLE + 123_456_000, "2031-04-05T06:07:08.123456Z"),
        (WHOLE + 1, "2031-04-05T06:07:08.000000001Z"),
        (WHOLE + 1_000, "2031-04-05T06:07:08.000001Z"),
    ],
)
def test_event_times_have_as_many_digits_as_needed(nanoseconds: int, text: str) -> None:
    assert event_time(nanoseconds) == text


def test_early_years_have_four_digits() -> None:
    assert seconds_text(parse_instant("from_date", "0033-04-03T15:00:00Z") // SECOND) == "0033-04-03T15:00:00Z"


@given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 999))
def test_written_times_are_read_back(moment: datetime, nanoseconds: int) -> None:
    instant = (moment - EPOCH) // timedelta(microseconds=1) * 1000 + nanoseconds
    assert parse_instant("from_date", event_time(instant)) == instant
    assert parse_instant("from_date", seconds_text(instant // SECOND)) == instant // SECOND * SECOND


def test_a_day_alone_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(InvalidRequest, match='write "2025-01-01T00:00:00Z"'):
        parse_instant("from_date", "2025-01-01")


def test_an_endless_text_is_refused_by_its_start() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_instant("from_date", "0" * 100_000)
    assert "'000" in refusal.value.message
    assert len(refusal.value.message) < 300


NOON = 1_000_000_000 * 43_200


@pytest.mark.parametrize(
    ("text", "sequence"),
    [("0", 0), ("5", 5), ("+5", 5), ("0005", 5), ("+00", 0), ("18446744073709551615", 2**64 - 1), ("0" * 50 + "7", 7)],
)
def test_sequences(text: str, sequence: int) -> None:
    assert parse_sequence("from_id", text) == sequence
    assert read_start(text, None) == Span(from_sequence=sequence)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", " 5", "5 ", "5\n", "-5", "-0", "+-5", "++5", "5.0", "1e3", "1_0", "mars@5", "٥", "0x5", "+"),
        *("18446744073709551616", "9" * 5000, "0" * 5000),
    ],
)
@pytest.mark.parametrize("name", ["from_id", "to_id"])
def test_refused_sequences(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_sequence(name, text)
    assert refusal.value.field == name
    words = "must be a valid positive integer" if text.strip() else "cannot be empty"
    assert refusal.value.message.startswith(f"{name} {words}")
    assert '"42"' in refusal.value.message
    assert len(refusal.value.message) < 300


def test_no_start() -> None:
    assert not read_start(None, None).has_start
    assert not read_start(None, None).has_end


def test_from_zero_is_a_start() -> None:
    assert read_start("0", None).has_start
    assert read_start(None, "0") == Span(from_time=0)
    assert read_start(None, "0").has_start


def test_both_starts_are_refused_but_a_malformed_one_first() -> None:
    with pytest.raises(InvalidRequest, match="both from_id and from_date"):
        read_start("1", "0")
    with pytest.raises(InvalidRequest, match="from_id must be a valid positive integer"):
        read_start("x", "y")
    with pytest.raises(InvalidRequest, match="from_date must be a valid datetime/timestamp"):
        read_start("1", "y")


def test_ends() -> None:
    start = read_start("2", None)
    assert read_end(start, "4", None) == Span(from_sequence=2, to_sequence=4)
    assert read_end(start, "2", None).to_sequence == 2
    assert read_end(start, None, "43200") == Span(from_sequence=2, to_time=NOON)
    assert read_end(start, None, None) == start
    assert read_end(Span(from_time=NOON), None, "43200").to_time == NOON
    assert read_end(Span(from_time=NOON), "1", None).to_sequence == 1


def test_refused_ends() -> None:
    with pytest.raises(InvalidRequest, match="Cannot specify both to_id and to_date"):
        read_end(Span(from_sequence=1), "4", "5")
    with pytest.raises(InvalidRequest, match=r"to_id \(4\) must not be lower than from_id \(5\)"):
        read_end(Span(from_sequence=5), "4", None)
    early = r"to_date \(1970-01-01T00:00:00\+00:00\) must not be earlier than from_date \(1970-01-01T12:00:00\+00:00\)"
    with pytest.raises(InvalidRequest, match=early):
        read_end(Span(from_time=NOON), None, "0")
    close = r"to_date \(1970-01-01T00:00:00.250\+00:00\) must not be earlier than from_date \(1970-01-01T00:00:00.500"
    with pytest.raises(InvalidRequest, match=close):
        read_end(Span(from_time=500_000_000), None, "1970-01-01T00:00:00.25Z")
