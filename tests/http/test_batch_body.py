"""A batch is cut into its notifications without decoding it, and means what a decoder makes of the whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest, MalformedRequest, RequestError
from aviso_server.http.request import MAX_VALUES, read_batch
from aviso_server.http.response import HttpError

LONG = 300_000  # bytes: several slices
MISLEADING: list[Any] = [
    *({}, {"a": {}}, [{}, {}], [[], {"a": [{}, {}]}], "},{", '"},{"', "\\", '\\"},{', "]", ",", 1, None, 1.5, "", []),
    {"},{": '{"a":[},{'},
    {"a": [{"b": "}, {"}, {"c": "x" * 500}]},
]
ITEMS = st.lists(st.sampled_from(MISLEADING) | st.recursive(st.text(), st.lists, max_leaves=5), min_size=1, max_size=8)


def read(body: bytes, by_line: bool = False, most: int = 10**6, longest: int = 10**7) -> list[Any]:
    content_type = b"application/x-ndjson" if by_line else b""
    batch = asyncio.run(read_batch(content_type, body, most, longest))
    found = [item for run in batch.runs() for item in run]
    assert batch.size == len(found) or batch.size > most
    return found


@settings(deadline=None, max_examples=60)
@given(ITEMS, st.sampled_from([",", " ,\n", ",\r\n\t"]), st.sampled_from(["", " ", "\n "]))
def test_the_items_are_those_of_the_array(items: list[Any], comma: str, blank: str) -> None:
    texts = [json.dumps(item) for item in items]
    some = comma.join(texts)
    times = 1 + LONG // (len(some) + 1)
    body = f"{blank}[{blank}{comma.join([some] * times)}{blank}]{blank}".encode()
    assert read(body) == items * times


@settings(deadline=None, max_examples=60)
@given(ITEMS, st.integers(min_value=0), st.binary(max_size=3))
def test_what_is_no_json_is_refused(items: list[Any], place: int, other: bytes) -> None:
    """Whatever a decoder of the whole refuses is refused, and nothing else."""
    some = json.dumps(items)[1:-1]
    body = f"[{','.join([some] * (1 + LONG // (len(some) + 1)))}]".encode()
    at = place % len(body)
    broken = body[:at] + other + body[at + 1 :]
    try:
        expected = orjson.loads(broken)
    except ValueError:
        expected = None
    if isinstance(expected, list):
        assert read(broken) == expected
    else:
        with pytest.raises(MalformedRequest):
            read(broken)


@pytest.mark.parametrize("end", [b"1,]", b"1, \n ]", b"1]]", b"1],[1]", b'"]', b"1", b"1]x", b"1}"])
@pytest.mark.parametrize("times", [0, 50_000, 32_766])
def test_ends_that_are_wrong(end: bytes, times: int) -> None:
    with pytest.raises(MalformedRequest) as refusal:
        read(b"[" + b"1," * times + end)
    assert refusal.value.code == "INVALID_JSON"


@settings(deadline=None, max_examples=30)
@given(ITEMS)
def test_lines(items: list[Any]) -> None:
    some = b"\n".join(json.dumps(item).encode() for item in items)
    times = 1 + LONG // (len(some) + 1)
    body = b"\n\n \r\n".join([some] * times)
    assert read(body, by_line=True) == items * times
    found = read(body + b'\n{"a\n' + some, by_line=True)
    assert [type(item) for item in found if isinstance(item, RequestError)] == [MalformedRequest]
    assert len(found) == len(items) * (times + 1) + 1


def test_a_long_one_and_a_deep_one_do_not_harm_the_others() -> None:
    for by_line, separator in ((False, b","), (True, b"\n")):
        body = separator.join([b'{"a":1}', b'"' + b"x" * 5000 + b'"', b"[" * 128 + b"]" * 128, b"2"])
        first, long, deep, last = read(body if by_line else b"[%b]" % body, by_line, longest=5000)
        assert (first, last) == ({"a": 1}, 2)
        assert isinstance(long, InvalidRequest)
        assert "5002 bytes; the limit is 5000" in long.message
        assert isinstance(deep, RequestError)
        assert "nest" in deep.message


def test_too_many_are_counted_and_not_kept() -> None:
    batch = asyncio.run(read_batch(b"", b"[" + b"[]," * 2_700_000 + b"[]]", 10_000, 10**6))
    assert batch.size == 2_700_001
    assert list(batch.runs()) == []


@pytest.mark.parametrize("by_line", [False, True])
def test_too_many_values_are_refused_before_they_are_decoded(by_line: bool) -> None:
    item = b'{"payload":[' + b"[]," * (MAX_VALUES // 20) + b"1]}"
    body = (b"\n" if by_line else b",").join([item] * 11)
    with pytest.raises(HttpError) as refusal:
        read(body if by_line else b"[%b]" % body, by_line)
    assert refusal.value.status == 413
    assert str(MAX_VALUES) in str(refusal.value.message)


def test_commas_in_texts_are_no_values() -> None:
    text = "," * 200_000
    assert read(json.dumps([text] * 10).encode()) == [text] * 10
