"""Requests made up from the server's own description: none breaks it, and every answer is one it describes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis import Case, CheckContext, Response, engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.harness import Server
from tests.harness.sse import FRAME
from tests.http.configurations import EVERY_FIELD_TYPE, LENIENT

REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]  # a body over the limit is refused unread
OPENINGS = {"watch": {"connection_established", "replay_started"}, "replay": {"replay_started"}}
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "negative_data_rejection",  # the schemas accept all that the server accepts, so it must refuse what they refuse
    "body_conformance",
]


@schemathesis.check
def body_conformance(ctx: CheckContext, response: Response, case: Case) -> bool | None:
    """A body is as its schema says; a stream, which schemathesis would judge event by event, is made of frames."""
    if response.headers.get("content-type") != ["text/event-stream"]:
        return response_schema_conformance(ctx, response, case)
    endpoint = case.operation.path.removeprefix("/api/v1/")
    frames = list(FRAME.finditer(response.content))
    assert frames, "a stream has at least its opening"
    assert b"".join(frame[0] for frame in frames) == response.content
    assert json.loads(frames[0][2])["type"] in OPENINGS[endpoint]
    if endpoint == "replay":
        assert frames[-1][1] == b"connection-closing"
    return None


def fuzz(server: Server, max_examples: int) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Send everything that schemathesis can think of; how often each status came, and what went wrong."""
    config = SchemathesisConfig.from_dict(
        {
            "seed": 7,
            "base-url": server.url,
            "request-timeout": 20,
            "max-stream-events": 1,  # a watch does not end by itself: its opening is enough
            "operations": [{"include-path": "/api/v1/replay", "max-stream-events": 1000}],
            "generation": {"mode": "all", "max-examples": max_examples, "deterministic": True, "database": "none"},
            "phases": {"stateful": {"enabled": False}},  # one request does not lead to another in this interface
            # a wrong method is 404 by contract, so `unsupported_method`, which wants 405, is not among the checks
            "checks": {
                "enabled": False,
                **{name: {"enabled": True} for name in CHECKS},
                "negative_data_rejection": {"enabled": True, "expected-statuses": REFUSALS},
            },
        }
    )
    schema = schemathesis.openapi.from_url(f"{server.url}/api-docs/openapi.json", config=config)
    statuses: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            recorder = event.recorder
            for interaction in recorder.interactions.values():
                statuses[recorder.label, interaction.response.status_code if interaction.response else 0] += 1
            for checks in recorder.checks.values():
                wrong += [
                    f"{recorder.label}: {check.failure_info.failure}\n{check.failure_info.code_sample}"
                    for check in checks
                    if check.failure_info is not None
                ]
        elif isinstance(event, events.NonFatalError | events.FatalError):
            wrong.append(str(event.info if isinstance(event, events.NonFatalError) else event.exception))
    return statuses, wrong


@pytest.mark.parametrize(
    ("name", "max_examples"),
    [pytest.param("strict", 50, marks=pytest.mark.long), ("lenient", 10)],  # the first sends thousands of requests
)
def test_every_answer_is_a_described_one(name: str, max_examples: int, tmp_path: Path) -> None:
    configurations: Mapping[str, dict[str, Any]] = {"strict": EVERY_FIELD_TYPE, "lenient": LENIENT}
    with Server(configurations[name], tmp_path) as server:
        statuses, wrong = fuzz(server, max_examples)
        assert wrong == [], "\n\n".join(wrong[:5])
        assert statuses.total() > 2000
        for endpoint in ("notification", "watch", "replay", "explain"):  # both sides of the border were visited
            assert statuses[f"POST /api/v1/{endpoint}", 200] > 10
            assert statuses[f"POST /api/v1/{endpoint}", 400] > 100
        assert server.client.get("/ready").status == 200
        assert "Traceback" not in server.stdout + server.stderr
