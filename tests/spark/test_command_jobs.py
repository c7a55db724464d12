"""Jobs of commands: what travels to the process that has Spark, and what comes back."""

from __future__ import annotations

import msgspec
import pytest

from aviso_server.errors import PipelineError
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.spark.command_jobs import definition_of, read_definition, run_job
from tests.spark.load.bad_rows import MARS
from tests.spark.load.scene import CLOUD, EVERY_FIELD


@pytest.mark.parametrize("kind", [MARS, EVERY_FIELD, CLOUD, GenericType("any")], ids=lambda kind: kind.name)
def test_an_event_type_arrives_as_it_was_sent(kind: EventType | GenericType) -> None:
    travelled = msgspec.json.decode(msgspec.json.encode(definition_of(kind)))
    assert read_definition(travelled) == kind


@pytest.mark.parametrize(
    ("name", "request_", "complaint"),
    [
        ("dance", {}, "'dance' is not a job"),
        ("load", {}, "the request for the job 'load' is wrong"),
        ("load", {"event_type": {"name": "x", "definition": None}, "load": {"files": 1}}, "job 'load' is wrong"),
        ("load", {"event_type": {"name": "x", "definition": {"identifier": 1}}, "load": {}}, "'x' cannot be read"),
    ],
)
def test_a_wrong_request_is_refused(name: str, request_: dict[str, object], complaint: str) -> None:
    def no_session() -> None:
        raise AssertionError("Spark is not needed to refuse")

    with pytest.raises(PipelineError, match=complaint):
        run_job(no_session, name, request_, lambda step, done, total: None)  # type: ignore[arg-type]  # it is not called
