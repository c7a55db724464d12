"""The canonical form of published identifiers: what is remembered never changes what comes out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model import event_type as event_types
from aviso_server.model.event_type import MAX_PAYLOAD_DEPTH, EventType
from aviso_server.model.notification import Draft
from tests.model.event_types import EXTREME, SQUARE, event_type

FIELDS: dict[str, Any] = {
    "zone": "StringHandler",
    "step": {"type": "IntHandler", "range": [0, 100_000]},
    "time": "TimeHandler",
    "level": "FloatHandler",
}
ORDERS = [["step", "zone", "time", "level"], ["time", "step"], ["zone"]]
BUILT = {tuple(order): event_type("tide", FIELDS, base="tides", order=order) for order in ORDERS}


def fresh(order: list[str]) -> EventType:
    """The event type, with nothing remembered."""
    return msgspec.structs.replace(BUILT[tuple(order)])


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


PAYLOADS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ACCEPTABLE = st.fixed_dictionaries(
    {
        "zone": st.sampled_from(["a.b", "50%", "\u00fc", "line\nend", "x" * 65, "1", 1]),
        "step": st.sampled_from([0, 1, 12, "12", "012"]),
        "time": st.sampled_from(["6", 6, "0600", "12:30"]),
        "level": st.sampled_from([1, "1.5", "-0"]),
    }
)


@pytest.mark.parametrize("order", ORDERS)
@given(st.lists(st.lists(st.tuples(ACCEPTABLE, PAYLOADS), min_size=1, max_size=5), min_size=1, max_size=4))
def test_many_at_once_come_out_as_one_by_one(order: list[str], batches: list[list[tuple[dict[str, Any], Any]]]) -> None:
    kind = fresh(order)
    for batch in batches:
        expected = [fresh(order).check(*each) for each in batch]
        assert kind.check_all([each[0] for each in batch], [each[1] for each in batch]) == expected


@pytest.mark.parametrize("order", ORDERS)
@given(st.lists(st.lists(IDENTIFIERS, min_size=1, max_size=4), min_size=1, max_size=6))
def test_many_at_once_are_all_accepted_or_left_to_one_by_one(
    order: list[str], batches: list[list[dict[str, Any]]]
) -> None:
    kind = fresh(order)
    for batch in batches:
        found = kind.check_all(batch, [1] * len(batch))
        expected = [outcome(fresh(order), identifier) for identifier in batch]
        assert found is None or found == expected


def test_shapes_are_left_to_one_by_one() -> None:
    row = {"region": "north", "run_time": "12", "severity": 5, "anomaly": 1.5, "polygon": SQUARE}
    assert EXTREME.check(row).box == (0, 0, 2, 2)
    assert EXTREME.check_all([row, row], [None, 1]) is None, "what takes long must not be done twice"


def test_many_at_once_look_at_payloads_too() -> None:
    row = {"zone": "a", "step": 1, "time": "6", "level": 2}
    deep: Any = "x" * 300
    for _ in range(MAX_PAYLOAD_DEPTH):
        deep = [deep]
    kind = fresh(ORDERS[0])
    assert kind.check_all([row, row], [1, deep]) == [kind.check(row, 1), kind.check(row, deep)]
    assert kind.check_all([row, row], [1, [deep]]) is None
    for _ in range(100_000):
        deep = [deep]
    assert kind.check_all([row, row], [1, deep]) is None


def test_many_at_once_and_more_values_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_types, "_BULK_CACHE_SIZE", 10)
    kind = fresh(ORDERS[0])
    for start in range(0, 60, 6):
        rows = [{"zone": "a", "step": step, "time": "6", "level": 2} for step in range(start, start + 6)]
        found = kind.check_all(rows, rows)
        assert found is not None
        assert [draft.topic for draft in found] == [f"tides.{row['step']}.a.0600.2" for row in rows]
    rows = [{"zone": "a", "step": step, "time": "6", "level": 2} for step in range(25)]
    assert kind.check_all(rows, rows) in (None, [kind.check(row, row) for row in rows])
