"""Start and end of a request."""

from __future__ import annotations

import pytest

from aviso_server.errors import InvalidRequest
from aviso_server.model.span import Span, parse_sequence, read_end, read_start

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
        *("18446744073709551616", "9" * 5000),
    ],
)
@pytest.mark.parametrize("name", ["from_id", "to_id"])
def test_refused_sequences(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_sequence(name, text)
    assert refusal.value.field == name
    assert name in refusal.value.message


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
    with pytest.raises(InvalidRequest, match="Invalid from_id"):
        read_start("x", "y")
    with pytest.raises(InvalidRequest, match="Invalid from_date"):
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
