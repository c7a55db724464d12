"""Configurations that must not start: cases 221 to 227, the keys of tokens, and the broker."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from aviso_server.config import Inspection, Settings, shown
from aviso_server.config.checks import algorithms_of, read_public_keys
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


@pytest.mark.parametrize("path", ["hdfs://head/archive", "gs://bucket/archive"])
def test_stores_that_nobody_reaches(path: str, tmp_path: Path) -> None:
    [problem] = inspected(tmp_path, f"archive: {{path: '{path}'}}").problems
    assert (problem.key, problem.accepted) == ("archive.path", "a folder, file://…, s3://… or s3a://…")


def test_workers_have_to_reach_the_server(tmp_path: Path) -> None:
    """On another machine 0.0.0.0 and 127.0.0.1 are that machine."""

    def warned(host: str, archive: str) -> list[str]:
        found = inspected(tmp_path, f"application: {{host: '{host}'}}\narchive: {{enabled: true, {archive}}}")
        assert found.problems == ()
        return [each.key for each in found.warnings]

    for host in ("0.0.0.0", "127.0.0.1", "::"):
        assert warned(host, "spark: 'spark://head:7077'") == ["archive.url"]
        assert warned(host, "spark: 'spark://head:7077', url: 'http://aviso:8000'") == []
        assert warned(host, "spark: 'local[2]'") == []
    assert warned("10.1.2.3", "spark: 'spark://head:7077'") == []
    assert keys(inspected(tmp_path, "archive: {url: 'aviso:8000'}")) == {"archive.url"}


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


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "yarn", "spark://h:7077", "k8s://https://h:6443", "sc://h:1/;token=x"]
)
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


def test_durations_are_shown_as_they_are_written(tmp_path: Path) -> None:
    backend = "notification_backend: {jetstream: {retention_time: 2h}}"
    text = f"archive: {{interval: 90s}}\nidempotency: {{retention: 14d}}\n{backend}"
    found = shown(inspected(tmp_path, text).settings)
    assert (found["archive"]["interval"], found["idempotency"]["retention"]) == ("90s", "2w")
    assert found["notification_backend"]["jetstream"]["retention_time"] == "2h"
    assert shown(Settings())["notification_backend"]["jetstream"]["retention_time"] is None


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


RSA = rsa.generate_private_key(65537, 2048)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
K256 = ec.generate_private_key(ec.SECP256K1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()


def pem(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey) -> str:
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def certificate() -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(RSA.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(RSA, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


PRIVATE = EDWARDS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def section(**members: object) -> str:
    usual = {"enabled": True, "mode": "trusted_proxy", "admin_roles": {"r": ["admin"]}}
    return json.dumps({"auth": {**usual, **members}})


@pytest.mark.parametrize(
    ("text", "algorithms"),
    [
        (pem(RSA), {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        (certificate(), {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        (pem(P256), {"ES256"}),
        (pem(P384), {"ES384"}),
        (pem(EDWARDS), {"EdDSA"}),
    ],
    ids=["rsa", "certificate", "p-256", "p-384", "ed25519"],
)
def test_a_key_is_good_for_its_own_algorithms_only(text: str, algorithms: set[str], tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(f"the key of the issuer\n{text}")
    (key,) = read_public_keys(file)
    assert set(algorithms_of(key)) == algorithms


def test_a_file_may_hold_several_keys(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(RSA) + pem(EDWARDS))
    assert len(read_public_keys(file)) == 2
    assert inspected(tmp_path, section(public_key_file=str(file))).problems == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no PEM block"),
        ("hello", "no PEM block"),
        ("é", "not PEM text"),
        (PRIVATE, "private key"),
        (pem(RSA) + PRIVATE, "private key"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a public key or a certificate"),
        (pem(rsa.generate_private_key(65537, 1024)), "too weak"),
        (pem(K256), "no accepted algorithm"),
        (pem(dsa.generate_private_key(2048)), "no accepted algorithm"),
    ],
    ids=["empty", "words", "not ascii", "private", "public and private", "key", "certificate", "short", "curve", "dsa"],
)
def test_what_is_not_a_public_key(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(text, encoding="utf-8")
    found = inspected(tmp_path, section(public_key_file=str(file)))
    [problem] = found.problems
    assert problem.key == "auth.public_key_file"
    assert words in problem.message


def test_a_missing_file(tmp_path: Path) -> None:
    [problem] = inspected(tmp_path, section(public_key_file=str(tmp_path / "none.pem"))).problems
    assert problem.key == "auth.public_key_file"
    assert "cannot be read" in problem.message


def test_one_kind_of_key_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(RSA))
    given = {"jwt_secret": "s3cret", "public_key_file": str(file), "jwks_url": "https://issuer.example.org/keys"}
    for name, value in given.items():
        assert inspected(tmp_path, section(**{name: value})).problems == ()
    for left_out, expected in (
        ("jwt_secret", {"auth.jwks_url"}),
        ("public_key_file", {"auth.jwks_url"}),
        ("jwks_url", {"auth.public_key_file"}),
        ("", {"auth.public_key_file", "auth.jwks_url"}),
    ):
        members = {name: value for name, value in given.items() if name != left_out}
        assert keys(inspected(tmp_path, section(**members))) == expected
    assert keys(inspected(tmp_path, section())) == {"auth.jwt_secret"}


@pytest.mark.parametrize(
    ("members", "key"),
    [
        ({"algorithms": ["HS256"]}, "auth.algorithms[0]"),
        ({"algorithms": ["RS256", "none"]}, "auth.algorithms[1]"),
        ({"algorithms": ["rs256"]}, "auth.algorithms[0]"),
        ({"algorithms": "RS256"}, "auth.algorithms"),
        ({"audience": " aviso"}, "auth.audience"),
        ({"issuer": "me "}, "auth.issuer"),
        ({"jwks_url": "http://issuer.example.org/keys"}, "auth.jwks_url"),
        ({"jwks_url": "https://u:p@issuer.example.org/keys"}, "auth.jwks_url"),
        ({"jwks_url": "issuer.example.org"}, "auth.jwks_url"),
    ],
)
def test_values(members: dict[str, object], key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, section(**{"jwks_url": "https://issuer.example.org/keys?v=1", **members}))
    assert keys(found) == {key}


def test_algorithms_need_public_keys(tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, section(jwt_secret="s", algorithms=["RS256"]))) == {"auth.algorithms"}
    assert keys(inspected(tmp_path, section(jwt_secret="s", algorithms=["HS256"]))) == {"auth.algorithms"}


def test_algorithms_must_fit_the_key(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(P384))
    assert keys(inspected(tmp_path, section(public_key_file=str(file)))) == {"auth.algorithms"}
    assert inspected(tmp_path, section(public_key_file=str(file), algorithms=["ES384"])).problems == ()


SECTION = "notification_backend.jetstream"
KEY, OTHER_KEY = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


def broker_certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aviso")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def private(key: ec.EllipticCurvePrivateKey = KEY, how: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption())


CERTIFICATE = broker_certificate()


def with_broker(folder: Path, **members: object) -> Inspection:
    return inspected(folder, json.dumps({"notification_backend": {"kind": "jetstream", "jetstream": members}}))


def with_files(folder: Path, **contents: bytes) -> Inspection:
    """A configuration whose `tls` section names a file with each of these contents."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return with_broker(folder, tls={name: str(folder / name) for name in contents})


