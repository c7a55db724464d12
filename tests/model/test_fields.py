"""Identifier fields: what each accepts, its canonical text, and that a refusal names the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.fields import (
    FIELD_TYPES,
    DateField,
    EnumField,
    ExpverField,
    Field,
    FloatField,
    IntField,
    PolygonField,
    StringField,
    TimeField,
)

TEXT = StringField(required=True)
SHORT = StringField(required=True, max_length=5)
DATE = DateField(required=True)
DASHED = DateField(required=True, canonical_format="%Y-%m-%d")
TIME = TimeField(required=True)
ENUM = EnumField(required=True, values=("Red", "blue", "ÄÖ"))
INT = IntField(required=True)
RANGED = IntField(required=True, range=(1, 7))
FLOAT = FloatField(required=True)
PERCENT = FloatField(required=True, range=(0, 100))
EXPVER = ExpverField(required=True)
DEFAULTED = ExpverField(required=True, default="7")
POLYGON = PolygonField(required=True)

ACCEPTED: list[tuple[Field, object, str]] = [
    (TEXT, "AbC", "AbC"),
    (TEXT, " x ", " x "),
    (TEXT, "   ", "   "),
    (TEXT, "\0\n", "\0\n"),
    (TEXT, 5, "5"),
    (TEXT, 5.0, "5.0"),
    (TEXT, 1e3, "1000.0"),
    (TEXT, 2**64 - 1, "18446744073709551615"),
    (TEXT, True, "true"),
    (TEXT, False, "false"),
    (SHORT, "abcde", "abcde"),
    (SHORT, "ääa", "ääa"),
    (DATE, "2025-1-5", "20250105"),
    (DATE, "20251225", "20251225"),
    (DATE, 20251225, "20251225"),
    (DATE, "2025125", "20251205"),
    (DATE, "2025-12", "20250112"),
    (DATE, "25-12-20", "00251220"),
    (DATE, "2024-366", "20241231"),
    (DATE, "20240229", "20240229"),
    (DATE, " 2025- 12- 25", "20251225"),
    (DATE, "+2025-12-25", "20251225"),
    (DASHED, "20251225", "2025-12-25"),
    (DASHED, "2025-001", "2025-01-01"),
    (TIME, "0", "0000"),
    (TIME, 0, "0000"),
    (TIME, "7", "0700"),
    (TIME, "23", "2300"),
    (TIME, 12, "1200"),
    (TIME, 1200, "1200"),
    (TIME, "9:05", "0905"),
    (TIME, "23:59", "2359"),
    (TIME, "0000", "0000"),
    (ENUM, "RED", "red"),
    (ENUM, "Blue", "blue"),
    (ENUM, "äö", "äö"),
    (INT, "0042", "42"),
    (INT, "+7", "7"),
    (INT, "-0", "0"),
    (INT, "-007", "-7"),
    (INT, 5, "5"),
    (INT, "9223372036854775807", "9223372036854775807"),
    (INT, "-9223372036854775808", "-9223372036854775808"),
    (INT, "0" * 1000 + "1", "1"),
    (RANGED, "1", "1"),
    (RANGED, 7, "7"),
    (FLOAT, "42.50", "42.5"),
    (FLOAT, "5.0", "5"),
    (FLOAT, 5, "5"),
    (FLOAT, "1e21", "1000000000000000000000"),
    (FLOAT, "1e-7", "0.0000001"),
    (FLOAT, "-0.0", "-0"),
    (FLOAT, "+.5", "0.5"),
    (FLOAT, "5.", "5"),
    (FLOAT, "1E2", "100"),
    (PERCENT, "0", "0"),
    (PERCENT, "100.0", "100"),
    (EXPVER, "1", "0001"),
    (EXPVER, "00001", "0001"),
    (EXPVER, "+1", "0001"),
    (EXPVER, "0", "0000"),
    (EXPVER, "99999", "99999"),
    (EXPVER, "4294967295", "4294967295"),
    (EXPVER, "4294967296", "4294967296"),
    (EXPVER, "PROD", "prod"),
    (EXPVER, 1, "0001"),
    (DEFAULTED, "", "0007"),
    (POLYGON, " 0,0, 0,2.50, 2,2, 0,0 ", "[[0.0,0.0],[0.0,2.5],[2.0,2.0],[0.0,0.0]]"),
]

REFUSED: list[tuple[Field, object]] = [
    *((TEXT, value) for value in ("", None, ["a"], {"a": 1})),
    *((SHORT, value) for value in ("abcdef", "äää", 123456)),
    *((DATE, value) for value in ("202512", "2025-366", "2025-000", "2025-02-30", "2025/12/25", "20250229")),
    *(
        (DATE, value)
        for value in ("2025-12-25T00:00:00", "2025-12-25 ", "20251225\n", "", "*", "２０２５-12-25", 2025.0)
    ),
    *((TIME, value) for value in ("123", "12345", "24", "2400", "1260", "12:5", "12:60", "24:00")),
    *((TIME, value) for value in (" 12", "12.30", "", "12\n", "1200\n", "١٢", "-1", "*", 12.5, True)),
    *((ENUM, value) for value in ("green", "", "red ", "*", 1)),
    *((INT, value) for value in ("", " 5", "5 ", "5\n", "42.5", "5.0", 5.0, "1e3", "1_000", "٥", "+", "--1", "*")),
    *((INT, value) for value in ("9223372036854775808", "-9223372036854775809", "1" * 1000, "0" * 1024 + "1", True)),
    *((RANGED, value) for value in (0, "8", "-1")),
    *((FLOAT, value) for value in ("", " 1", "1 ", "1_0", "nan", "NaN", "inf", "-Infinity", "1e400", "-1e400", "0x1")),
    *((FLOAT, value) for value in ("1,5", ".", "e5", "1e", "٥", "*", True, None)),
    *((PERCENT, value) for value in ("-0.001", "100.0001")),
    *((EXPVER, value) for value in ("", None, [1])),
    *((POLYGON, value) for value in ("", "()", "(0,0,1,0,0,0)", "(0,0,0,1,1,1,1,0)", "(1,2,3)", "(91,0,0,0,0,1,91,0)")),
    *((POLYGON, value) for value in ("*", None, True, 5)),
]


@pytest.mark.parametrize(("field", "value", "text"), ACCEPTED)
def test_accepted_values_have_one_canonical_text(field: Field, value: object, text: str) -> None:
    assert field.accept("place", value) == text
    assert field.accept("place", text) == text


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_refusals_name_the_field(field: Field, value: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        field.accept("place", value)
    assert refusal.value.field == "place"
    assert "ield 'place'" in refusal.value.message


ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
LIKELY: dict[Field, st.SearchStrategy[str]] = {
    TEXT: ANY_TEXT,
    SHORT: ANY_TEXT,
    DATE: st.from_regex(r"[+]?[0-9]{1,4}-?[0-9]{1,2}-?[0-9]{0,2}", fullmatch=True),
    DASHED: st.dates().map(str),
    TIME: st.from_regex(r"[0-2]?[0-9]:?([0-5][0-9])?", fullmatch=True),
    ENUM: st.sampled_from(["red", "RED", "Äö", "bLUE"]),
    INT: st.integers(-(2**64), 2**64).map(str),
    RANGED: st.integers(-2, 9).map(str),
    FLOAT: st.floats().map(repr) | st.from_regex(r"[+-]?[0-9]{0,25}\.?[0-9]{0,9}(e[+-]?[0-9]{1,3})?", fullmatch=True),
    PERCENT: st.floats(-1, 101).map(repr),
    EXPVER: st.integers(0, 2**33).map(str) | ANY_TEXT,
    DEFAULTED: st.just("") | ANY_TEXT,
    POLYGON: st.lists(st.tuples(st.floats(-90, 90), st.floats(-180, 180)), min_size=3, max_size=5).map(
        lambda ring: ",".join(f"{lat!r}, {lon!r}" for lat, lon in [*ring, ring[0]])
    ),
}


@pytest.mark.parametrize("field", list(LIKELY))
def test_canonical_text_is_its_own_canonical_text(field: Field) -> None:
    @given(LIKELY[field] | ANY_TEXT)
    def law(text: str) -> None:
        try:
            canonical = field.canonical("place", text)
        except InvalidRequest:
            return
        assert field.canonical("place", canonical) == canonical
        assert field.accept("place", text) == canonical

    law()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_their_canonical_text(number: float) -> None:
    text = FLOAT.canonical("place", repr(number))
    assert float(text) == number
    assert "e" not in text
    assert not text.endswith(".0")


@given(st.dates())
def test_every_day_has_the_same_text_in_all_notations(day: Any) -> None:
    notations = [
        f"{day:%Y-%m-%d}".zfill(10),
        f"{day.toordinal() and day.year:04d}{day:%m%d}",
        f"{day.year:04d}-{day:%j}",
    ]
    assert {DATE.canonical("day", text) for text in notations} == {f"{day.year:04d}{day:%m%d}"}


def test_an_empty_list_of_values_accepts_nothing() -> None:
    with pytest.raises(InvalidRequest):
        EnumField(required=True, values=()).canonical("kind", "red")


@pytest.mark.parametrize("field_type", FIELD_TYPES.values())
def test_every_type_describes_itself(field_type: type[Field]) -> None:
    parameters: dict[str, Any] = {"values": ("north",)} if field_type is EnumField else {}
    field = field_type(required=False, **parameters)
    shown = field.describe()
    assert shown["type"] == field_type.type_name
    assert shown["required"] is False
    assert "description" not in shown
    assert field_type(required=False, description="words", **parameters).describe()["description"] == "words"
