"""The `lateness` section of an event type: what it means, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from aviso_server.config.settings import StreamAuth
from aviso_server.model.lateness.watched import Watched
from tests.config.configurations import inspected, keys, problems_at

ENTRY = """
notification_schema:
  forecast:
    identifier:
      stream: {{type: StringHandler, required: true}}
      date: {{type: DateHandler, required: true}}
      step: {{type: IntHandler, required: true}}
      polygon: {{type: PolygonHandler, required: true}}
    topic: {{base: forecasts, key_order: [stream, date, step]}}
    lateness: {lateness}
"""
KEY = "notification_schema.forecast.lateness"


def test_an_event_type_opts_in(tmp_path: Path) -> None:
    found = inspected(tmp_path, ENTRY.format(lateness="{enabled: true}"))
    assert (found.problems, found.warnings) == ((), ())
    assert found.settings.watched == (
        Watched(
            event_type="forecast",
            stream="forecasts",
            by=("stream", "step"),
            date="date",
            tolerance=1800,
            learn_days=42,
            min_seen=4,
            max_combinations=10_000,
        ),
    )
    assert [each.name for each in found.settings.event_types] == ["forecast", "aviso_lateness"]


def test_everything_can_be_said(tmp_path: Path) -> None:
    lateness = "{enabled: true, by: [step], tolerance: 10m, learn_days: 28, min_seen: 3, max_combinations: 7}"
    [watched] = inspected(tmp_path, ENTRY.format(lateness=lateness)).settings.watched
    assert (watched.by, watched.tolerance, watched.learn_days) == (("step",), 600, 28)
    assert (watched.min_seen, watched.max_combinations) == (3, 7)


@pytest.mark.parametrize("lateness", ["{enabled: false}", "null"])
def test_without_it_nothing_changes(tmp_path: Path, lateness: str) -> None:
    found = inspected(tmp_path, ENTRY.format(lateness=lateness))
    assert found.problems == ()
    assert found.settings.watched == ()
    assert [each.name for each in found.settings.event_types] == ["forecast"]


@pytest.mark.parametrize(
    ("lateness", "key", "message", "accepted"),
    [
        ("yes", "", "expected a section with keys of its own, found 'yes'", "a mapping"),
        ("{tolerance: 1h}", ".enabled", "must be set when the lateness section is there", "true or false"),
        ("{enabled: maybe}", ".enabled", "'maybe' is neither true nor false", "true or false"),
        ("{enabled: true, tolerance: 10}", ".tolerance", "'10' is not a duration with a unit", "such as 90s or 7d"),
        ("{enabled: true, learn_days: 3}", ".learn_days", "3 is out of range", "a whole number from 7 to 400"),
        ("{enabled: true, min_seen: 1}", ".min_seen", "1 is out of range", "a whole number from 2 to 400"),
        ("{enabled: true, min_seen: 50}", ".min_seen", "nothing comes on 50 of 42 days", "at most learn_days, 42"),
        ("{enabled: true, max_combinations: 0}", ".max_combinations", "0 is out of range", "from 1 to 100000"),
        ("{enabled: true, by: step}", ".by", "expected a list, found 'step'", "a list of texts"),
        ("{enabled: true, by: []}", ".by", "the list is empty", "stream, step"),
        ("{enabled: true, by: [level]}", ".by[0]", "'level' is not declared under identifier", "stream, step"),
        ("{enabled: true, by: [step, date]}", ".by[1]", "'date' is a date or a shape", "stream, step"),
        ("{enabled: true, by: [step, step]}", ".by[1]", "'step' is listed twice", "each field once"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lateness: str, key: str, message: str, accepted: str) -> None:
    found = inspected(tmp_path, ENTRY.format(lateness=lateness))
    assert keys(found) == {KEY + key}
    [problem] = problems_at(found, KEY + key)
    assert problem.message == message
    assert accepted in problem.accepted


def test_dates_alone_make_no_combination(tmp_path: Path) -> None:
    text = """
    notification_schema:
      day:
        identifier: {date: {type: DateHandler, required: true}}
        lateness: {enabled: true}
    """
    assert keys(inspected(tmp_path, text)) == {"notification_schema.day.lateness.by"}


@pytest.mark.parametrize(
    ("name", "base", "key"),
    [
        ("aviso_lateness", "late", ".topic.base"),
        ("Aviso_Lateness", "late", ".topic.base"),
        ("late", "AVISO_LATENESS", ".topic.base"),
    ],
)
def test_the_name_of_the_alarms_is_reserved(tmp_path: Path, name: str, base: str, key: str) -> None:
    text = f"""
    notification_schema:
      {name}:
        identifier: {{port: {{type: StringHandler, required: true}}}}
        topic: {{base: {base}, key_order: [port]}}
    """
    [problem] = problems_at(inspected(tmp_path, text), f"notification_schema.{name}{key}")
    assert "reserved" in problem.message


AUTH = """
auth: {{enabled: true, mode: trusted_proxy, jwt_secret: {secret}, admin_roles: {{realm: [admin]}}}}
notification_schema:
  open:
    identifier: {{port: {{type: StringHandler, required: true}}}}
    lateness: {{enabled: true}}
  closed:
    identifier: {{port: {{type: StringHandler, required: true}}}}
    auth: {{required: true, read_roles: {{realm: [reader]}}}}
    lateness: {{enabled: true}}
  other:
    identifier: {{port: {{type: StringHandler, required: true}}}}
    auth: {{required: true{roles}}}
    lateness: {{enabled: true}}
"""


@pytest.mark.parametrize(
    ("roles", "readers"),
    [(", read_roles: {realm: [reader]}", {"realm": ("reader",)}), (", read_roles: {realm: [boss]}", {}), ("", {})],
)
def test_alarms_are_for_those_who_may_read_all_that_they_are_about(
    tmp_path: Path, roles: str, readers: dict[str, tuple[str, ...]]
) -> None:
    found = inspected(tmp_path, AUTH.format(secret="s" * 32, roles=roles))
    assert found.problems == ()
    assert found.settings.stream_auth["aviso_lateness"] == StreamAuth(True, readers, {})
