"""Q. Start-up: every configuration that must be refused, each broken in one place."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.configuration import changed, read
from tests.harness import Server, StartFailed
from tests.harness.client import body

TIDE = "notification_schema.tide"
ENABLED = {
    "enabled": True,
    "auth_o_tron_url": "http://127.0.0.1:9",
    "jwt_secret": "secret",
    "admin_roles": {"localrealm": ["admin"]},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


FREE_PORT = free_port()


def tide(**members: Any) -> dict[str, Any]:
    return {"notification_schema": {"tide": members}}


def policy(**members: Any) -> dict[str, Any]:
    return tide(storage_policy=members)


def level(**members: Any) -> dict[str, Any]:
    return tide(identifier={"level": members})


def auth(**members: Any) -> dict[str, Any]:
    return {"auth": {**ENABLED, **members}}


def stream_auth(enabled: bool, **members: Any) -> dict[str, Any]:
    return {**({"auth": ENABLED} if enabled else {}), **tide(auth=members)}


def ecpds(match_key: str) -> dict[str, Any]:
    """The plugin, on an event type with a polygon and a field that its topics leave out."""
    fields = {
        "polygon": {"type": "PolygonHandler", "required": True},
        "more": {"type": "StringHandler", "required": True},
    }
    return {
        "auth": ENABLED,
        "ecpds": {"username": "u", "password": "p", "match_key": match_key, "servers": ["https://ecpds.example.org"]},
        **tide(identifier=fields, auth={"required": True, "plugins": ["ecpds"]}),
    }


def endpoint(**members: Any) -> dict[str, Any]:
    return {"watch_endpoint": members}


def base(name: str) -> dict[str, Any]:
    return tide(topic={"base": name})


def second(name: str, **members: Any) -> dict[str, Any]:
    return {
        "notification_schema": {name: {"identifier": {"a": {"type": "StringHandler", "required": True}}, **members}}
    }


def cloud(name: str = "point_cloud", **members: Any) -> dict[str, Any]:
    return {name: {"type": "PointCloudHandler", "required": True, **members}}


# What is changed, and the words that the output must have: the key in question, where the contract says no more.
BROKEN: dict[str, dict[str, tuple[Mapping[str, Any], str]]] = {
    "221": {
        "backend kind": ({"notification_backend": {"kind": "carrier_pigeon"}}, "notification_backend.kind"),
        "same base ignoring case": (
            second("flood", topic={"base": "TIDE", "key_order": ["a"]}),
            "both define topic base",
        ),
        "event type and base": (second("TIDE"), "both define topic base"),
        "policy without topic": (
            second("flood", storage_policy={"max_messages": 5}),
            "notification_schema.flood.storage_policy",
        ),
        "duration without unit": (policy(retention_time="10"), f"{TIDE}.storage_policy.retention_time"),
        "duration with unknown unit": (policy(retention_time="10x"), f"{TIDE}.storage_policy.retention_time"),
        "no duration": (policy(retention_time="0s"), f"{TIDE}.storage_policy.retention_time"),
        "size in small letters": (policy(max_size="10m"), f"{TIDE}.storage_policy.max_size"),
        "no size": (policy(max_size="0Mi"), f"{TIDE}.storage_policy.max_size"),
        "no messages": (policy(max_messages=0), f"{TIDE}.storage_policy.max_messages"),
    },
    "222": {
        "no admin roles": (auth(admin_roles={}), "auth.admin_roles"),
        "empty admin roles": (auth(admin_roles={"localrealm": []}), "auth.admin_roles"),
        "no secret": (auth(jwt_secret=""), "auth.jwt_secret"),
        "no url": (auth(auth_o_tron_url=""), "auth.auth_o_tron_url"),
        "no time": (auth(timeout_ms=0), "auth.timeout_ms"),
        "padded secret": (auth(jwt_secret=" secret"), "auth.jwt_secret"),
        "padded url": (auth(auth_o_tron_url="http://127.0.0.1:9 "), "auth.auth_o_tron_url"),
        "padded role": (auth(admin_roles={"localrealm": ["admin "]}), "auth.admin_roles"),
        "unknown mode": (auth(mode="guess"), "auth.mode"),
        "unknown key": (auth(colour="red"), "auth.colour"),
        "url with credentials": (auth(auth_o_tron_url="http://u:p@127.0.0.1:9"), "auth.auth_o_tron_url"),
        "two kinds of key": (auth(jwks_url="https://issuer.example.org/keys"), "auth.jwks_url"),
    },
    "223": {
        "required without auth": (stream_auth(False, required=True), f"{TIDE}.auth"),
        "roles without auth": (stream_auth(False, required=False, read_roles={"r": ["a"]}), f"{TIDE}.auth"),
        "roles not required": (stream_auth(True, required=False, read_roles={"r": ["a"]}), f"{TIDE}.auth"),
        "empty role map": (stream_auth(True, required=True, read_roles={}), f"{TIDE}.auth.read_roles"),
        "empty role list": (stream_auth(True, required=True, write_roles={"r": []}), f"{TIDE}.auth.write_roles"),
        "unknown plugin": (stream_auth(True, required=True, plugins=["magic"]), f"{TIDE}.auth.plugins"),
        "no plugin": (stream_auth(True, required=True, plugins=[]), f"{TIDE}.auth.plugins"),
        "plugin not required": (stream_auth(True, required=False, plugins=["ecpds"]), f"{TIDE}.auth"),
    },
    "224": {
        "no port": ({"metrics": {"enabled": True}}, "metrics.port"),
        "port 0": ({"metrics": {"enabled": True, "port": 0}}, "metrics.port"),
        "same port": (
            {"application": {"port": FREE_PORT}, "metrics": {"enabled": True, "port": FREE_PORT}},
            "metrics.port",
        ),
    },
    "225": {
        "unknown parameter": (level(colour="red"), f"{TIDE}.identifier.level"),
        "parameter of another type": (level(max_length=3), f"{TIDE}.identifier.level"),
        "unknown type": (level(type="MagicHandler"), f"{TIDE}.identifier.level"),
        "missing required": (tide(identifier={"more": {"type": "IntHandler"}}), f"{TIDE}.identifier.more"),
        "unknown payload member": (tide(payload={"required": True, "type": "json"}), f"{TIDE}.payload"),
        "payload without required": (tide(payload={}), f"{TIDE}.payload"),
        "unknown auth member": (stream_auth(True, required=True, colour="red"), f"{TIDE}.auth"),
        "auth without required": (stream_auth(True, read_roles={"r": ["a"]}), f"{TIDE}.auth"),
        "three limits": (level(range=[0, 1, 2]), f"{TIDE}.identifier.level"),
    },
    "rulings": {
        "heartbeat 0": (endpoint(sse_heartbeat_interval_sec=0), "watch_endpoint.sse_heartbeat_interval_sec"),
        "batch size 0": (endpoint(replay_batch_size=0), "watch_endpoint.replay_batch_size"),
        "date format": (
            tide(identifier={"day": {"type": "DateHandler", "canonical_format": "%d", "required": False}}),
            TIDE,
        ),
        "undeclared key": (tide(topic={"key_order": ["port", "level", "colour"]}), f"{TIDE}.topic.key_order"),
        "base url": ({"application": {"base_url": "aviso.example.org"}}, "application.base_url"),
        "empty base url": ({"application": {"base_url": ""}}, "application.base_url"),
    },
    "n03": {
        "cloud by another name": (tide(identifier=cloud("points")), f"{TIDE}.identifier.points"),
        "cloud beside a polygon": (
            tide(identifier={**cloud(), "polygon": {"type": "PolygonHandler", "required": False}}),
            f"{TIDE}.identifier",
        ),
        "cloud in key_order": (
            tide(identifier=cloud(), topic={"key_order": ["port", "level", "point_cloud"]}),
            f"{TIDE}.topic.key_order",
        ),
        "too many points": (tide(identifier=cloud(max_points=10_001)), f"{TIDE}.identifier.point_cloud"),
    },
    "n06": {
        "global cap 0": (endpoint(max_historical_notifications=0), "watch_endpoint.max_historical_notifications"),
        "cap 0": (tide(max_historical_notifications=0), f"{TIDE}.max_historical_notifications"),
    },
    "n10": {
        name: (base(name), "invalid topic base") for name in ("", "a.b", "a%b", "a*b", "a>b", "a b", "é", "_a", "-a")
    }
    | {
        "event type name": (second("a b"), "invalid topic base"),
        "renamed polygon": (
            tide(identifier={"area": {"type": "PolygonHandler", "required": False}}),
            f"{TIDE}.identifier.area",
        ),
        "polygon of another type": (
            tide(identifier={"polygon": {"type": "StringHandler", "required": False}}),
            f"{TIDE}.identifier.polygon",
        ),
        "point cloud of another type": (
            tide(identifier={"point_cloud": {"type": "StringHandler", "required": False}}),
            f"{TIDE}.identifier.point_cloud",
        ),
        "no keys": (tide(topic={"key_order": []}), f"{TIDE}.topic.key_order"),
        "cloud without topic": (second("flood", identifier=cloud()), "notification_schema.flood.topic"),
        "work queue": (
            {"notification_backend": {"jetstream": {"retention_policy": "workqueue"}}},
            "notification_backend.jetstream.retention_policy",
        ),
        "spatial ECPDS key": (ecpds("polygon"), "ecpds.match_key"),
        "unrouted ECPDS key": (ecpds("more"), f"{TIDE}.topic.key_order"),
    },
    "n11": {
        "not absolute": ({"application": {"homepage": {"client_documentation_url": "docs/"}}}, "application.homepage"),
        "other scheme": (
            {"application": {"homepage": {"server_repository_url": "ftp://a.b/"}}},
            "application.homepage",
        ),
        "credentials": (
            {"application": {"homepage": {"client_repository_url": "https://u:p@example.org/"}}},
            "application.homepage",
        ),
    },
}

Starts = Mapping[tuple[str, str], Future[StartFailed | None]]


def attempt(configuration: Mapping[str, Any], directory: Path) -> StartFailed | None:
    """How the start failed; None if it did not."""
    try:
        Server(configuration, directory).start().stop()
    except StartFailed as failure:
        return failure
    return None


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All of the starts, a few at a time: each one is a whole process."""
    with ThreadPoolExecutor(3) as pool:
        yield {
            (case, name): pool.submit(attempt, changed(read("plain"), changes), tmp_path_factory.mktemp("start"))
            for case, rows in BROKEN.items()
            for name, (changes, _) in rows.items()
        }