@pytest.mark.parametrize(
    "url",
    [
        "nats://localhost:4222",
        "nats://localhost",
        "nats://user:p%40ss@broker:4222",
        "tls://broker:4222",
        "nats://a:4222,nats://b:4222",
        "nats://a, nats://b",
        "broker",
        "broker:4222",
        "user:pw@broker:4222",
        "nats://[::1]:4222",
    ],
)
def test_addresses(url: str, tmp_path: Path) -> None:
    assert with_broker(tmp_path, nats_url=url).problems == ()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://127.0.0.1:notaport", "port"),
        ("nats://127.0.0.1:70000", "port"),
        ("nats://127.0.0.1:0", "port 0"),
        ("nats://:4222", "no host"),
        ("nats://", "no host"),
        ("nats://a b", "blanks"),
        ("nats://a,,nats://b", "address 2 of 3 is empty"),
        ("nats://a,", "address 2 of 2 is empty"),
        ("http://foo", "scheme 'http://'"),
        ("NATS://foo", "scheme 'NATS://'"),
        ("nats://a,http://u:hush@b", "address 2 of 2 has the scheme 'http://'"),
        ("nats://u:hush@:x", "port"),
    ],
)
def test_what_is_no_address(url: str, words: str, tmp_path: Path) -> None:
    [problem] = with_broker(tmp_path, nats_url=url).problems
    assert problem.key == f"{SECTION}.nats_url"
    assert words in problem.message
    assert "nats://host:port" in problem.accepted
    assert "hush" not in str(problem)


