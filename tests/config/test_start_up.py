"""Configurations that must not start: cases 221 to 227 and the rulings about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aviso_server.config import shown
from tests.config.configurations import EVENT_TYPE, inspected, keys, problems_at

AUTH = """
auth:
  enabled: true
  mode: direct
  auth_o_tron_url: http://127.0.0.1:9
  jwt_secret: s3cret
  admin_roles: {localrealm: [admin]}
"""


def test_case_221_unknown_kind(tmp_path: Path) -> None:
    [problem] = inspected(tmp_path, "notification_backend: {kind: tape}").problems
    assert problem.key == "notification_backend.kind"
    assert "tape" in problem.message
    assert problem.accepted == "sqlite, in_memory, jetstream"


@pytest.mark.parametrize("key", ["sse_heartbeat_interval_sec", "replay_batch_size", "max_historical_notifications"])
def test_ruling_d10_zero_is_refused(key: str, tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, f"watch_endpoint: {{{key}: 0}}")) == {f"watch_endpoint.{key}"}
    assert keys(inspected(tmp_path, f"watch_endpoint: {{{key}: 1}}")) == set()


@pytest.mark.parametrize(
    "key",
    [
        "timeout_seconds",
        "retry_attempts",
        "reconnect_delay_ms",
        "publish_retry_attempts",
        "publish_retry_base_delay_ms",
    ],
)
def test_jetstream_numbers_above_zero(key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, f"notification_backend: {{jetstream: {{{key}: 0}}}}")
    assert keys(found) == {f"notification_backend.jetstream.{key}"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nats_url", "' '"),
        ("retention_time", "0s"),
        ("retention_time", "10"),
        ("storage_type", "tape"),
        ("retention_policy", "all"),
        ("discard_policy", "none"),
        ("replicas", "-1"),
    ],
)
def test_jetstream_values(key: str, value: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, f"notification_backend: {{jetstream: {{{key}: {value}}}}}")
    assert keys(found) == {f"notification_backend.jetstream.{key}"}


def test_jetstream_values_that_are_fine(tmp_path: Path) -> None:
    members = "max_messages: -1, max_bytes: 2048, retention_time: 1h, max_reconnect_attempts: 0"
    found = inspected(tmp_path, f"notification_backend: {{jetstream: {{{members}}}}}")
    assert found.problems == ()
    assert found.settings.notification_backend.jetstream.retention_time == 3600 * 10**9


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("admin_roles: {localrealm: [admin]}", "admin_roles: {}"), "auth.admin_roles"),
        (("admin_roles: {localrealm: [admin]}", ""), "auth.admin_roles"),
        (("[admin]", "[]"), "auth.admin_roles.localrealm"),
        (("[admin]", "[' admin']"), "auth.admin_roles.localrealm[0]"),
        (("[admin]", "['']"), "auth.admin_roles.localrealm[0]"),
        (("localrealm", "' realm'"), "auth.admin_roles. realm"),
        (("jwt_secret: s3cret", ""), "auth.jwt_secret"),
        (("jwt_secret: s3cret", "jwt_secret: ' s3cret'"), "auth.jwt_secret"),
        (("auth_o_tron_url: http://127.0.0.1:9", ""), "auth.auth_o_tron_url"),
        (("http://127.0.0.1:9", "'http://127.0.0.1:9 '"), "auth.auth_o_tron_url"),
        (("http://127.0.0.1:9", "auth-o-tron:8080"), "auth.auth_o_tron_url"),
        (("http://127.0.0.1:9", "http://user:pw@127.0.0.1:9"), "auth.auth_o_tron_url"),
        (("http://127.0.0.1:9", "http://127.0.0.1:9?realm=x"), "auth.auth_o_tron_url"),
        (("jwt_secret: s3cret", "jwt_secret: '-----BEGIN PUBLIC KEY-----'"), "auth.jwt_secret"),
        (("mode: direct", "timeout_ms: 0"), "auth.timeout_ms"),
        (("mode: direct", "mode: other"), "auth.mode"),
        (("mode: direct", "nobody: 1"), "auth.nobody"),
    ],
)
def test_case_222_auth(change: tuple[str, str], key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, AUTH.replace(*change))
    assert keys(found) == {key}
    assert "s3cret" not in str(found.problems)


def test_an_unknown_mode_is_all_that_is_said_of_modes(tmp_path: Path) -> None:
    found = inspected(tmp_path, "auth: {enabled: true, mode: foo, admin_roles: {r: [admin]}}")
    assert keys(found) == {"auth.mode", "auth.jwt_secret"}
    assert "direct" not in problems_at(found, "auth.jwt_secret")[0].message


@pytest.mark.parametrize(
    "key",
    [
        "limits.max_connections",
        "notification_backend.jetstream.max_bytes",
        "notification_schema.tide.storage_policy.max_messages",
    ],
)
def test_a_number_that_is_too_large_hears_of_the_largest(key: str, tmp_path: Path) -> None:
    text = f"{'9' * 26}"
    for name in reversed(key.split(".")):
        text = f"{{{name}: {text}}}"
    [problem] = problems_at(inspected(tmp_path, text), key)
    assert "9223372036854775807" in problem.accepted


def test_trusted_proxy_needs_no_service(tmp_path: Path) -> None:
    text = AUTH.replace("mode: direct", "mode: trusted_proxy").replace("auth_o_tron_url: http://127.0.0.1:9", "")
    assert inspected(tmp_path, text).problems == ()


def test_auth_that_is_off_need_not_be_complete(tmp_path: Path) -> None:
    assert inspected(tmp_path, "auth: {enabled: false, timeout_ms: 0}").problems == ()


@pytest.mark.parametrize("port", ["", "port: 0", "port: 8000", "port: 65536", "port: abc"])
def test_case_224_metrics(port: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, f"metrics:\n  enabled: true\n  {port}\n")
    assert keys(found) == {"metrics.port"}
    assert len(problems_at(found, "metrics.port")) == 1


def test_an_archive_needs_a_log_that_survives_a_restart(tmp_path: Path) -> None:
    for kind in ("sqlite", "jetstream"):
        assert inspected(tmp_path, f"archive: {{enabled: true}}\nnotification_backend: {{kind: {kind}}}").problems == ()
    text = "archive: {enabled: true}\nnotification_backend: {kind: in_memory}"
    [problem] = inspected(tmp_path, text).problems
    assert problem.key == "archive.enabled"
    assert "survives a restart" in problem.message


def test_switched_off_features_may_be_configured(tmp_path: Path) -> None:
    text = AUTH.replace("enabled: true", "enabled: false") + (
        "metrics: {enabled: false, port: 9090}\n"
        "logging: {otlp: {enabled: false, endpoint: 'http://collector:4318', protocol: http}}\n"
        "archive: {enabled: false, path: 's3a://bucket/archive', interval: 1m, spark: 'spark://host:7077'}\n"
        "ecpds: {username: u, servers: ['https://ecpds.example.org']}\n"
    )
    found = inspected(tmp_path, text)
    assert found.problems == ()
    assert found.settings.archive.interval == 60 * 10**9


@pytest.mark.parametrize(
    "endpoint", ["", "endpoint: ''", "endpoint: 'ftp://x'", "endpoint: 'http://'", "protocol: tcp"]
)
def test_otlp(endpoint: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, f"logging:\n  otlp:\n    enabled: true\n    {endpoint}\n")
    assert "logging.otlp.endpoint" in keys(found)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "yarn", "spark://h:7077", "sc://h:15002/;token=x"])
def test_spark_masters(master: str, tmp_path: Path) -> None:
    assert inspected(tmp_path, f"archive: {{spark: '{master}'}}").problems == ()


@pytest.mark.parametrize("master", ["", "locally", "local[0]", "http://h:1", "spark://"])
def test_not_spark_masters(master: str, tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, f"archive: {{spark: '{master}'}}")) == {"archive.spark"}


@pytest.mark.parametrize(
    "url", ["http://localhost", "https://aviso.example.org/x", "localhost:8000", "http://[::1]:8000"]
)
def test_base_urls(url: str, tmp_path: Path) -> None:
    assert inspected(tmp_path, f"application: {{base_url: '{url}'}}").problems == ()


@pytest.mark.parametrize(
    "url", ["", " ", "aviso.example.org", "/path", "http://", "http://host:99999", "http://a b", "http://[::1"]
)
def test_not_base_urls(url: str, tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, f"application: {{base_url: '{url}'}}")) == {"application.base_url"}


@pytest.mark.parametrize(
    "url", ["", "docs", "//host/x", "ftp://host/", "https://", "https://user:pw@host/", "javascript:alert(1)"]
)
def test_home_page_links(url: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, f"application: {{homepage: {{client_repository_url: '{url}'}}}}")
    assert keys(found) == {"application.homepage.client_repository_url"}
    assert inspected(tmp_path, "application: {homepage: {client_repository_url: 'http://host/x'}}").problems == ()


def test_unknown_keys_are_warnings_with_a_suggestion(tmp_path: Path) -> None:
    found = inspected(tmp_path, "watch_endpoint: {replay_batchsize: 5}\nwholly_different: {a: 1}\n")
    assert found.problems == ()
    first, second = found.warnings
    assert first.key == "watch_endpoint.replay_batchsize"
    assert "watch_endpoint.replay_batch_size" in first.message
    assert second.key == "wholly_different"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("watch_endpoints: {replay_batch_size: 5}", "watch_endpoint"),
        ("WATCH_ENDPOINT: {replay_batch_size: 5}", "watch_endpoint"),
        ("notification_backend: {inmemory: {max_topics: 5}}", "notification_backend.in_memory"),
        ("notification_schemas: {}", "notification_schema"),
        (EVENT_TYPE + "    storage_polcy: {max_messages: 5}", "notification_schema.tide.storage_policy"),
        ("limit.max_connections: 5", "limits.max_connections"),
    ],
)
def test_the_suggestion_stands_where_the_misspelt_key_does(text: str, meant: str, tmp_path: Path) -> None:
    [warning] = inspected(tmp_path, text).warnings
    assert f"did you mean {meant}?" in warning.message


@pytest.mark.parametrize("section", ["auth", "ecpds"])
def test_unknown_keys_that_stop_the_start(section: str, tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, f"{section}: {{nobody: 1}}")) == {f"{section}.nobody"}


def test_an_event_type_may_be_called_auth(tmp_path: Path) -> None:
    found = inspected(tmp_path, EVENT_TYPE.replace("  tide:", "  auth:") + "    colour: red\n")
    assert found.problems == ()
    assert [warning.key for warning in found.warnings] == ["notification_schema.auth.colour"]


def test_a_misspelt_key_of_an_event_type(tmp_path: Path) -> None:
    [warning] = inspected(tmp_path, EVENT_TYPE + "    storage_polcy: {max_messages: 5}\n").warnings
    assert warning.key == "notification_schema.tide.storage_polcy"
    assert warning.source == f"{tmp_path / 'config.yaml'}:7"


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    text = (
        AUTH
        + "ecpds: {password: hidden}\nnotification_backend: {jetstream: {token: t0ken, nats_url: 'nats://u:hush@h'}}"
    )
    settings = inspected(tmp_path, text).settings
    assert settings.auth.jwt_secret == "s3cret"
    for word in ("s3cret", "hidden", "t0ken"):
        assert word not in repr(settings)
        assert word not in str(shown(settings))
    assert "hush" not in str(shown(settings))


ECPDS = (
    EVENT_TYPE
    + """
    auth: {required: true, plugins: [ecpds]}