def assert_refused(starts: Starts, case: str, name: str) -> None:
    failure = starts[case, name].result(timeout=500)
    assert failure is not None, "the server started"
    assert failure.exit_code > 0
    assert BROKEN[case][name][1] in failure.output
    assert "Traceback" not in failure.output


def rows(case: str) -> Any:
    return pytest.mark.parametrize("name", BROKEN[case])


def test_the_plain_configuration_starts(tmp_path: Path) -> None:
    with Server(read("plain"), tmp_path) as server:
        assert server.client.get("/health").status == 200


@rows("221")
def test_case_221_streams(starts: Starts, name: str) -> None:
    assert_refused(starts, "221", name)


@rows("222")
def test_case_222_authentication(starts: Starts, name: str) -> None:
    assert_refused(starts, "222", name)


@rows("223")
def test_case_223_authentication_of_streams(starts: Starts, name: str) -> None:
    assert_refused(starts, "223", name)


@rows("224")
def test_case_224_metrics(starts: Starts, name: str) -> None:
    assert_refused(starts, "224", name)


@rows("225")
def test_case_225_schemas(starts: Starts, name: str) -> None:
    assert_refused(starts, "225", name)


@rows("rulings")
def test_values_that_would_fail_later(starts: Starts, name: str) -> None:
    assert_refused(starts, "rulings", name)


