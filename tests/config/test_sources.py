"""Files, variables and who wins; YAML as it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aviso_server.config import inspect, load
from aviso_server.config.settings import Settings
from aviso_server.errors import ConfigError
from tests.config.configurations import inspected, keys, problems_at


def test_nothing_at_all_gives_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load({"HOME": str(tmp_path)})
    assert (settings.application.host, settings.application.port) == ("127.0.0.1", 8000)
    assert settings.application.base_url == "http://localhost"
    assert settings.notification_backend.kind == "sqlite"
    assert settings.notification_backend.sqlite.path == Path("data/log")
    watch = settings.watch_endpoint
    assert (watch.sse_heartbeat_interval_sec, watch.replay_batch_delay_ms) == (10, 0)
    assert watch.max_historical_notifications is None
    assert (watch.connection_max_duration_sec, watch.replay_batch_size) == (3600, 100)
    assert (settings.strict, settings.schema_configured, settings.event_types) == (False, False, ())


def test_later_files_win_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    near, home = tmp_path / "configuration" / "config.yaml", tmp_path / ".aviso_server" / "config.yaml"
    for file, text in ((near, "{host: 10.0.0.1, port: 1}"), (home, "{port: 2}")):
        file.parent.mkdir()
        file.write_text(f"application: {text}\n", encoding="utf-8")
    application = load({"HOME": str(tmp_path)}).application
    assert (application.host, application.port) == ("10.0.0.1", 2)


def test_a_named_file_is_the_only_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configuration").mkdir()
    (tmp_path / "configuration" / "config.yaml").write_text("application: {port: 1}\n", encoding="utf-8")
    named = tmp_path / "named.yaml"
    named.write_text("application: {host: 10.0.0.1}\n", encoding="utf-8")
    application = load({"AVISOSERVER_CONFIG_FILE": str(named)}).application
    assert (application.host, application.port) == ("10.0.0.1", 8000)


@pytest.mark.parametrize("value", ["", "   ", "nowhere.yaml", ".", "\udcff.yaml"])
def test_case_226_a_named_file_must_be_a_file(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [problem] = inspect({"AVISOSERVER_CONFIG_FILE": value}).problems
    assert problem.source == "AVISOSERVER_CONFIG_FILE"
    assert problem.accepted


@pytest.mark.parametrize("prefix", ["AVISOSERVER_", "avisoserver_", "AvisoServer_"])
def test_case_227_variables_win_in_any_case(prefix: str, tmp_path: Path) -> None:
    variables = {f"{prefix}APPLICATION__PORT": "0", f"{prefix}Notification_Backend__Kind": "in_memory"}
    found = inspected(tmp_path, "application: {port: 9, host: 10.0.0.1}", variables)
    assert found.problems == ()
    assert (found.settings.application.port, found.settings.application.host) == (0, "10.0.0.1")
    assert found.settings.notification_backend.kind == "in_memory"


@pytest.mark.parametrize(("word", "enabled"), [("yes", True), ("ON", True), ("1", True), ("no", False), ("0", False)])
def test_case_227_words_for_a_switch(word: str, enabled: bool, tmp_path: Path) -> None:
    found = inspected(tmp_path, "", {"AVISOSERVER_AUTH__ENABLED": word})
    assert found.settings.auth.enabled is enabled


def test_one_member_of_watch_endpoint_is_enough(tmp_path: Path) -> None:
    found = inspected(tmp_path, "", {"AVISOSERVER_WATCH_ENDPOINT__REPLAY_BATCH_SIZE": "7"})
    assert found.problems == ()
    assert found.settings.watch_endpoint.replay_batch_size == 7
    assert found.settings.watch_endpoint.sse_heartbeat_interval_sec == 10


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("AVISOSERVER_APPLICATION__PORT", "65536", "application.port"),
        ("AVISOSERVER_APPLICATION__PORT", "-1", "application.port"),
        ("AVISOSERVER_APPLICATION__PORT", " 80", "application.port"),
        ("AVISOSERVER_APPLICATION__PORT", "", "application.port"),
        ("AVISOSERVER_APPLICATION", "x", "application"),
        ("AVISOSERVER_METRICS__ENABLED", "maybe", "metrics.enabled"),
        ("AVISOSERVER_ECPDS__SERVERS", "https://a", "ecpds.servers"),
        ("AVISOSERVER_AUTH__ADMIN_ROLES__REALM", "admin", "auth.admin_roles.realm"),
        ("AVISOSERVER_AUTH__NOBODY", "x", "auth.nobody"),
        ("AVISOSERVER_LOGGING__LEVEL", "\udcff", "logging.level"),
    ],
)
def test_a_problem_names_its_variable(variable: str, value: str, key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, "", {variable: value})
    [problem] = problems_at(found, key)
    assert problem.source == variable
    assert problem.accepted


def test_a_problem_names_its_file_and_line(tmp_path: Path) -> None:
    found = inspected(tmp_path, "\nwatch_endpoint:\n  replay_batch_size: 0\n")
    [problem] = found.problems
    assert problem.source == f"{tmp_path / 'config.yaml'}:3"
    assert (
        str(problem)
        == f"{problem.source}: watch_endpoint.replay_batch_size: {problem.message} (accepted: {problem.accepted})"
    )


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = "{application: {port: x}, notification_backend: {kind: tape}, watch_endpoint: {replay_batch_size: 0}}"
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load({"AVISOSERVER_LIMITS__MAX_BODY_BYTES": "none"}, file)
    assert {problem.key for problem in caught.value.problems} == {
        "application.port",
        "notification_backend.kind",
        "watch_endpoint.replay_batch_size",
        "limits.max_body_bytes",
    }


def test_null_means_absent(tmp_path: Path) -> None:
    found = inspected(tmp_path, "application: {port: ~}\nauth:\nnotification_schema: null\n")
    assert found.problems == ()
    assert found.settings.application.port == Settings().application.port
    assert found.settings.schema_configured is False


def test_other_variables(tmp_path: Path) -> None:
    variables = {"NATS_TOKEN": "s3cret", "K8S_NAMESPACE_NAME": "aviso", "HOSTNAME": "node", "RUST_LOG": "debug"}
    settings = inspected(tmp_path, "", variables).settings
    assert settings.notification_backend.jetstream.token == "s3cret"
    assert (settings.deployment.namespace, settings.deployment.pod) == ("aviso", "node")
    assert settings.log_level == "debug"
    named = inspected(tmp_path, "notification_backend: {jetstream: {token: own}}", {**variables, "K8S_POD_NAME": "pod"})
    assert named.settings.notification_backend.jetstream.token == "own"
    assert named.settings.deployment.pod == "pod"


@pytest.mark.parametrize(
    ("level", "rust_log", "effective"),
    [
        ("warn", "", "warn"),
        ("warn", "  ", "warn"),
        ("WARN", "", "warn"),
        ("loud", "", "info"),
        ("warn", "trace", "trace"),
        ("warn", "hyper=error,aviso_server=debug", "debug"),
        ("warn", "hyper=error", "warn"),
    ],
)
def test_log_level(level: str, rust_log: str, effective: str, tmp_path: Path) -> None:
    settings = inspected(tmp_path, f"logging: {{level: {level}, format: json}}", {"RUST_LOG": rust_log}).settings
    assert (settings.log_level, settings.warnings) == (effective, ())


def test_an_unreadable_rust_log_is_a_warning(tmp_path: Path) -> None:
    found = inspected(tmp_path, "logging: {level: error, format: json}", {"RUST_LOG": "a=b=c"})
    assert found.problems == ()
    assert found.settings.log_level == "error"
    [warning] = found.settings.warnings
    assert "RUST_LOG" in warning


def test_keys_keep_their_case_in_files(tmp_path: Path) -> None:
    found = inspected(tmp_path, "APPLICATION: {port: x}")
    assert keys(found) == set()
    assert [warning.key for warning in found.warnings] == ["APPLICATION"]


@pytest.mark.parametrize("text", ["", "\n", "# nothing here\n", "---\n", "{}"])
def test_an_empty_file_is_fine(text: str, tmp_path: Path) -> None:
    assert inspected(tmp_path, text).problems == ()


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "42", "- a\n- b\n"])
def test_a_file_must_be_a_mapping(text: str, tmp_path: Path) -> None:
    [problem] = inspected(tmp_path, text).problems
    assert "not a mapping" in problem.message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("application:\n  port: [1\n", 3),
        ("a: 1\nb: 'open\n", 3),
        ("a: b: c\n", 1),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: *nobody\n", 1),
    ],
)
def test_broken_syntax_is_reported_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    [problem] = inspect({}, file).problems
    assert problem.source == f"{file}:{line}"
    assert "not valid YAML" in problem.message


def test_a_key_twice_is_a_problem(tmp_path: Path) -> None:
    found = inspected(tmp_path, "application:\n  port: 1\n  host: 10.0.0.1\n  port: 2\n")
    [problem] = found.problems
    assert (problem.key, problem.source) == ("application.port", f"{tmp_path / 'config.yaml'}:4")


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.getcwd []", "!mine {}", "!mine x"])
def test_tags_are_refused_and_never_run(tag: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, f"application: {tag}\n")
    [problem] = problems_at(found, "application")
    assert "tag" in problem.message


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"application: \xff\xfe\n")
    [problem] = inspect({}, file).problems
    assert "UTF-8" in problem.message


def test_aliases_may_not_contain_themselves(tmp_path: Path) -> None:
    found = inspected(tmp_path, "application: &a\n  host: 10.0.0.1\n  homepage: *a\n")
    assert any("nested" in problem.message for problem in found.problems)


def test_multiplying_aliases_end_in_a_problem(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    found = inspected(tmp_path, "\n".join(lines) + "\n")
    assert any("too many" in problem.message for problem in found.problems)


def test_deep_nesting_ends_in_a_problem(tmp_path: Path) -> None:
    found = inspected(tmp_path, "a: " + "[" * 5000 + "]" * 5000 + "\n")
    assert any("nested" in problem.message for problem in found.problems)


def test_text_stays_as_written(tmp_path: Path) -> None:
    found = inspected(
        tmp_path,
        """
        auth: {jwt_secret: 0123}
        notification_schema:
          run:
            identifier:
              expver: {type: ExpverHandler, required: yes, default: 0010}
              flag: {type: EnumHandler, required: no, values: [on, off, 0001, 2025-01-01]}
            topic: {base: run, key_order: [expver, flag]}
        """,
    )
    assert found.problems == ()
    assert found.settings.auth.jwt_secret == "0123"
    fields = found.settings.event_types[0].describe()["identifier"]
    assert fields["expver"]["default"] == "0010"
    assert fields["expver"]["required"] is True
    assert list(fields["flag"]["values"]) == ["on", "off", "0001", "2025-01-01"]


@pytest.mark.parametrize("text", ["port: 8080", 'port: "8080"'])
def test_a_port_is_a_number_or_numeric_text(text: str, tmp_path: Path) -> None:
    assert inspected(tmp_path, f"application: {{{text}}}").settings.application.port == 8080


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("{}", encoding="utf-8")
    file.chmod(0)
    found = inspect({}, file)
    # Root may read everything.
    assert bool(found.problems) is (os.geteuid() != 0)
