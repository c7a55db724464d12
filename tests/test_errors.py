"""The error tree: drawn as it is, and every error survives pickling."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from aviso_server import errors
from aviso_server.errors import (
    AvisoError,
    ConfigError,
    HistoryGone,
    InvalidRequest,
    KeyInDoubt,
    KeyRefused,
    KeyReused,
    LogDamaged,
    LogError,
    LogInUse,
    LogUnavailable,
    MalformedRequest,
    PipelineError,
    PolygonTooLarge,
    Problem,
    Refused,
    RequestError,
    StreamUnusable,
    UnknownEventType,
)

CLASSES = {
    name: found for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, AvisoError)
}

SAMPLES: list[AvisoError] = [
    AvisoError("cannot do that"),
    ConfigError(
        [
            Problem("application.port", "70000 is too large", "0 to 65535", "config.yaml"),
            Problem("metrics.port", "is missing"),
        ]
    ),
    RequestError("Field 'step': no", details="invalid digit", field="step"),
    MalformedRequest("UNKNOWN_FIELD", "unknown field 'foo'", "accepted: event_type"),
    UnknownEventType("nope", ["mars", "tide"]),
    InvalidRequest("Field 'time': 2400 has invalid hours", details="invalid hours", field="time"),
    PolygonTooLarge("field 'polygon': no", details="12 pairs, maximum is 10", field="polygon"),
    KeyRefused(),
    KeyReused(),
    KeyInDoubt(),
    PipelineError("option 'url' is missing"),
    Refused("Field 'step': no", 400, "INVALID_NOTIFICATION_REQUEST"),
    LogError("the log is closed"),
    StreamUnusable("stream MARS: storage mismatch"),
    LogUnavailable("the disk is full"),
    HistoryGone("retention has removed notifications from sequence 5 on; ask again"),
    LogInUse("data/log belongs to process 17"),
    LogDamaged("data/log/log.db is not a database"),
]


def drawn_tree() -> dict[str, str | None]:
    """Class -> parent, as drawn in the docstring of the module."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        node = re.fullmatch(r"(?P<branch>    [│├└─ ]*)(?P<name>[A-Z]\w+)(?:  +\S.*)?", line)
        if node is None:
            continue
        depth = len(node["branch"])
        path = [entry for entry in path if entry[0] < depth]
        parents[node["name"]] = path[-1][1] if path else None
        path.append((depth, node["name"]))
    return parents


def shown(value: object) -> object:
    """A value in a form that can be compared; problems have no equality of their own."""
    if isinstance(value, Problem):
        return {slot: getattr(value, slot) for slot in Problem.__struct_fields__}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value


def test_docstring_draws_exactly_the_classes_there_are() -> None:
    real = {name: None if found is AvisoError else found.__mro__[1].__name__ for name, found in CLASSES.items()}
    assert drawn_tree() == real


def test_every_class_is_public() -> None:
    assert set(errors.__all__) == {*CLASSES, "Problem"}


def test_every_class_has_a_sample() -> None:
    assert {type(sample).__name__ for sample in SAMPLES} == set(CLASSES)


@pytest.mark.parametrize("protocol", [2, pickle.DEFAULT_PROTOCOL, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_error_survives_pickling(error: AvisoError, protocol: int) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert {key: shown(value) for key, value in vars(back).items()} == {
        key: shown(value) for key, value in vars(error).items()
    }


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_error_stays_raisable_after_pickling(error: AvisoError) -> None:
    with pytest.raises(type(error), match=re.escape(str(error))):
        raise pickle.loads(pickle.dumps(error))


def test_request_error_keeps_its_parts() -> None:
    back = pickle.loads(pickle.dumps(InvalidRequest("outer", details="inner", field="step")))
    assert (back.message, back.details, back.field) == ("outer", "inner", "step")


def test_details_are_the_message_when_there_is_only_one_level() -> None:
    assert RequestError("only this").details == "only this"
    assert RequestError("outer", details="").details == ""


def test_config_error_says_every_problem_with_its_place_and_what_is_accepted() -> None:
    error = next(sample for sample in SAMPLES if isinstance(sample, ConfigError))
    assert str(error).splitlines() == [
        "config.yaml: application.port: 70000 is too large (accepted: 0 to 65535)",
        "metrics.port: is missing",
    ]


def test_unknown_event_type_names_what_is_configured() -> None:
    assert (
        str(UnknownEventType("nope", ["mars", "tide"]))
        == "unknown event type 'nope'; configured event types: mars, tide"
    )
    assert str(UnknownEventType("nope", [])) == "unknown event type 'nope'; configured event types: none"
