"""JSON in and out, and decimal text: the traps of the contract."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest, MalformedRequest
from aviso_server.model import json_text
from aviso_server.model.json_text import compact, deeper_than, identifier_text, loads


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"NaN", b'{"a":NaN}', b"[Infinity]", b"[-Infinity]", b"1e400", b"[-1e999]", b'"\\ud800"'),
        *(b'{"\\udfff":1}', b'"\\ud800\\u0041"', b"\xef\xbb\xbf{}", b"{} x", b"{}{}", b'{"a":1,}', b"[1,]", b"{'a':1}"),
        *(
            b"// note\n{}",
            b"/* */ {}",
            b"\xff",
            b'"\xc3\x28"',
            b"01",
            b"+1",
            b".5",
            b"1.",
            b'"\t"',
            b"tru",
            b"[",
            b'{"a"}',
        ),
        *(b"[" * 2000, b"[" * 2000 + b"]" * 2000),
    ],
)
def test_what_is_not_json(body: bytes) -> None:
    with pytest.raises(MalformedRequest) as refusal:
        loads(body)
    assert refusal.value.code == "INVALID_JSON"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'"\\ud83d\\ude00"', "😀"),
        (b" \n[1, 2.5, true, null] ", [1, 2.5, True, None]),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", float(2**64)),
        (b"-9223372036854775808", -(2**63)),
        (b"1e308", 1e308),
        (b"5", 5),
    ],
)
def test_what_is_json(body: bytes, value: object) -> None:
    found = loads(body)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_limit(opening: bytes, closing: bytes) -> None:
    loads(opening * 127 + b"1" + closing * 127)
    with pytest.raises(MalformedRequest, match="127 levels") as refusal:
        loads(opening * 128 + b"1" + closing * 128)
    assert refusal.value.code == "INVALID_JSON"


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 500 + b"[]]",
        b'["' + b"[" * 500 + b'"]',
        b'["\\"' + b"{" * 500 + b'","\\\\",[]]',
        b'{"' + b"[" * 500 + b'":1}',
    ],
)
def test_many_brackets_are_not_depth(body: bytes) -> None:
    assert not deeper_than(body, 127)
    loads(body)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text('[]{}"\\ x', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3),
    max_leaves=40,
)


@given(VALUES, st.integers(0, 4))
def test_depth_is_counted_outside_of_strings(value: Any, limit: int) -> None:
    assert deeper_than(json.dumps(value).encode(), limit) == (depth(value) > limit)


@pytest.mark.parametrize("brackets", [10, 500, 501, 5_000])
def test_depth_is_the_same_in_short_and_long_texts(brackets: int) -> None:
    body = b"[" + b",".join([b"[]"] * (brackets - 5)) + b',{"]":[[[]]]}]'
    assert deeper_than(body, 4)
    assert not deeper_than(body, 5)


@pytest.mark.parametrize("levels", [1, 2, 50, 63, 64])
@pytest.mark.parametrize("before", [b"", b"[],", b"{},[[]],"])
def test_depth_of_arrays_in_objects_in_arrays(levels: int, before: bytes) -> None:
    body = b"[%b%b%b]" % (before, b'{"a":[' * levels, b"]}" * levels)
    assert deeper_than(body, 2 * levels)
    assert not deeper_than(body, 2 * levels + 1)


@pytest.mark.parametrize("body", [b"[" * 200 + b'"' + b'\\"' * 100_000, b"[" * 200 + b'"' * 100_001, b'"[' * 100_000])
def test_broken_strings_are_refused_quickly(body: bytes) -> None:
    before = time.process_time()
    with pytest.raises(MalformedRequest):
        loads(body)
    assert time.process_time() - before < 0.5


@given(VALUES)
def test_compact_text_is_sorted_and_read_back(value: Any) -> None:
    text = compact(value)
    assert loads(text) == value
    assert text == json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def test_compact_keeps_other_scripts_and_plain_floats() -> None:
    assert compact({"ü": "é", "a": 1.0, "b": 0.1}) == '{"a":1.0,"b":0.1,"ü":"é"}'.encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(("x", "x"), ("", ""), (5, "5"), (5.0, "5.0"), (1000.0, "1000.0"), (True, "true"), (False, "false")),
        *((1e15, "1000000000000000.0"), (1e16, "1e+16"), (-1.5e300, "-1.5e+300"), (1e-5, "0.00001"), (1e-6, "1e-6")),
    ],
)
def test_scalars_as_text(value: object, text: str) -> None:
    assert identifier_text("step", value) == text


@pytest.mark.parametrize(("value", "word"), [(None, "null"), ([1], "an array"), ({"a": 1}, "an object")])
def test_no_text_for_other_values(value: object, word: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^Field 'step' .* got {word}$"):
        identifier_text("step", value)


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
    assert json_text.shortest(value) == text


@given(finite)
def test_shortest_reads_back_equal_and_stays_plain(value):
    text = json_text.shortest(value)
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
    assert json_text.parse(text) == value


@pytest.mark.parametrize("text", ["nan", "NaN", "-NAN"])
def test_parse_keeps_nan_apart_from_nonsense(text):
    value = json_text.parse(text)
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", " 1", "1 ", "1\n", "1_0", ".", "e5", "1e", "1e+", "--1", "+-1", "0x10", "1,5", "٣", "１", "infinit", "a"],
)
def test_parse_refuses(text):
    assert json_text.parse(text) is None


@given(finite)
def test_parse_reads_what_shortest_writes(value):
    assert json_text.parse(json_text.shortest(value)) == value