@rows("n03")
def test_case_n03_point_clouds(starts: Starts, name: str) -> None:
    assert_refused(starts, "n03", name)


@rows("n06")
def test_case_n06_caps(starts: Starts, name: str) -> None:
    assert_refused(starts, "n06", name)


@rows("n10")
def test_case_n10_names(starts: Starts, name: str) -> None:
    assert_refused(starts, "n10", name)


@rows("n11")
def test_home_page_links(starts: Starts, name: str) -> None:
    assert_refused(starts, "n11", name)


@pytest.mark.parametrize("path", ["", "   ", "missing.yaml", "."])
def test_case_226_configuration_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(StartFailed) as failure:
        Server(read("plain"), tmp_path, {"AVISOSERVER_CONFIG_FILE": path}).start()
    assert failure.value.exit_code > 0
    assert "AVISOSERVER_CONFIG_FILE" in failure.value.output
    assert "Traceback" not in failure.value.output


def test_case_227_environment(tmp_path: Path) -> None:
    """The file's kind and port are useless; the environment mends both. Names may have any letter case."""
    plain = changed(read("plain"), {"application": {"port": 1}, "notification_backend": {"kind": "carrier_pigeon"}})
    environment = {
        "AVISOSERVER_APPLICATION__PORT": "0",
        "avisoserver_notification_backend__kind": "in_memory",
        "AVISOSERVER_WATCH_ENDPOINT__REPLAY_BATCH_SIZE": "7",
    }
    with Server(plain, tmp_path, environment) as server:
        server.client.publish("tide", {"port": "oslo", "level": "3"})
        assert server.port > 1
        assert not (tmp_path / "log").exists()
        with server.client.watch("tide", {"port": "oslo"}, from_id="1") as stream:
            assert stream.next().data["batch_size"] == 7


