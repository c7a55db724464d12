"""The OpenAPI document: valid, complete, and with examples that the server it comes from accepts."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

import aviso_server
from tests.harness import Server
from tests.harness.sse import FRAME
from tests.http.configurations import EVERY_FIELD_TYPE, LENIENT, NO_SCHEMA, STRICT_WITHOUT_SCHEMA

CONFIGURATIONS = {
    "every field type": EVERY_FIELD_TYPE,
    "lenient": LENIENT,
    "no schema": NO_SCHEMA,
    "strict without schema": STRICT_WITHOUT_SCHEMA,
}
OPERATIONS = {
    ("get", "/health"): "health",
    ("get", "/ready"): "health",
    ("get", "/"): "general",
    ("get", "/api/v1/schema"): "schema",
    ("get", "/api/v1/schema/{event_type}"): "schema",
    ("post", "/api/v1/notification"): "notification",
    ("post", "/api/v1/notifications"): "notification",
    ("post", "/api/v1/watch"): "streaming",
    ("post", "/api/v1/replay"): "streaming",
    ("post", "/api/v1/explain"): "streaming",
    ("get", "/api/v1/admin/overview"): "admin",
    ("delete", "/api/v1/admin/notification/{notification_id}"): "admin",
    ("delete", "/api/v1/admin/wipe/stream"): "admin",
    ("delete", "/api/v1/admin/wipe/all"): "admin",
    ("get", "/api/v1/auth/check"): "general",
    ("get", "/api/v1/streams"): "streaming",
    ("get", "/api/v1/insight"): "streaming",
    ("get", "/api/v1/insight/{event_type}/{name}"): "streaming",
    **{(method, "/api/v1/subscriptions"): "subscriptions" for method in ("get", "post")},
    **{(method, "/api/v1/subscriptions/{name}"): "subscriptions" for method in ("get", "patch", "put", "delete")},
    **{
        ("post", f"/api/v1/subscriptions/{{name}}/{action}"): "subscriptions"
        for action in (
            *("pause", "resume", "rotate", "test", "dead/retry", "dead/skip"),
            *("pull", "ack", "nack", "extend"),
        )
    },
    **{("get", f"/api/v1/subscriptions/{{name}}/{what}"): "subscriptions" for what in ("deliveries", "dead")},
}
POSTS = ["notification", "watch", "replay", "explain"]
MAKERS = {"HttpError.of", "MalformedRequest", "Endpoint", "RefusedItem"}
CREDENTIALS: list[dict[str, list[str]]] = [{"bearer_jwt": []}, {"basic": []}]
# code, status and where it may come
CATALOGUE = [
    ("INVALID_JSON", "400", POSTS),
    ("UNKNOWN_FIELD", "400", POSTS),
    ("INVALID_REQUEST_SHAPE", "400", POSTS),
    ("UNKNOWN_EVENT_TYPE", "400", POSTS),
    ("INVALID_NOTIFICATION_REQUEST", "400", ["notification"]),
    ("INVALID_WATCH_REQUEST", "400", ["watch", "explain"]),
    ("INVALID_REPLAY_REQUEST", "400", ["replay"]),
    ("UNAUTHORIZED", "401", [*POSTS, "admin/wipe/all", "auth/check"]),
    ("FORBIDDEN", "403", [*POSTS, "admin/wipe/all", "auth/check"]),
    ("TOO_MANY_REQUESTS", "429", [*POSTS, "admin/wipe/all"]),
    ("SERVICE_UNAVAILABLE", "503", [*POSTS, "admin/wipe/all"]),
    ("NOTIFICATION_PROCESSING_FAILED", "500", ["notification"]),
    ("NOTIFICATION_STORAGE_FAILED", "500", ["notification", "notifications"]),
    ("IDEMPOTENCY_KEY_REUSED", "422", ["notification", "notifications"]),
    ("IDEMPOTENCY_KEY_IN_DOUBT", "409", ["notification", "notifications"]),
    ("BATCH_REFUSED", "400", ["notifications"]),
    ("SSE_STREAM_INITIALIZATION_FAILED", "500", ["watch"]),
    ("INVALID_INSIGHT_REQUEST", "400", ["insight/{event_type}/{name}"]),
    ("INSIGHT_NOT_FOUND", "404", ["insight/{event_type}/{name}"]),
    ("INTERNAL_ERROR", "500", POSTS),
]

Document = dict[str, Any]


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATIONS[request.param], tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def document(server: Server) -> Document:
    found: Document = server.client.get("/api-docs/openapi.json").json()
    return found


def operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def bodies(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every body of a request or an answer, with its place."""
    for method, path, operation in operations(document):
        for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
            yield f"{method} {path} {media_type}", body
        for status, answer in operation["responses"].items():
            for media_type, body in answer.get("content", {}).items():
                yield f"{method} {path} {status} {media_type}", body


def validator(document: Document, schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}, validate_formats=True)


def examples(body: dict[str, Any]) -> dict[str, Any]:
    named = {name: example["value"] for name, example in body.get("examples", {}).items()}
    return {**named, **({"example": body["example"]} if "example" in body else {})}


