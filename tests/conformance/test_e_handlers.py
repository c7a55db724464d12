"""E. Handlers: what each field type accepts and what it makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.expectations import INR, assert_refused
from tests.conformance.samples import MARS, PROBE, but
from tests.harness import Client


def canonical(api: Client, event_type: str, identifier: dict[str, Any], field: str) -> str:
    """Publish, read back, and return what became of the field."""
    api.publish(event_type, identifier)
    (event,) = api.replay(event_type, {"class": "od"} if event_type == "mars" else {}).notifications
    value: str = event["data"]["identifier"][field]
    return value


def accepts(field: str, values: dict[Any, str]) -> Any:
    return pytest.mark.parametrize(("given", "text"), values.items(), ids=[f"{field}-{given!r}" for given in values])


def refuses(field: str, *values: Any) -> Any:
    return pytest.mark.parametrize("given", values, ids=[f"{field}-{given!r}" for given in values])


@accepts("txt", {"hello": "hello", " a ": " a ", "héll": "héll", "  ": "  ", "\x01": "\x01", 5: "5", True: "true"})
def test_case_071_txt(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, txt=given), "txt") == text


@refuses("txt", "héllo", "hello!", "")
def test_case_071_txt_refused(api: Client, given: Any) -> None:
    assert_refused(api.notify("probe", but(PROBE, txt=given)), INR, "txt")


INTEGERS = {
    "0042": "42",
    "+5": "5",
    "-0": "0",
    "-7": "-7",
    "9223372036854775807": "9223372036854775807",
    "-9223372036854775808": "-9223372036854775808",
    5: "5",
}


@accepts("num", INTEGERS)
def test_case_072_num(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, num=given), "num") == text


@refuses(
    "num",
    "9223372036854775808",
    "-9223372036854775809",
    " 5",
    "5 ",
    "5\n",
    "5.0",
    "1e3",
    "1_0",
    "",
    "+",
    "--5",
    "٥",
    "0x1",
    5.0,
    True,
)
def test_case_072_num_refused(api: Client, given: Any) -> None:
    assert_refused(api.notify("probe", but(PROBE, num=given)), INR, "num")


FLOATS = {
    "42.50": "42.5",
    "5.0": "5",
    "1e21": "1000000000000000000000",
    "1e-7": "0.0000001",
    ".5": "0.5",
    "1.": "1",
    "-0.0": "-0",
    "+1.5E2": "150",
    "0.1": "0.1",
    "123456789.123456789": "123456789.12345679",
    "1e-400": "0",
    5.0: "5",
    7: "7",
}


@accepts("flt", FLOATS)
def test_case_073_flt(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, flt=given), "flt") == text


@refuses("flt", "NaN", "inf", "-Infinity", "1e400", " 1", "1 ", "1\n", "", ".", "1_0", "1e", "0x1p3", "١", "1,5", True)
def test_case_073_flt_refused(api: Client, given: Any) -> None:
    assert_refused(api.notify("probe", but(PROBE, flt=given)), INR, "flt")


EXPVERS = {
    "1": "0001",
    "00001": "0001",
    "+1": "0001",
    "99999": "99999",
    "4294967295": "4294967295",
    "4294967296": "4294967296",
    "PROD": "prod",
    "dev-V2.1": "dev-v2.1",
    7: "0007",
}


@accepts("exp", EXPVERS)
def test_case_074_exp(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, exp=given), "exp") == text


def test_case_074_exp_empty(api: Client) -> None:
    assert_refused(api.notify("probe", but(PROBE, exp="")), INR, "exp")
    assert canonical(api, "mars", but(MARS, expver=""), "expver") == "0001"


DAYS = {
    "2025-12-25": "2025-12-25",
    "20251225": "2025-12-25",
    "2025-359": "2025-12-25",
    "2025-1-5": "2025-01-05",
    "2025-12": "2025-01-12",
    "2025125": "2025-12-05",
    "25-12-20": "0025-12-20",
    "2024-366": "2024-12-31",
    "2024-02-29": "2024-02-29",
    " 2025- 1- 5": "2025-01-05",
    20250706: "2025-07-06",
}


@accepts("day", DAYS)
def test_case_075_day(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, day=given), "day") == text


@refuses(
    "day",
    "202512",
    "2025",
    "2025/12/25",
    "2025-02-30",
    "2025-366",
    "2025-000",
    "2025-12-25T00:00:00",
    "2025-12-25 ",
    "2025-12-25\n",
    "2025-02-29",
    "2025-13-01",
    "٢٠٢٥-١٢-٢٥",
    "",
)
def test_case_075_day_refused(api: Client, given: Any) -> None:
    assert_refused(api.notify("probe", but(PROBE, day=given)), INR, "day")


@pytest.mark.parametrize("given", ["2025-07-06", "20250706", 20250706], ids=repr)
def test_case_075_other_format(api: Client, given: Any) -> None:
    assert canonical(api, "mars", but(MARS, date=given), "date") == "20250706"


CLOCKS = {
    "0": "0000",
    "9": "0900",
    "09": "0900",
    "23": "2300",
    "9:05": "0905",
    "14:30": "1430",
    "1430": "1430",
    0: "0000",
    1200: "1200",
}


@accepts("clock", CLOCKS)
def test_case_076_clock(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, clock=given), "clock") == text


@refuses(
    "clock",
    "24",
    "24:00",
    "2400",
    "12:60",
    "1260",
    "12:5",
    "123",
    "12345",
    " 12",
    "12:30\n",
    "12.30",
    "",
    "1:2:3",
    ":30",
    "٠٩",
    "٠٩٠٠",
)
def test_case_076_clock_refused(api: Client, given: Any) -> None:
    assert_refused(api.notify("probe", but(PROBE, clock=given)), INR, "clock")


@accepts("kind", {"RED": "red", "red": "red", "Red": "red", "Blue": "blue"})
def test_case_077_kind(api: Client, given: Any, text: str) -> None:
    assert canonical(api, "probe", but(PROBE, kind=given), "kind") == text


@refuses("kind", "green", "", " red", "re", 1)
def test_case_077_kind_refused(api: Client, given: Any) -> None:
    assert_refused(api.notify("probe", but(PROBE, kind=given)), INR, "kind")


def test_case_078_fields_outside_key_order_are_kept(api: Client) -> None:
    """The whole canonical identifier is delivered, not only what the topic holds."""
    api.publish("probe", but(PROBE, offnum="007"))
    (event,) = api.replay("probe", {}).notifications
    assert event["data"]["identifier"] == {
        "txt": "a",
        "num": "1",
        "flt": "1",
        "exp": "x",
        "day": "2025-01-01",
        "clock": "1200",
        "kind": "red",
        "off": "o",
        "offnum": "7",
    }


def test_case_079_message_and_details(api: Client) -> None:
    refusal = assert_refused(api.notify("probe", but(PROBE, num="4x")), INR, "num", "4x")
    assert refusal["details"] != refusal["message"]


def test_field_rules_hold_on_reading_too(api: Client) -> None:
    api.publish("probe", PROBE, "here")
    for field, value in {"num": "+01", "flt": "1.0", "day": "2025-001", "clock": "12:00", "kind": "RED"}.items():
        assert len(api.replay("probe", {field: value}).notifications) == 1, field
