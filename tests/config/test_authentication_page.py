"""The page about authentication: its configurations can be used and its keys and claims are all there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aviso_server.config.keys import settings_keys
from tests.config.configurations import inspected
from tests.harness import Server
from tests.harness.tokens import bearer, token

PAGE = (Path(__file__).parents[2] / "docs" / "authentication.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_configurations(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "keys.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    monkeypatch.chdir(tmp_path)
    found = inspected(tmp_path, example)
    assert (found.problems, found.warnings) == ((), ())
    assert found.settings.auth.enabled


def test_every_key_is_used_or_named() -> None:
    names = [key.name for key in settings_keys() if key.name.startswith("auth.")]
    assert [name for name in names if name.split(".")[1] not in PAGE] == []


def test_the_answer_about_the_caller_looks_like_this(tmp_path: Path) -> None:
    [shown] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    secret = "something-long-and-random-that-the-proxy-knows-too"
    example = next(text for text in EXAMPLES if "read_roles" in text)
    (tmp_path / "page.yaml").write_text(example + "application: {port: 0}\nnotification_backend: {kind: in_memory}\n")
    with Server(tmp_path / "page.yaml", tmp_path / "server") as server:
        header = bearer(token("reader-user", secret=secret, exp=1_933_135_628))
        answer = server.client.request("GET", "/api/v1/auth/check", None, header).json()
    assert answer | {"request_id": ""} == json.loads(shown) | {"request_id": ""}
