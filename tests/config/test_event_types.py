"""Event types as they are loaded: streams, storage, access and lateness."""

from __future__ import annotations

from pathlib import Path

import pytest

from aviso_server.config.settings import StreamAuth
from aviso_server.log.base import StoragePolicy
from aviso_server.model.lateness import Watched
from tests.config.configurations import EVENT_TYPE, inspected, keys, problems_at

TIDE = "notification_schema.tide"
FIELDS = "identifier: {port: {type: StringHandler, required: true}}"


def schema(*entries: str) -> str:
    return "notification_schema:\n" + "".join(f"  {entry}\n" for entry in entries)


@pytest.mark.parametrize(
    ("text", "strict", "configured"),
    [
        (EVENT_TYPE, True, True),
        ("", False, False),
        ("notification_schema: {}", False, True),
        (EVENT_TYPE + "notification_schema_strict: false", False, True),
        (EVENT_TYPE + "notification_schema_strict: true", True, True),
        ("notification_schema_strict: true", True, False),
        ("notification_schema_strict: no", False, False),
    ],
)
def test_strict(text: str, strict: bool, configured: bool, tmp_path: Path) -> None:
    found = inspected(tmp_path, text)
    assert found.problems == ()
    assert (found.settings.strict, found.settings.schema_configured) == (strict, configured)


def test_event_types_in_order_with_the_polygon_limit(tmp_path: Path) -> None:
    text = schema(f"b: {{{FIELDS}}}", f"a: {{{FIELDS}, topic: {{base: other, key_order: [port]}}}}")
    settings = inspected(tmp_path, text + "limits: {max_polygon_vertices: 99}").settings
    assert [(kind.name, kind.base, kind.max_polygon_vertices) for kind in settings.event_types] == [
        ("b", "b", 99),
        ("a", "other", 99),
    ]


@pytest.mark.parametrize("base", ["", "a.b", "a%b", "a*b", "a>b", "a b", "é", "_a", "-a", "a\\n"])
def test_invalid_bases(base: str, tmp_path: Path) -> None:
    by_topic = inspected(tmp_path, schema(f'tide: {{{FIELDS}, topic: {{base: "{base}", key_order: [port]}}}}'))
    [problem] = problems_at(by_topic, f"{TIDE}.topic.base")
    assert "invalid topic base" in problem.message
    by_name = inspected(tmp_path, schema(f'"{base}": {{{FIELDS}}}'))
    assert any("invalid topic base" in problem.message for problem in by_name.problems)


def test_a_name_is_free_when_the_topic_has_a_base(tmp_path: Path) -> None:
    assert inspected(tmp_path, schema(f'"a.b": {{{FIELDS}, topic: {{base: ab, key_order: [port]}}}}')).problems == ()


@pytest.mark.parametrize("second", ["topic: {base: TIDE, key_order: [port]}", "topic: {base: tide, key_order: [port]}"])
def test_case_221_bases_are_unique_in_any_case(second: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, schema(f"tide: {{{FIELDS}}}", f"wave: {{{FIELDS}, {second}}}"))
    [problem] = found.problems
    assert problem.key == "notification_schema.wave.topic.base"
    assert "both define topic base" in problem.message
    assert "'tide'" in problem.message
    assert "'wave'" in problem.message


def test_names_without_topic_count_as_bases(tmp_path: Path) -> None:
    found = inspected(tmp_path, schema(f"tide: {{{FIELDS}}}", f"Tide: {{{FIELDS}}}"))
    assert [problem.key for problem in found.problems] == ["notification_schema.Tide"]


def test_case_221_a_policy_needs_a_topic(tmp_path: Path) -> None:
    found = inspected(tmp_path, schema(f"tide: {{{FIELDS}, storage_policy: {{max_messages: 5}}}}"))
    assert keys(found) == {f"{TIDE}.storage_policy"}


POLICY = EVENT_TYPE + "    storage_policy: {%s}\n"


def test_policies_by_base(tmp_path: Path) -> None:
    members = "retention_time: 7d, max_messages: 5000, max_size: 64Mi, allow_duplicates: true, compression: no"
    found = inspected(tmp_path, (POLICY % members).replace("base: tide", "base: Sea"))
    assert found.problems == ()
    assert found.settings.policies == {"Sea": StoragePolicy(604_800 * 10**9, 5000, 67_108_864, True, False)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention_time", "10"),
        ("retention_time", "10x"),
        ("retention_time", "0s"),
        ("max_size", "10m"),
        ("max_size", "0Mi"),
        ("max_size", "10"),
        ("max_messages", "0"),
        ("max_messages", "-1"),
        ("max_messages", "many"),
        ("allow_duplicates", "maybe"),
        ("compression", "[yes]"),
    ],
)
def test_case_221_policy_values(name: str, value: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, POLICY % f"{name}: {value}")
    assert keys(found) == {f"{TIDE}.storage_policy.{name}"}
    assert found.problems[0].accepted


