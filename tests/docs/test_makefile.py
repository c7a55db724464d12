"""What `make serve` runs with the variables that its first lines explain."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVE = ".venv/bin/aviso-server serve --config"
BASE_URL = "AVISOSERVER_APPLICATION__BASE_URL"


def serves(*given: str, **environment: str) -> str:
    """The command that would be run."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOST", "PORT", "MAKEFLAGS", "MAKELEVEL", BASE_URL)
    }
    shown = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "serve", *given],
        cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return shown.stdout.splitlines()[-1]


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
    assert serves("BACKEND=jetstream") == f"{SERVE} examples/config.yaml --local-broker data/nats"
    kind = "AVISOSERVER_NOTIFICATION_BACKEND__KIND=in_memory AVISOSERVER_ARCHIVE__ENABLED=false"
    assert serves("BACKEND=in_memory") == f"{kind} {SERVE} examples/config.yaml"
