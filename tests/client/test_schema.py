"""The catalogue of event types as the client shows it."""

from __future__ import annotations

import json

import pytest
from pyaviso import AvisoClient, HttpError

EVENT_TYPES = ["area", "buoys", "delivery", "storm", "tide", "wave"]


def test_catalogue_lists_every_event_type(client: AvisoClient) -> None:
    catalogue = client.schema()
    assert catalogue.status == "success"
    assert sorted(catalogue.event_types) == EVENT_TYPES
    assert sorted(catalogue.schema) == EVENT_TYPES
    assert catalogue.total_schemas == len(EVENT_TYPES)


def test_one_event_type_shows_its_fields(client: AvisoClient) -> None:
    answer = client.schema_for("delivery")
    assert (answer.status, answer.event_type) == ("success", "delivery")
    assert answer.schema["payload"] == {"required": True}
    assert set(answer.schema["identifier"]) == {"customer", "item"}
    customer = answer.schema["identifier"]["customer"]
    assert (customer["type"], customer["required"]) == ("StringHandler", True)
    assert (customer["max_length"], customer["description"]) == (8, "Who gets it")
    storm = client.schema_for("storm").schema["identifier"]
    assert storm["severity"]["range"] == [1, 7]
    assert storm["region"]["values"] == ["north", "south", "east", "west"]


@pytest.mark.parametrize("name", ["nope", "a b", "é", "a@b"])
def test_unknown_event_type_is_not_found_and_the_known_ones_are_listed(client: AvisoClient, name: str) -> None:
    with pytest.raises(HttpError) as refusal:
        client.schema_for(name)
    assert refusal.value.status == 404
    body = json.loads(refusal.value.body)
    assert body["available_types"] == EVENT_TYPES
    assert f"'{name}'" in body["message"]
    assert refusal.value.request_id == body["request_id"]