"""
    + AUTH
    + """
ecpds:
  username: user
  password: hidden
  match_key: port
  servers: ['https://ecpds.example.org', 'http://[::1]:8080']
"""
)


def test_ecpds_that_is_fine(tmp_path: Path) -> None:
    found = inspected(tmp_path, ECPDS)
    assert found.problems == ()
    assert found.settings.stream_auth["tide"].plugins == ("ecpds",)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("username: user", "username: ''"), "ecpds.username"),
        (("password: hidden", ""), "ecpds.password"),
        (("password: hidden", "password: ' hidden'"), "ecpds.password"),
        (("match_key: port", ""), "ecpds.match_key"),
        (("match_key: port", "match_key: a/b"), "ecpds.match_key"),
        (("match_key: port", "match_key: ship"), "notification_schema.tide.identifier"),
        (("required: true}\n    topic", "required: false}\n    topic"), "notification_schema.tide.identifier"),
        (("https://ecpds.example.org", "http://ecpds.example.org"), "ecpds.servers[0]"),
        (("https://ecpds.example.org", "https://ecpds.example.org?x=1"), "ecpds.servers[0]"),
        (("https://ecpds.example.org", "ecpds.example.org"), "ecpds.servers[0]"),
        (("['https://ecpds.example.org', 'http://[::1]:8080']", "[]"), "ecpds.servers"),
        (("username: user", "username: user\n  target_field: ' '"), "ecpds.target_field"),
        (("username: user", "username: user\n  cache_ttl_seconds: 0"), "ecpds.cache_ttl_seconds"),
        (("username: user", "username: user\n  max_entries: 0"), "ecpds.max_entries"),
        (("username: user", "username: user\n  request_timeout_seconds: 0"), "ecpds.request_timeout_seconds"),
        (("username: user", "username: user\n  connect_timeout_seconds: 0"), "ecpds.connect_timeout_seconds"),
        (("username: user", "username: user\n  partial_outage_policy: maybe"), "ecpds.partial_outage_policy"),
    ],
)
def test_ecpds_rules(change: tuple[str, str], key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, ECPDS.replace(*change))
    assert key in keys(found)
    assert "hidden" not in str(found.problems)


def test_ecpds_without_its_section(tmp_path: Path) -> None:
    assert "ecpds" in keys(inspected(tmp_path, ECPDS.partition("\necpds:")[0]))