@pytest.mark.parametrize(
    "member",
    ["retention_time: 7d", "max_messages: 5", "max_size: 64Mi", "allow_duplicates: true", "compression: false"],
)
def test_case_194_in_memory_has_no_policies(member: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, POLICY % member + "notification_backend: {kind: in_memory}")
    assert keys(found) == {f"{TIDE}.storage_policy.{member.partition(':')[0]}"}
    assert "in_memory" in found.problems[0].message


ON = "auth: {enabled: true, auth_o_tron_url: 'http://h', jwt_secret: s, admin_roles: {r: [admin]}}\n"
ACCESS = EVENT_TYPE + "    auth: {%s}\n"


@pytest.mark.parametrize(
    ("members", "enabled", "key"),
    [
        ("required: true", False, "auth.required"),
        ("required: false, read_roles: {r: [a]}", False, "auth.read_roles"),
        ("required: false, write_roles: {r: [a]}", False, "auth.write_roles"),
        ("required: false, read_roles: {r: [a]}", True, "auth.read_roles"),
        ("required: true, read_roles: {}", True, "auth.read_roles"),
        ("required: true, write_roles: {r: []}", True, "auth.write_roles.r"),
        ("required: true, write_roles: {r: [' a']}", True, "auth.write_roles.r[0]"),
        ("required: true, write_roles: {r: a}", True, "auth.write_roles.r"),
        ("required: true, write_roles: [r]", True, "auth.write_roles"),
        ("required: true, plugins: [other]", True, "auth.plugins[0]"),
        ("required: true, plugins: []", True, "auth.plugins"),
        ("required: true, plugins: ecpds", True, "auth.plugins"),
        ("read_roles: {r: [a]}", True, "auth.required"),
        ("required: perhaps", True, "auth.required"),
        ("required: true, nobody: 1", True, "auth.nobody"),
    ],
)
def test_cases_223_and_225_access(members: str, enabled: bool, key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, ACCESS % members + (ON if enabled else ""))
    assert keys(found) == {f"{TIDE}.{key}"}


def test_case_223_a_plugin_needs_required(tmp_path: Path) -> None:
    found = inspected(tmp_path, ACCESS % "required: false, plugins: [ecpds]" + ON)
    messages = [problem.message for problem in problems_at(found, f"{TIDE}.auth.plugins")]
    assert any("required: true" in message for message in messages)


def test_access_that_is_fine(tmp_path: Path) -> None:
    found = inspected(tmp_path, ACCESS % "required: true, read_roles: {r: [a, '*']}" + ON)
    assert found.problems == ()
    access = found.settings.stream_auth["tide"]
    assert (access.required, access.read_roles, access.write_roles) == (True, {"r": ("a", "*")}, None)
    assert inspected(tmp_path, ACCESS % "required: false").problems == ()


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("{identifier: {port: {type: StringHandler, required: true, colour: red}}}", "identifier.port.colour"),
        ("{identifier: {port: {type: Nobody, required: true}}}", "identifier.port.type"),
        ("{identifier: {port: {type: StringHandler}}}", "identifier.port.required"),
        ("{identifier: {}, payload: {required: true, size: 5}}", "payload.size"),
        ("{identifier: {}, payload: {}}", "payload.required"),
        ("{identifier: {}, max_historical_notifications: 0}", "max_historical_notifications"),
        ("{}", "identifier"),
    ],
)
def test_case_225_definitions(entry: str, key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, schema(f"tide: {entry}"))
    [problem] = found.problems
    assert problem.key == f"{TIDE}.{key}"
    assert problem.source == f"{tmp_path / 'config.yaml'}:2"


@pytest.mark.parametrize(
    "text", ["notification_schema: [tide]", "notification_schema: {tide: 5}", "notification_schema: x"]
)
def test_entries_must_be_mappings(text: str, tmp_path: Path) -> None:
    [problem] = inspected(tmp_path, text).problems
    assert problem.key.startswith("notification_schema")


def test_variables_reach_into_event_types(tmp_path: Path) -> None:
    prefix = "AVISOSERVER_NOTIFICATION_SCHEMA__TIDE__"
    found = inspected(
        tmp_path,
        EVENT_TYPE,
        {
            f"{prefix}PAYLOAD__REQUIRED": "yes",
            f"{prefix}IDENTIFIER__PORT__MAX_LENGTH": "5",
            f"{prefix}MAX_HISTORICAL_NOTIFICATIONS": "7",
            f"{prefix}STORAGE_POLICY__MAX_MESSAGES": "9",
        },
    )
    assert found.problems == ()
    [tide] = found.settings.event_types
    assert (tide.payload_required, tide.max_historical_notifications) == (True, 7)
    assert tide.describe()["identifier"]["port"]["max_length"] == 5
    assert found.settings.policies["tide"].max_messages == 9


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
