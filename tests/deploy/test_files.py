"""The Dockerfile, the compose file and the systemd unit: what can be checked without running them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from aviso_server.config import inspect
from tests.harness import Server

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
UNIT = (ROOT / "deploy" / "systemd" / "aviso-server.service").read_text()


def instructions(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)


def test_base_images_are_pinned() -> None:
    bases = instructions("FROM")
    assert len(bases) == 2, "one stage to build, one to run"
    assert all(re.match(r"python:\d+\.\d+\.\d+-slim", base) for base in bases)


def test_the_image_does_not_run_as_root() -> None:
    [user] = instructions("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, so that Kubernetes can see that it is not root"
    order = [DOCKERFILE.index(word) for word in ("USER 1", "HEALTHCHECK", "ENTRYPOINT")]
    assert order == sorted(order)


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in instructions("COPY"):
        if "--from=" in line:
            continue
        *sources, _target = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert any(source == each or source.startswith(f"{each}/") for each in allowed), source


def test_builds_leave_nothing_behind() -> None:
    for command in instructions("RUN"):
        assert "apt-get" not in command
        assert "pip install" not in command or "--no-cache-dir" in command
        assert "sudo" not in command
    assert not re.search(r"^ADD ", DOCKERFILE, re.MULTILINE)


def test_the_configuration_of_the_image_can_be_used(tmp_path: Path) -> None:
    found = inspect({}, ROOT / "deploy" / "docker" / "config.yaml")
    assert found.problems == found.warnings == ()
    exposed = {int(port) for line in instructions("EXPOSE") for port in line.split()}
    assert exposed == {found.settings.application.port, found.settings.metrics.port}
    [volume] = instructions("VOLUME")
    assert Path(volume) in found.settings.notification_backend.sqlite.path.parents


def words(name: str) -> list[str]:
    """The words of an instruction in JSON form."""
    [line] = instructions(name)
    found: list[str] = yaml.safe_load(line[line.index("[") :])
    return found


def test_the_commands_of_the_image_work(tmp_path: Path) -> None:
    """The entry point and the health check, outside of a container."""
    assert words("ENTRYPOINT") == ["aviso-server"]
    assert words("CMD") == ["serve"]
    check = words("HEALTHCHECK")
    assert check[0] == "aviso-server"
    config = yaml.safe_load((ROOT / "deploy" / "docker" / "config.yaml").read_text())
    config["application"] = {"host": "127.0.0.1", "port": 0}
    config["metrics"] = {"enabled": False}
    config["notification_backend"]["sqlite"]["path"] = str(tmp_path / "log")
    with Server(config, tmp_path) as server:
        assert asked(check, server.url) == 0
        assert asked([*check, "--ready"], server.url) == 0
        url = server.url
    assert asked(check, url) == 1


def asked(command: list[str], url: str) -> int:
    line = [sys.executable, "-m", "aviso_server", *command[1:], "--url", url]
    return subprocess.run(line, capture_output=True, timeout=20).returncode


def test_compose() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    brokers = [name for name in services if name.startswith("nats-")]
    assert len(brokers) == 3
    for name in brokers:
        routes = next(word for word in services[name]["command"] if word.startswith("--routes="))
        assert all(f"{other}:6222" in routes for other in brokers)
        assert f"--name={name}" in services[name]["command"]
        assert services[name]["volumes"] == [f"{name}:/data"]
        assert services[name]["healthcheck"]["test"][0] == "CMD"
    assert set(services["aviso"]["depends_on"]) == set(brokers)
    assert services["spark"]["profiles"] == ["spark"]
    assert all("profiles" not in services[name] for name in services if name != "spark")
    for name, service in services.items():
        if "build" not in service:
            assert re.search(r":\d+\.\d+\.\d+", service["image"]), f"the image of {name} is not pinned"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists()
            else:
                assert source in COMPOSE["volumes"]
        assert set(service["networks"]) <= set(COMPOSE["networks"])


def test_the_configuration_of_compose_can_be_used() -> None:
    found = inspect({}, ROOT / "deploy" / "compose" / "config.yaml")
    assert found.problems == found.warnings == ()
    jetstream = found.settings.notification_backend.jetstream
    assert jetstream.replicas == 3
    hosts = {url.removeprefix("nats://").split(":")[0] for url in jetstream.nats_url.split(",")}
    assert hosts == {name for name in COMPOSE["services"] if name.startswith("nats-")}


def test_unit(tmp_path: Path) -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert settings["User"] not in ("", "root")
    assert settings["ExecStart"].endswith("aviso-server serve")
    assert settings["NoNewPrivileges"] == "yes"
    assert int(settings["TimeoutStopSec"]) > 30
    assert settings["WorkingDirectory"] == f"/var/lib/{settings['StateDirectory']}"
    analyse = shutil.which("systemd-analyze")
    if analyse is not None:
        # the program and the user need not exist here
        text = UNIT.replace("/opt/aviso-server/bin/aviso-server", sys.executable).replace("=aviso\n", "=daemon\n")
        file = tmp_path / "aviso-server.service"
        file.write_text(text)
        result = subprocess.run([analyse, "verify", str(file)], capture_output=True, text=True, timeout=60)
        complaints = [line for line in result.stderr.splitlines() if "aviso-server.service" in line]
        assert complaints == [], result.stderr
