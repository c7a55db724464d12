"""The Dockerfile, the compose file and the systemd unit: what can be checked without running them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from aviso_server.cli import main
from aviso_server.config import inspect
from aviso_server.log.jetstream.local_broker import find_broker
from tests.harness import Server

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
UNIT = (ROOT / "deploy" / "systemd" / "aviso-server.service").read_text()


def instructions(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)


def test_base_images_are_explicit() -> None:
    bases = instructions("FROM")
    assert len(bases) == 2, "one stage to build, one to run"
    assert [base.split()[0] for base in bases] == ["${PYTHON}"] * 2, "what is built is run by the same Python"
    arguments = dict(line.split("=", 1) for line in instructions("ARG"))
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", arguments["PYTHON"])
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (
        f"Programming Language :: Python :: {arguments['PYTHON'].split(':')[1].split('-')[0]}" in about["classifiers"]
    )
    extras = set(arguments["EXTRAS"].split(","))
    assert extras <= set(about["optional-dependencies"])
    assert "java" in extras, "or the archive could not be turned on"


def test_the_image_does_not_run_as_root() -> None:
    [user] = instructions("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, so that Kubernetes can see that it is not root"
    order = [DOCKERFILE.index(word) for word in ("USER 1", "HEALTHCHECK", "ENTRYPOINT")]
    assert order == sorted(order)


def test_the_data_source_brings_no_packages_of_the_server() -> None:
    text = (ROOT / "packages" / "pyspark-aviso" / "pyproject.toml").read_text(encoding="utf-8")
    needed = {re.split(r"[<>=\[ ]", each)[0] for each in tomllib.loads(text)["project"]["dependencies"]}
    assert needed == {"httpx", "pyarrow", "pyspark"}
    assert "./packages/pyspark-aviso" in DOCKERFILE, "pip finds the dependency of the server here, and in no index"


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
    return subprocess.run(line, capture_output=True, timeout=120).returncode


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
            assert re.search(r":\d+\.\d+", service["image"]), f"the version of the image of {name} is not explicit"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists()
            else:
                assert source in COMPOSE["volumes"]
        assert set(service["networks"]) <= set(COMPOSE["networks"])
    used = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert set(COMPOSE["volumes"]) <= used


@pytest.mark.parametrize("name", ["aviso", "spark"])
def test_services_of_our_image_fit_to_it(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["build"] == "."
    targets = {volume.split(":")[1] for volume in service["volumes"]}
    [volume] = instructions("VOLUME")
    # A new volume has the owner of the folder that it is mounted on, so only this one can be written to.
    assert targets == {volume, "/etc/aviso_server/config.yaml"}
    assert instructions("WORKDIR")[-1] == volume, "relative paths are in the volume"
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    variables = service.get("environment", {})
    environ = {key: re.sub(r"\$\{\w+:-(\w*)\}", r"\1", value) for key, value in variables.items()}
    found = inspect(environ, ROOT / "deploy" / "compose" / "config.yaml")
    assert found.problems == found.warnings == ()
    assert found.settings.archive.enabled is False
    on = inspect({"AVISOSERVER_ARCHIVE__ENABLED": "true"}, ROOT / "deploy" / "compose" / "config.yaml")
    assert on.settings.archive.enabled is True
    if name == "aviso":
        ports = {int(each.split(":")[-1]) for each in (*service["ports"], *service["expose"])}
        assert ports == {found.settings.application.port, found.settings.metrics.port}


@pytest.mark.parametrize("name", ["aviso", "spark"])
def test_commands_of_compose_are_ours(name: str) -> None:
    command: Any = main
    words = list(COMPOSE["services"][name]["command"])
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None
    given = command.make_context(name, words).params
    if name == "spark":
        [port] = {each.split(":")[-1] for each in COMPOSE["services"]["aviso"]["ports"]}
        assert given["url"] == f"http://aviso:{port}"
        assert Path(given["path"]).is_relative_to(instructions("VOLUME")[0])


def test_brokers_take_their_arguments(tmp_path: Path) -> None:
    """A broker looks at its arguments and ends before it listens."""
    program, file = find_broker(), tmp_path / "broker.conf"
    file.write_text("port: 4222")
    for name, service in COMPOSE["services"].items():
        if name.startswith("nats-"):
            words = [word.replace("/data", str(tmp_path)) for word in service["command"]]
            result = subprocess.run([program, "-c", file, *words, "-t"], capture_output=True, text=True, timeout=120)
            assert result.returncode == 0
            assert "is valid" in result.stderr, result.stderr


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
        result = subprocess.run([analyse, "verify", str(file)], capture_output=True, text=True, timeout=120)
        complaints = [line for line in result.stderr.splitlines() if "aviso-server.service" in line]
        assert complaints == [], result.stderr