def test_web_sockets_need_their_package(tmp_path: Path) -> None:
    """The client of the broker speaks them with aiohttp, which this server does not bring along."""
    [problem] = with_broker(tmp_path, nats_url="wss://broker").problems
    assert "aiohttp" in problem.message


def test_the_broker_counts_only_when_it_is_used(tmp_path: Path) -> None:
    members: dict[str, object] = {"nats_url": "http://foo", "credentials_file": "none", "tls": {"ca_file": "none"}}
    assert inspected(tmp_path, json.dumps({"notification_backend": {"jetstream": members}})).problems == ()
    assert keys(with_broker(tmp_path, **members)) == {
        f"{SECTION}.nats_url",
        f"{SECTION}.credentials_file",
        f"{SECTION}.tls.ca_file",
    }


def test_files_that_are_fine(tmp_path: Path) -> None:
    assert with_files(tmp_path, ca_file=CERTIFICATE, cert_file=CERTIFICATE, key_file=private()).problems == ()
    assert with_files(tmp_path, cert_file=CERTIFICATE + private()).problems == ()


@pytest.mark.parametrize(
    ("contents", "name", "words"),
    [
        ({"ca_file": b"hello"}, "ca_file", "no certificate"),
        ({"ca_file": b""}, "ca_file", "no certificate"),
        ({"cert_file": b"hello", "key_file": private()}, "cert_file", "no certificate"),
        ({"cert_file": CERTIFICATE, "key_file": b"hello"}, "key_file", "no private key"),
        ({"cert_file": CERTIFICATE}, "key_file", "must be set"),
        ({"cert_file": CERTIFICATE, "key_file": private(OTHER_KEY)}, "key_file", "not the key of the certificate"),
        ({"cert_file": CERTIFICATE, "key_file": private(KEY, BestAvailableEncryption(b"x"))}, "key_file", "encrypted"),
        (
            {
                "cert_file": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "key_file": private(),
            },
            "cert_file",
            "cannot be used",
        ),
    ],
    ids=["words", "empty", "no certificate", "no key", "key nowhere", "other key", "encrypted", "broken"],
)
def test_files_that_are_not(contents: dict[str, bytes], name: str, words: str, tmp_path: Path) -> None:
    [problem] = with_files(tmp_path, **contents).problems
    assert problem.key == f"{SECTION}.tls.{name}"
    assert words in problem.message
    assert "PEM" in problem.accepted


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder = str(tmp_path / "none"), str(tmp_path)
    found = with_broker(
        tmp_path, credentials_file=missing, tls={"ca_file": folder, "cert_file": missing, "key_file": missing}
    )
    assert keys(found) == {
        f"{SECTION}.{name}" for name in ("credentials_file", "tls.ca_file", "tls.cert_file", "tls.key_file")
    }
    assert all("cannot be read" in problem.message for problem in found.problems)
    assert all(problem.source.startswith(str(tmp_path / "config.yaml")) for problem in found.problems)


def user_seed() -> str:
    body = bytes([(18 << 3) | (20 >> 2), (20 & 3) << 6]) + bytes(range(32))
    crc = 0
    for byte in body:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return base64.b32encode(body + crc.to_bytes(2, "little")).rstrip(b"=").decode()


CREDENTIALS = """-----BEGIN NATS USER JWT-----
a.b.c
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
%s
------END USER NKEY SEED------
"""


def test_credentials(tmp_path: Path) -> None:
    file = tmp_path / "aviso.creds"
    for content, problems in (
        (CREDENTIALS % user_seed(), 0),
        (CREDENTIALS % "SUANOSEED", 1),
        ("hello", 1),
        ("", 1),
        ((CREDENTIALS % user_seed()).partition("-----BEGIN USER")[0], 1),
    ):
        file.write_text(content)
        found = with_broker(tmp_path, credentials_file=str(file))
        assert [problem.key for problem in found.problems] == [f"{SECTION}.credentials_file"] * problems, content
