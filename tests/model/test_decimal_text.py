"""Decimal text: what is a number, and how it is written."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.model import decimal_text

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42.50, "42.5"),
        (5.0, "5"),
        (1e21, "1000000000000000000000"),
        (1e-7, "0.0000001"),
        (-0.0, "-0"),
        (0.0, "0"),
        (-1.25, "-1.25"),
        (100.0, "100"),
        (1e16, "10000000000000000"),
        (1.5e22, "15000000000000000000000"),
        (-2.5e-10, "-0.00000000025"),
        (0.1 + 0.2, "0.30000000000000004"),
        (5e-324, "0." + "0" * 323 + "5"),
    ],
)
def test_shortest(value, text):
    assert decimal_text.shortest(value) == text


@settings(deadline=None)  # a busy machine is no reason to fail
@given(finite)
def test_shortest_reads_back_equal_and_stays_plain(value):
    text = decimal_text.shortest(value)
    assert float(text) == value
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    assert re.fullmatch(r"-?[0-9]+(\.[0-9]*[1-9])?", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42.50", 42.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("+5", 5.0),
        ("-7", -7.0),
        ("007", 7.0),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ("2.5e-1", 0.25),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_parse(text, value):
    assert decimal_text.parse(text) == value


@pytest.mark.parametrize("text", ["nan", "NaN", "-NAN"])
def test_parse_keeps_nan_apart_from_nonsense(text):
    value = decimal_text.parse(text)
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", " 1", "1 ", "1\n", "1_0", ".", "e5", "1e", "1e+", "--1", "+-1", "0x10", "1,5", "٣", "１", "infinit", "a"],
)
def test_parse_refuses(text):
    assert decimal_text.parse(text) is None


@settings(deadline=None)  # a busy machine is no reason to fail
@given(finite)
def test_parse_reads_what_shortest_writes(value):
    assert decimal_text.parse(decimal_text.shortest(value)) == value
