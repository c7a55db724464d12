"""Topics: the percent codec, its laws and its tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model.topic import build, decode, display, encode, parse

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
TRICKY = st.text(alphabet="%.*>25EAeaé0 ")

ENCODED = [
    ("1.45", "1%2E45"),
    ("1*34", "1%2A34"),
    ("1>0", "1%3E0"),
    ("1%25", "1%2525"),
    ("1.45*foo>bar%baz", "1%2E45%2Afoo%3Ebar%25baz"),
    ("", ""),
    ("a b/c", "a b/c"),
    ("zürich\n", "zürich\n"),
]


@pytest.mark.parametrize(("logical", "wire"), ENCODED)
def test_encoding_table(logical: str, wire: str) -> None:
    assert encode(logical) == wire
    assert decode(wire) == logical


@pytest.mark.parametrize(
    ("wire", "logical"),
    [("1%25", "1%"), ("1%2525", "1%25"), ("%2e", "."), ("%41", "A"), ("%C3%A9", "é"), ("%c3%a9x", "éx"), ("%00", "\0")],
)
def test_any_pair_of_hex_digits_is_decoded_once(wire: str, logical: str) -> None:
    assert decode(wire) == logical


@pytest.mark.parametrize("wire", ["%", "%2", "%2G", "a%ZZ", "%FF", "%%41", "%C3", "%2E%", "%+1", "% 1", "%-1", "%２５"])
def test_malformed_tokens_are_refused(wire: str) -> None:
    with pytest.raises(ValueError):
        decode(wire)
    with pytest.raises(ValueError):
        parse(f"mars.{wire}.od")
    assert display(f"mars.{wire}.od") == f"mars.{wire}.od"


@given(TEXTS | TRICKY)
def test_what_was_encoded_is_decoded(token: str) -> None:
    assert decode(encode(token)) == token


@given(TEXTS | TRICKY)
def test_an_encoded_token_is_safe_on_a_broker(token: str) -> None:
    assert not set(encode(token)) & set(".*>")


@given(st.lists(TEXTS | TRICKY, min_size=1))
def test_what_was_built_is_parsed(tokens: list[str]) -> None:
    topic = build(tokens)
    assert parse(topic) == tokens
    assert topic.count(".") == len(tokens) - 1
    assert display(topic) == ".".join(tokens)


@given(TRICKY, TRICKY)
def test_different_tokens_stay_different(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


def test_topics_of_the_contract() -> None:
    assert build(["diss", "FOO", "target.v1", "od"]) == "diss.FOO.target%2Ev1.od"
    assert display("diss.FOO.%2A.od") == "diss.FOO.*.od"
    assert build(["extreme_event", "north", "1200", "3", "42.5", "*"]) == "extreme_event.north.1200.3.42%2E5.%2A"
    assert parse("mars..x") == ["mars", "", "x"]