def request_examples(document: Document, path: str) -> dict[str, Any]:
    (operation,) = document["paths"][path].values()
    return examples(operation["requestBody"]["content"]["application/json"])


def test_document_is_valid(document: Document) -> None:
    assert [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(document)] == []
    for name, schema in document["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


def test_document_says_what_it_describes(document: Document) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["info"]["title"] == "Aviso Notification Service API"
    assert document["info"]["version"] == aviso_server.__version__


def test_document_has_the_operations_each_under_its_tag(document: Document) -> None:
    tags = {(method, path): operation["tags"] for method, path, operation in operations(document)}
    assert tags == {place: [tag] for place, tag in OPERATIONS.items()}
    declared = [tag["name"] for tag in document["tags"]]
    assert declared == ["health", "general", "schema", "notification", "streaming", "subscriptions", "admin"]
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)


def test_document_says_who_needs_credentials(document: Document) -> None:
    for _, path, operation in operations(document):
        if path.startswith(("/api/v1/admin", "/api/v1/auth", "/api/v1/subscriptions")):
            assert operation["security"] == CREDENTIALS
        elif operation["tags"][0] in ("notification", "streaming"):
            assert {} in operation["security"]
            assert [need for need in operation["security"] if need] == CREDENTIALS
        else:
            assert operation["security"] == []


@pytest.mark.parametrize(("code", "status", "endpoints"), CATALOGUE, ids=[code for code, _, _ in CATALOGUE])
def test_every_error_code_is_documented(document: Document, code: str, status: str, endpoints: list[str]) -> None:
    for endpoint in endpoints:
        (operation,) = document["paths"][f"/api/v1/{endpoint}"].values()
        answer = operation["responses"][status]
        assert f"`{code}`" in answer["description"]
        assert examples(answer["content"]["application/json"])[code]["code"] == code


def sent_codes() -> Iterator[str]:
    """The error codes that the server's sources hand to whatever makes an error of them."""
    root = Path(aviso_server.__file__).parent
    for path in sorted(set(root.rglob("*.py")) - set((root / "spark").rglob("*.py"))):  # Spark answers no requests
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS:
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and re.fullmatch(r"[A-Z]+(_[A-Z]+)*", str(argument.value)):
                        yield str(argument.value)


def test_every_code_that_the_server_sends_is_documented(document: Document) -> None:
    documented = {
        name for place, body in bodies(document) if "application/json" in place for name in body.get("examples", {})
    }
    sent = set(sent_codes())
    assert {"INVALID_JSON", "INVALID_WATCH_REQUEST", "NOTIFICATION_STORAGE_FAILED", "INTERNAL_ERROR"} <= sent
    assert sent <= documented


def test_every_answer_carries_a_request_id(document: Document) -> None:
    header = {"$ref": "#/components/headers/X-Request-ID"}
    for _, _, operation in operations(document):
        for answer in operation["responses"].values():
            assert answer["headers"]["X-Request-ID"] == header


def test_every_operation_names_its_other_answers(document: Document) -> None:
    for _, path, operation in operations(document):
        answers = operation["responses"]
        assert {"404", "500", "503"} <= answers.keys()
        assert {"200", "201", "204"} & answers.keys()
        if "requestBody" in operation:
            assert answers["413"]["content"].keys() == {"text/plain"}
        if "{" not in path and path != "/api/v1/admin/wipe/stream":
            assert "content" not in answers["404"], "the answer to a wrong path is empty"


def test_every_example_satisfies_its_schema(document: Document) -> None:
    seen = 0
    for place, body in bodies(document):
        check = validator(document, body["schema"])
        for name, value in examples(body).items():
            assert check.is_valid(value), f"{place}: {name}: {[error.message for error in check.iter_errors(value)]}"
            seen += 1
    assert seen > 20


def test_stream_examples_are_streams(document: Document) -> None:
    event = validator(document, {"$ref": "#/components/schemas/CloudEvent"})
    for endpoint in ("watch", "replay"):
        answer = document["paths"][f"/api/v1/{endpoint}"]["post"]["responses"]["200"]
        tables = {"application/vnd.apache.arrow.stream", "application/vnd.apache.parquet", "application/x-ndjson"}
        others = tables if endpoint == "replay" else set()
        assert answer["content"].keys() == {"text/event-stream", *others}
        for text in examples(answer["content"]["text/event-stream"]).values():
            raw = text.encode()
            frames = list(FRAME.finditer(raw))
            assert b"".join(frame[0] for frame in frames) == raw
            assert frames[-1][1] == b"connection-closing"
            events = [frame[2] for frame in frames if b'"specversion"' in frame[2]]
            assert events
            for data in events:
                assert event.is_valid(json.loads(data))


