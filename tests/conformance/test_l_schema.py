"""L. Schema."""

from __future__ import annotations

from typing import Any

from tests.conformance.expectations import UUID
from tests.conformance.samples import EVENT_TYPES
from tests.harness import Client

DATE = {"type": "DateHandler", "canonical_format": "%Y%m%d", "required": False}
TIME = {"type": "TimeHandler", "required": False}
LETTERS = list("abcdefghijklmnopqrstuvwxyz")
FORECAST = {
    "expver": {"type": "ExpverHandler", "default": "0001", "required": False},
    "domain": {"type": "EnumHandler", "values": LETTERS, "required": False},
    "date": DATE,
    "time": TIME,
    "stream": {"type": "StringHandler", "max_length": None, "required": False},
    "step": {"type": "IntHandler", "range": [0, 100000], "required": False},
}
REGIONS = ["north", "south", "east", "west"]

SCHEMAS: dict[str, dict[str, Any]] = {
    "extreme_event": {
        "payload": {"required": False},
        "identifier": {
            "region": {"type": "EnumHandler", "values": REGIONS, "required": True},
            "run_time": {"type": "TimeHandler", "required": True},
            "severity": {"type": "IntHandler", "range": [1, 7], "required": True},
            "anomaly": {"type": "FloatHandler", "range": [0, 100], "required": False},
            "polygon": {"type": "PolygonHandler", "required": False},
        },
    },
    "test_polygon": {
        "payload": {"required": True},
        "identifier": {"date": DATE, "time": TIME, "polygon": {"type": "PolygonHandler", "required": True}},
    },
    "test_polygon_optional": {
        "payload": {"required": True},
        "identifier": {"date": DATE, "time": TIME, "polygon": {"type": "PolygonHandler", "required": False}},
    },
    "mars": {
        "payload": {"required": False},
        "identifier": {
            "class": {
                "type": "StringHandler",
                "max_length": 2,
                "required": True,
                "description": "MARS class of the data",
            },
            **FORECAST,
        },
    },
    "dissemination": {
        "payload": {"required": True},
        "identifier": {
            "destination": {"type": "StringHandler", "max_length": None, "required": True},
            "target": {"type": "StringHandler", "max_length": None, "required": False},
            "class": {"type": "StringHandler", "max_length": 2, "required": True},
            **FORECAST,
        },
    },
    "extreme": {
        "payload": {"required": False},
        "identifier": {
            "region": {"type": "EnumHandler", "values": REGIONS, "required": False},
            "run_time": TIME,
            "severity": {"type": "IntHandler", "range": [1, 7], "required": False},
            "anomaly": {"type": "FloatHandler", "range": [0, 200], "required": False},
        },
    },
    "probe": {
        "payload": None,
        "identifier": {
            "txt": {"type": "StringHandler", "max_length": 5, "required": False},
            "num": {"type": "IntHandler", "range": None, "required": False},
            "flt": {"type": "FloatHandler", "range": None, "required": False},
            "exp": {"type": "ExpverHandler", "default": None, "required": False},
            "day": {"type": "DateHandler", "canonical_format": "%Y-%m-%d", "required": False},
            "clock": TIME,
            "kind": {"type": "EnumHandler", "values": ["Red", "blue"], "required": False},
            "off": {"type": "StringHandler", "max_length": None, "required": False},
            "offnum": {"type": "IntHandler", "range": None, "required": False},
        },
    },
}


def test_case_172_list(api: Client) -> None:
    response = api.get("/api/v1/schema")
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    assert UUID.fullmatch(response.header("x-request-id") or "")
    listing = response.json()
    assert set(listing) == {"status", "total_schemas", "event_types", "schema"}
    assert listing["status"] == "success"
    assert listing["total_schemas"] == 7
    assert sorted(listing["event_types"]) == EVENT_TYPES
    assert listing["schema"] == SCHEMAS
    for hidden in (b'"topic"', b'"storage_policy"', b'"auth"', b'"key_order"', b'"base"', b'"endpoint"'):
        assert hidden not in response.body


def test_case_173_one(api: Client) -> None:
    response = api.get("/api/v1/schema/mars")
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    assert response.json() == {"status": "success", "event_type": "mars", "schema": SCHEMAS["mars"]}


def test_case_174_no_payload_block(api: Client) -> None:
    assert api.get("/api/v1/schema/probe").json()["schema"] == SCHEMAS["probe"]


def test_case_175_unknown(api: Client) -> None:
    for name in ("nope", "MARS", "diss", "a%20b"):
        response = api.get(f"/api/v1/schema/{name}")
        assert response.status == 404
        assert response.header("content-type") == "application/json"
        refusal = response.json()
        assert set(refusal) == {"status", "message", "available_types", "request_id"}
        assert refusal["status"] == "error"
        assert sorted(refusal["available_types"]) == EVENT_TYPES
        assert refusal["request_id"] == response.header("x-request-id")


def test_path_segments_are_decoded(api: Client) -> None:
    assert api.get("/api/v1/schema/m%61rs").json()["event_type"] == "mars"


def test_credentials_are_ignored_without_authentication(api: Client) -> None:
    for value in ("BadScheme x", "Bearer nonsense", "Basic bm9ib2R5Om5vdGhpbmc="):
        assert api.request("GET", "/api/v1/schema", headers=[("Authorization", value)]).status == 200
