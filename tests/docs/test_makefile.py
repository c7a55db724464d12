"""What `make serve` and `make test` run with the variables that the first lines of the Makefile explain."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVE = ".venv/bin/aviso-server serve --config"
BASE_URL = "AVISOSERVER_APPLICATION__BASE_URL"


def runs(target: str, *given: str, **environment: str) -> str:
    """Return what make would print and run, if nothing was prepared yet."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOST", "PORT", "MAKEFLAGS", "MAKELEVEL", "ARGS", "WORKERS", BASE_URL)
    }
    shown = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, *given],
        cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return shown.stdout


def serves(*given: str, **environment: str) -> str:
    """Return the command that starts the server."""
    return runs("serve", *given, **environment).splitlines()[-1]


def pytest_arguments(*arguments: str) -> str:
    """Return the arguments of pytest."""
    return runs("test", *arguments).splitlines()[-1].partition(" -m pytest ")[2]


def test_the_example_as_it_is() -> None:
    assert serves() == f"{SERVE} examples/config.yaml"
    assert serves(HOST="box") == serves(), "some shells export it as the name of the machine"


@pytest.mark.parametrize(
    ("given", "address", "options"),
    [
        (["PORT=9000"], "127.0.0.1:9000", "--port 9000"),
        (["HOST=192.0.2.1"], "192.0.2.1:8000", "--host 192.0.2.1"),
        (["HOST=0.0.0.0", "PORT=9000"], "127.0.0.1:9000", "--host 0.0.0.0 --port 9000"),
        (["HOST=::1"], "[::1]:8000", "--host ::1"),
    ],
)
def test_events_name_the_address_that_was_given(given: list[str], address: str, options: str) -> None:
    assert serves(*given) == f"{BASE_URL}=http://{address} {SERVE} examples/config.yaml {options}"


def test_a_base_url_of_ones_own_stays() -> None:
    assert serves("PORT=9000", "CONFIG=my.yaml") == f"{SERVE} my.yaml --port 9000"
    named = serves("PORT=9000", **{BASE_URL: "https://aviso.example.org"})
    assert named == f"{SERVE} examples/config.yaml --port 9000"


def test_backends() -> None:
    apart = (
        "AVISOSERVER_ARCHIVE__PATH=data/archive-jetstream AVISOSERVER_ARCHIVE__WORK_PATH=data/pipeline-jetstream "
        "AVISOSERVER_LATENESS__PATH=data/lateness-jetstream"
    )  # an archive belongs to one log
    assert serves("BACKEND=jetstream") == f"{apart} {SERVE} examples/config.yaml --local-broker data/nats"
    assert serves("BACKEND=jetstream", "CONFIG=mine.yaml") == f"{SERVE} mine.yaml --local-broker data/nats"
    kind = "AVISOSERVER_NOTIFICATION_BACKEND__KIND=in_memory AVISOSERVER_ARCHIVE__ENABLED=false"
    assert serves("BACKEND=in_memory") == f"{kind} {SERVE} examples/config.yaml"


def test_long_tests_are_left_out_unless_their_place_is_named() -> None:
    assert pytest_arguments().endswith(' -m "not long" ')
    assert pytest_arguments("ARGS=-k topic -x").endswith(' -m "not long" -k topic -x')
    assert "long" not in pytest_arguments("ARGS=tests/faults")
    assert " -m long " in runs("test-long")
    assert "long" not in runs("test-all").splitlines()[-1]


def test_one_file_is_run_by_one_process() -> None:
    assert pytest_arguments("ARGS=tests/model/test_topic.py -x").startswith("-n 0 ")
    assert pytest_arguments("ARGS=tests/model/test_topic.py", "WORKERS=2").startswith("-n 2 ")
    for several in ("", "tests/model", "tests/model/test_topic.py tests/model/test_run.py"):
        assert pytest_arguments(f"ARGS={several}").startswith("-n 3 ")


@pytest.mark.parametrize(
    ("arguments", "browser", "classes", "connect"),
    [
        ("", True, True, True),
        ("-k topic", True, True, True),
        ("tests/model/test_topic.py", False, False, False),
        ("tests/spark", False, True, True),
        ("tests/spark/test_spark.py", False, True, False),
        ("tests/spark/test_connect.py", False, True, True),
        ("tests/archive/test_end_to_end.py::test_x", False, True, False),
        ("tests/browser/test_live.py", True, False, False),
        ("tests/model tests/browser", True, True, False),
    ],
)
def test_only_what_the_tests_need_is_prepared(arguments: str, browser: bool, classes: bool, connect: bool) -> None:
    prepared = runs("test", f"ARGS={arguments}", "CLASSES=none/classes", "CONNECT=none/connect")
    assert ("Installing Chromium" in prepared) == browser
    assert ("tests.java_classes none/classes" in prepared) == classes
    assert ("--target none/connect" in prepared) == connect
