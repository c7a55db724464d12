"""What a configuration file may look like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aviso_server.config import inspect
from tests.config.configurations import inspected, problems_at


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
