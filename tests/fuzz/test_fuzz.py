"""No reader of outside text fails with anything but a refusal: on the kept corpus, and on made-up values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
PAIRS = st.lists(st.lists(NUMBERS | st.floats(-90, 90), min_size=1, max_size=3), max_size=6)
TEXTS = (
    st.text(max_size=60)
    | st.text('0123456789+-.eE,;:()[]{}"TZ tz%*> \x1c\u00a0\u0660\u212a', max_size=60)
    | NUMBERS.map(str)
    | st.datetimes().map(str)
    | PAIRS.map(lambda pairs: "(" + ",".join(str(number) for pair in pairs for number in pair) + ")")
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | PAIRS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["text", "day", "step", "level", "polygon", "point", "point_cloud", "eq", "in", "between"])
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
REQUESTS = st.fixed_dictionaries(
    {"event_type": st.sampled_from(["plain", "area", "cloud", "other", "a b"]), "identifier": VALUES},
    optional=dict.fromkeys(("payload", "from_id", "from_date", "to_id", "to_date"), VALUES),
)
INPUTS = (
    st.binary(max_size=200)
    | TEXTS.map(str.encode)
    | (VALUES | REQUESTS).map(lambda value: json.dumps(value).encode())
    | st.lists(TEXTS, max_size=6).map(lambda lines: "\n".join(lines).encode())
)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=200)
@given(data=INPUTS)
def test_made_up(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kept(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
