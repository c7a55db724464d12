"""The canonical form of published identifiers: what is remembered never changes what comes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.notification import Draft
from aviso_server.model.schema import EventType
from tests.model.event_types import event_type

FIELDS: dict[str, Any] = {
    "zone": "StringHandler",
    "step": {"type": "IntHandler", "range": [0, 100_000]},
    "time": "TimeHandler",
    "level": "FloatHandler",
}
ORDERS = [["step", "zone", "time", "level"], ["time", "step"], ["zone"]]


def fresh(order: list[str]) -> EventType:
    """The event type, with nothing remembered."""
    return event_type("tide", FIELDS, base="tides", order=order)


def outcome(kind: EventType, identifier: dict[str, Any]) -> Draft | tuple[str, str | None]:
    try:
        return kind.check(identifier, 1)
    except InvalidRequest as error:
        return error.message, error.field


EQUAL = [0, False, 1, True, 1.0, "1", "01", "true", 6, 6.0, "6", "0600", 12]  # some of these equal each other
ENCODED = ["*", "", "a.b", "50%", "\u00fc", "x" * 65]
REFUSED = [None, [1], {"a": 1}, -1, 100_001, 0.5]
VALUES = st.sampled_from([*EQUAL, *ENCODED, *REFUSED])
IDENTIFIERS = st.fixed_dictionaries(dict.fromkeys(FIELDS, VALUES)) | st.dictionaries(
    st.sampled_from([*FIELDS, "other"]), VALUES, max_size=5
)


@pytest.mark.parametrize("order", ORDERS)
@given(st.lists(IDENTIFIERS, min_size=1, max_size=12))
def test_what_was_seen_before_changes_nothing(order: list[str], identifiers: list[dict[str, Any]]) -> None:
    warm = fresh(order)
    for identifier in [*identifiers, *identifiers]:
        assert outcome(warm, identifier) == outcome(fresh(order), identifier)


def test_equal_values_of_other_types_are_told_apart() -> None:
    kind = fresh(ORDERS[0])
    row = {"zone": 1, "step": 1, "time": 1, "level": 1}
    for _ in range(2):
        assert kind.check(row).topic == "tides.1.1.0100.1"
    assert kind.check({**row, "zone": True}).topic == "tides.1.true.0100.1"
    assert kind.check({**row, "zone": 1.0}).topic == "tides.1.1%2E0.0100.1"
    assert kind.check(row).topic == "tides.1.1.0100.1"


def test_more_values_than_are_remembered() -> None:
    kind = fresh(ORDERS[0])
    for _ in range(2):
        for step in range(0, 10_000, 7):
            for form in (step, str(step), f"0{step}"):
                draft = kind.check({"zone": f"z{step}", "step": form, "time": "6", "level": step})
                assert draft.topic == f"tides.{step}.z{step}.0600.{step}"
                expected = b'{"level":"%d","step":"%d","time":"0600","zone":"z%d"}' % (step, step, step)
                assert draft.identifier == expected


def test_a_wildcard_stays_out_of_the_identifier() -> None:
    kind = fresh(ORDERS[0])
    for zone, member in (("*", b""), ("a", b',"zone":"a"'), ("*", b"")):
        draft = kind.check({"zone": zone, "step": 1, "time": "6", "level": 2})
        assert draft.identifier == b'{"level":"2","step":"1","time":"0600"%b}' % member