@pytest.mark.parametrize("value", ["yes", "TRUE", "on", "1"])
def test_case_227_booleans(tmp_path: Path, value: str) -> None:
    """Switched on by the environment, authentication lacks its roles and secret."""
    with pytest.raises(StartFailed) as failure:
        Server(read("plain"), tmp_path, {"AVISOSERVER_AUTH__ENABLED": value}).start()
    assert "auth.admin_roles" in failure.value.output
    assert "auth.jwt_secret" in failure.value.output


@pytest.mark.parametrize("mode", ["direct", "trusted_proxy"])
def test_case_222_authentication_that_is_complete(tmp_path: Path, mode: str) -> None:
    with Server(changed(read("plain"), auth(mode=mode)), tmp_path) as server:
        assert server.client.delete("/api/v1/admin/wipe/all").status == 401
        assert server.client.notify("tide", {"port": "oslo", "level": 1}).status == 200


def test_case_223_authentication_of_a_stream_that_is_complete(tmp_path: Path) -> None:
    roles = {"localrealm": ["reader", "*"]}
    changes = stream_auth(True, required=True, read_roles=roles, write_roles=roles)
    with Server(changed(read("plain"), changes), tmp_path) as server:
        assert server.client.notify("tide", {"port": "oslo", "level": 1}).status == 401


def test_case_227_authentication_switched_on(tmp_path: Path) -> None:
    with Server(changed(read("plain"), auth(enabled=False)), tmp_path, {"AVISOSERVER_AUTH__ENABLED": "yes"}) as server:
        assert server.client.delete("/api/v1/admin/wipe/all").status == 401


def test_case_227_booleans_off(tmp_path: Path) -> None:
    with Server(read("plain"), tmp_path, {"AVISOSERVER_AUTH__ENABLED": "off"}) as server:
        assert server.client.answer("notification", body("tide", {"port": "oslo", "level": 1})).status == 200


def test_defaults_are_filled(tmp_path: Path) -> None:
    """A date without canonical_format is accepted, and so is an unknown key outside the strict sections."""
    day = {"type": "DateHandler", "required": False}
    changes = {"spare_key": 1, **tide(identifier={"day": day}, topic={"key_order": ["port", "level", "day"]})}
    with Server(changed(read("plain"), changes), tmp_path) as server:
        server.client.publish("tide", {"port": "oslo", "level": 1, "day": "2025-07-06"})
        (event,) = server.client.replay("tide", {"port": "oslo"}).notifications
    assert event["data"]["identifier"]["day"] == "20250706"


def test_sqlite_keeps_history_and_sequence(tmp_path: Path) -> None:
    """The log on disk survives an orderly end and a crash."""
    with Server(read("plain"), tmp_path) as server:
        server.client.publish("tide", {"port": "oslo", "level": 1})
        server.restart()
        server.client.publish("tide", {"port": "oslo", "level": 2})
        server.kill()
        server.start()
        server.client.publish("tide", {"port": "oslo", "level": 3})
        events = server.client.replay("tide", {"port": "oslo"}).notifications
    assert [event["id"] for event in events] == ["tide@1", "tide@2", "tide@3"]
    assert [event["data"]["identifier"]["level"] for event in events] == ["1", "2", "3"]