def test_every_request_example_works(server: Server, document: Document) -> None:
    client = server.client
    client.wipe_all()
    published = request_examples(document, "/api/v1/notification")
    for name, request in published.items():
        answer = client.answer("notification", request)
        assert answer.status == 200, f"{name}: {answer.body.decode()}"
        check = document["paths"]["/api/v1/notification"]["post"]["responses"]["200"]["content"]["application/json"]
        assert validator(document, check["schema"]).is_valid(answer.json())
    client.wipe_all()
    operation = document["paths"]["/api/v1/notifications"]["post"]
    for name, batch in request_examples(document, "/api/v1/notifications").items():
        answer = client.answer("notifications", batch)
        assert (answer.status, answer.json()["refused"]) == (200, 0), f"{name}: {answer.body.decode()}"
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert validator(document, schema).is_valid(answer.json())
    client.wipe_all()
    for request in published.values():
        client.answer("notification", request)
    for name, request in request_examples(document, "/api/v1/watch").items():
        with client.open("watch", request) as stream:
            assert stream.status == 200, f"{name}: {stream.body.decode()}"
            opening = "replay_started" if "from_id" in request else "connection_established"
            assert stream.next().kind == opening
    answers = document["paths"]["/api/v1/explain"]["post"]["responses"]["200"]["content"]["application/json"]
    check_answer = validator(document, answers["schema"])
    for name, request in request_examples(document, "/api/v1/explain").items():
        for more in ({}, {"notification_id": f"{request['event_type']}@1"}):
            answer = client.answer("explain", {**request, **more})
            assert answer.status == 200, f"{name}: {answer.body.decode()}"
            assert [error.message for error in check_answer.iter_errors(answer.json())] == []
            assert answer.json()["matches"]["count"] == 1, name
    event = validator(document, {"$ref": "#/components/schemas/CloudEvent"})
    for name, request in request_examples(document, "/api/v1/replay").items():
        with client.open("replay", request) as stream:
            assert stream.status == 200, f"{name}: {stream.body.decode()}"
            stream.rest()
            assert len(stream.notifications) == 1, name
            assert all(event.is_valid(note) for note in stream.notifications)


def test_examples_cover_every_configured_event_type(server: Server, document: Document) -> None:
    configured = set(server.client.get("/api/v1/schema").json()["event_types"])
    for endpoint in POSTS:
        shown = {request["event_type"] for request in request_examples(document, f"/api/v1/{endpoint}").values()}
        assert configured <= shown


def test_path_and_admin_examples_work_where_event_types_are_configured(server: Server, document: Document) -> None:
    client = server.client
    expected = 200 if client.get("/api/v1/schema").json()["event_types"] else 404
    operation = document["paths"]["/api/v1/schema/{event_type}"]["get"]
    answer = client.get(f"/api/v1/schema/{quote(operation['parameters'][0]['example'], safe='')}")
    assert answer.status == expected
    content = operation["responses"][str(expected)]["content"]["application/json"]
    assert validator(document, content["schema"]).is_valid(answer.json())
    for request in request_examples(document, "/api/v1/admin/wipe/stream").values():
        lenient = client.answer("notification", {"event_type": "my_event", "identifier": {"a": 1}}).status == 200
        assert client.delete("/api/v1/admin/wipe/stream", request).status == (200 if lenient else expected)


def test_schema_list_satisfies_its_schema(server: Server, document: Document) -> None:
    content = document["paths"]["/api/v1/schema"]["get"]["responses"]["200"]["content"]
    check = validator(document, content["application/json"]["schema"])
    assert list(check.iter_errors(server.client.get("/api/v1/schema").json())) == []


def test_document_is_the_same_every_time(server: Server) -> None:
    first, second = (server.client.get("/api-docs/openapi.json") for _ in range(2))
    assert first.body == second.body
    assert first.header("content-type") == "application/json"
    assert first.header("x-request-id") != second.header("x-request-id")


def test_fields_are_described_in_the_words_of_the_configuration(tmp_path: Path) -> None:
    with Server(EVERY_FIELD_TYPE, tmp_path) as server:
        schemas = server.client.get("/api-docs/openapi.json").json()["components"]["schemas"]
    fields = schemas["Identifier.everything"]["properties"]
    assert schemas["Identifier.everything"]["required"] == list(fields)
    assert fields["text"]["description"].startswith("A short word. Accepts non-empty text")
    assert fields["text"]["maxLength"] == 3
    assert (fields["whole"]["minimum"], fields["whole"]["maximum"]) == (10, 20)
    assert schemas["Filter.everything"]["required"] == ["text", "word"]
    assert schemas["Notification.everything"]["properties"]["event_type"] == {"const": "everything"}
    assert "payload" in schemas["Notification.everything"]["required"]
    assert "payload" not in schemas["Notification.cloud"]["required"]


def test_only_a_lenient_server_offers_event_types_of_any_name(server: Server, document: Document) -> None:
    strict = server.client.answer("notification", {"event_type": "free", "identifier": {"a": 1}}).status == 400
    configured = server.client.get("/api/v1/schema").json()["event_types"]
    for endpoint in POSTS:
        body = document["paths"][f"/api/v1/{endpoint}"]["post"]["requestBody"]["content"]["application/json"]
        start = {"from_id": "1"} if endpoint == "replay" else {}
        free = validator(document, body["schema"]).is_valid({"event_type": "free", "identifier": {"a": 1}, **start})
        assert free == (not strict or not configured)
