"""The canonical form of stored rows: what the model writes is right, and everything else is named."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from aviso_server.model.event_type import EventType, GenericType, build_event_type
from aviso_server.model.shapes import with_text
from aviso_server.spark.audit_comparison import FormCheck, with_arrays
from tests.spark.scene import CONFIGURATION, SQUARE, flood


def built(name: str = "flood", **changes: Any) -> EventType:
    definition = CONFIGURATION["notification_schema"][name]
    found, problems = build_event_type(name, {**definition, "identifier": {**definition["identifier"], **changes}})
    assert found is not None, problems
    return found


FLOOD = built()


def outcome(kind: Any, topic: str | None, identifier: bytes, payload: bytes = b"null", layout: bool = True) -> Any:
    found = FormCheck(kind, layout).outcomes([topic], [identifier], [payload])
    return found.get(0, (None, False))


@given(
    some.lists(
        some.tuples(
            some.sampled_from(["north", "south", "NORTH"]),
            some.sampled_from(["12", "12:00", "0600"]),
            some.integers(1, 7),
            some.floats(-1e6, 1e6),
            some.recursive(some.none() | some.integers() | some.text(), some.lists),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_the_model_writes_is_right(rows: list[tuple[str, str, int, float, Any]]) -> None:
    drafts = [
        FLOOD.check(
            {
                "region": region,
                "time": time,
                "date": "2025-07-06",
                "severity": severity,
                "depth": depth,
                "polygon": SQUARE,
            },
            payload,
        )
        for region, time, severity, depth, payload in rows
        if not isinstance(payload, int) or -(2**63) <= payload < 2**63
    ]
    topics, identifiers = [each.topic for each in drafts], [each.identifier for each in drafts]
    assert FormCheck(FLOOD, True).outcomes(topics, identifiers, [each.payload for each in drafts]) == {}


def test_wildcards_are_left_out_of_identifiers_and_right() -> None:
    draft = built("tide").check({"port": "*", "severity": "high", "version": "7"}, 1)
    assert b"port" not in draft.identifier
    assert outcome(built("tide"), draft.topic, draft.identifier, draft.payload) == (None, False)


def test_generic_notifications() -> None:
    kind = GenericType("ferry")
    draft = kind.check({"b": "x.y", "a": 1, "c": "*"}, {"z": 1})
    assert outcome(kind, draft.topic, draft.identifier, draft.payload) == (None, False)
    assert outcome(kind, "ferry.1.other", draft.identifier)[0].startswith("topic: expected ferry.1.x%2Ey")
    assert outcome(kind, "ferry.1", b'{"a":1}')[0] == "identifier: field 'a' is not a text with something in it"


RIGHT = FLOOD.check(flood(3), {"n": 3})


@pytest.mark.parametrize(
    ("identifier", "payload", "words"),
    [
        (RIGHT.identifier.replace(b":", b": ", 1), RIGHT.payload, "identifier: not compact with sorted keys"),
        (RIGHT.identifier.replace(b'"1200"', b'"12:00"'), RIGHT.payload, "identifier: expected {"),
        (RIGHT.identifier.replace(b'"4"', b'"9"'), RIGHT.payload, "identifier: "),
        (RIGHT.identifier.replace(b"{", b"["), RIGHT.payload, "identifier: not JSON"),
        (b"[]", RIGHT.payload, "identifier: not an object"),
        (RIGHT.identifier, b'{"n": 3}', "payload: not compact with sorted keys"),
        (RIGHT.identifier, b'{"n":3', "payload: not JSON"),
        (RIGHT.identifier.replace(b"north", b"south"), RIGHT.payload, "topic: expected floods.south."),
    ],
)
def test_a_wrong_form_is_named(identifier: bytes, payload: bytes, words: str) -> None:
    assert identifier != RIGHT.identifier or payload != RIGHT.payload
    fault, foreign = outcome(FLOOD, RIGHT.topic, identifier, payload)
    assert fault is not None
    assert fault.startswith(words)
    assert not foreign


def test_topics_are_left_alone_where_nobody_knows_their_layout() -> None:
    assert outcome(FLOOD, "floods.anything", RIGHT.identifier, RIGHT.payload, layout=False) == (None, False)
    assert outcome(FLOOD, None, RIGHT.identifier, RIGHT.payload) == (None, False)


def test_other_fields_are_another_schema_and_no_fault() -> None:
    newer = built(height={"type": "IntHandler", "required": True})
    assert outcome(newer, RIGHT.topic, RIGHT.identifier, RIGHT.payload) == (None, True)
    older = FLOOD.check(flood(3)).identifier.replace(b'{"date"', b'{"colour":"red","date"')
    assert outcome(FLOOD, RIGHT.topic, older) == (None, True)


def test_one_bad_row_does_not_spoil_the_others_and_the_check_pickles() -> None:
    check = pickle.loads(pickle.dumps(FormCheck(FLOOD, True)))
    found = check.outcomes([RIGHT.topic] * 3, [RIGHT.identifier, b"nothing", RIGHT.identifier], [b"1", b"2", b"3"])
    assert list(found) == [1]
    assert found[1] == (found[1][0], False) != (None, False)


def test_polygons_as_older_servers_wrote_them_are_right() -> None:
    """Their text stands for the same polygon, in the identifier and in a topic that has a place for it."""
    definition = CONFIGURATION["notification_schema"]["flood"]
    order = {"base": "floods", "key_order": ["region", "polygon"]}
    placed, _ = build_event_type("flood", {**definition, "topic": order})
    assert placed is not None
    draft = placed.check(flood(3), 1)
    identifier = with_text(draft.identifier)
    assert b'"polygon":"(' in identifier
    assert outcome(placed, f"floods.north.{SQUARE}", identifier) == (None, False)
    assert outcome(placed, draft.topic, draft.identifier) == (None, False)
    assert outcome(placed, "floods.north.(0,0,0,3,3,3,0,0)", identifier)[0].startswith("topic: expected")
    assert with_arrays(pa.array([identifier.decode(), None])).to_pylist() == [draft.identifier.decode(), None]
