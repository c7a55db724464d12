"""Values files of the published aviso chart: our chart takes them as they are and makes of them what they say."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aviso_server.config import Inspection, inspect
from tests.deploy.rendering import Failed, container, documents, environment, published

FILES = ("in-memory", "jetstream", "auth", "ecpds", "annotations")
ELSEWHERE = {"token": "t", "jwt-secret": "a secret of at least thirty-two letters", "username": "u", "password": "p"}


def pod(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return dict(found["Deployment"]["spec"]["template"])


def inspected(found: dict[str, dict[str, Any]], directory: Path) -> Inspection:
    file = directory / "config.yaml"
    file.write_text(found["ConfigMap"]["data"]["config.yaml"])
    return inspect(environment(found, ELSEWHERE), file)


@pytest.mark.parametrize("name", FILES)
def test_the_configuration_is_fit_to_start(name: str, tmp_path: Path) -> None:
    """The file is checked by the command, with the variables of the container."""
    found = documents(published(name))
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap"]["data"]["config.yaml"])
    result = subprocess.run(
        [sys.executable, "-m", "aviso_server", "check", str(file), "--json"],
        env=environment(found, ELSEWHERE),
        capture_output=True,
        timeout=120,
    )
    report = json.loads(result.stdout)
    assert (report["ok"], report["problems"]) == (True, [])
    # the published values still name a key that has no effect any more
    assert {warning["key"] for warning in report["warnings"]} <= {
        "notification_backend.jetstream.enable_auto_reconnect"
    }
    assert result.returncode == 0


@pytest.mark.parametrize("name", FILES)
def test_ports_are_those_of_the_configuration(name: str, tmp_path: Path) -> None:
    found = documents(published(name))
    settings = inspected(found, tmp_path).settings
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    expected: dict[str, int | None] = {"http": settings.application.port}
    if settings.metrics.enabled:
        expected["metrics"] = settings.metrics.port
    assert ports == expected
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == set(ports)
    assert settings.application.host == "0.0.0.0"


def test_in_memory(tmp_path: Path) -> None:
    found = documents(published("in-memory"))
    settings = inspected(found, tmp_path).settings
    assert settings.notification_backend.kind == "in_memory"
    assert settings.watch_endpoint.max_historical_notifications == 10000
    assert settings.metrics.enabled is False
    assert settings.log_level == "info"
    assert settings.log_levels, "RUST_LOG of extraEnv counts"
    assert "PersistentVolumeClaim" not in found
    assert found["Deployment"]["metadata"]["name"] == "test-notices"
    assert found["Deployment"]["spec"]["replicas"] == 1
    [http] = found["Service"]["spec"]["ports"]
    assert (http["port"], found["Service"]["spec"]["type"]) == (8000, "NodePort")
    spec = pod(found)["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert spec["affinity"] == {"nodeAffinity": {}}
    server = container(found)
    assert server["image"] == "registry.example.org/aviso/aviso_server:0.9.1"
    assert server["imagePullPolicy"] == "Always"
    assert server["resources"]["limits"] == {"cpu": "2000m", "memory": "2Gi"}
    assert server["livenessProbe"]["initialDelaySeconds"] == 30
    assert server["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert server["securityContext"]["readOnlyRootFilesystem"] is True, "an empty map changes nothing"


def test_credentials_for_a_registry() -> None:
    found = documents(published("in-memory"))
    [named] = pod(found)["spec"]["imagePullSecrets"]
    secret = found[named["name"]]
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    decoded = json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))
    credentials = {
        "username": "puller",
        "password": "open sesame",
        "auth": base64.b64encode(b"puller:open sesame").decode(),
    }
    assert decoded == {"auths": {"registry.example.org": credentials}}


def test_the_registry_of_the_image_counts_if_none_is_given() -> None:
    pulling = {"enabled": True, "username": "u", "password": "p"}
    found = documents({"image": {"repository": "images.example.org/aviso"}, "imagePullSecrets": pulling})
    data = found["test-aviso-server-registry"]["data"][".dockerconfigjson"]
    assert list(json.loads(base64.b64decode(data))["auths"]) == ["images.example.org"]
    with pytest.raises(Failed, match=r"imagePullSecrets\.registry"):
        documents({"imagePullSecrets": pulling})


def test_an_ingress_with_hosts() -> None:
    ingress = documents(published("in-memory"))["Ingress"]
    assert ingress["metadata"]["annotations"] == {
        "nginx.org/proxy-buffering": "false",
        "nginx.org/proxy-read-timeout": "7200s",  # the user's own
        "nginx.org/proxy-send-timeout": "1800s",
    }
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["notices.example.org"], "secretName": "notices-tls"}]
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert (rule["host"], path["path"], path["pathType"]) == ("notices.example.org", "/", "Prefix")
    assert path["backend"] == {"service": {"name": "test-notices", "port": {"name": "http"}}}


def test_an_ingress_with_one_host_in_two_parts(tmp_path: Path) -> None:
    found = documents(published("jetstream"))
    ingress = found["Ingress"]
    prefix = "nginx.ingress.kubernetes.io"
    assert ingress["metadata"]["annotations"] == {
        f"{prefix}/proxy-buffering": "off",
        f"{prefix}/proxy-read-timeout": "3600",
        f"{prefix}/proxy-send-timeout": "3600",
    }
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["aviso.dev.example.org"]
    assert ingress["spec"]["tls"] == [{"hosts": ["aviso.dev.example.org"], "secretName": "aviso-tls"}]
    assert inspected(found, tmp_path).settings.application.base_url == "https://aviso.dev.example.org"


@pytest.mark.parametrize("tuning", [{"enabled": False}, {"controller": ""}])
def test_an_ingress_without_tuning(tuning: dict[str, Any]) -> None:
    bare = {"enabled": True, "streamingTuning": tuning}
    assert "annotations" not in documents({"ingress": bare})["Ingress"]["metadata"]
    own = documents({"ingress": {**bare, "annotations": {"a": "b"}}})["Ingress"]
    assert own["metadata"]["annotations"] == {"a": "b"}


def test_base_url(tmp_path: Path) -> None:
    def base_url(values: dict[str, Any]) -> str:
        return inspected(documents(values), tmp_path).settings.application.base_url

    own = {"application": {"base_url": "https://own.example.org"}}
    assert base_url({}) == "http://aviso-server"
    assert base_url({"ingress": {"enabled": True}}) == "http://aviso.example.org"
    assert base_url({"ingress": {"enabled": True}, "config": own}) == "https://own.example.org"


def test_as_many_servers_as_are_needed(tmp_path: Path) -> None:
    found = documents(published("jetstream"))
    settings = inspected(found, tmp_path).settings
    jetstream = settings.notification_backend.jetstream
    assert jetstream.max_bytes == 2147483648
    assert jetstream.token is not None, "from extraEnv"
    assert settings.logging.otlp.enabled is True
    assert settings.strict is True
    assert "replicas" not in found["Deployment"]["spec"], "they are the scaler's"
    assert found["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"
    scaler = found["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    targets = {each["resource"]["name"]: each["resource"]["target"] for each in scaler["metrics"]}
    assert targets == {
        "cpu": {"type": "Utilization", "averageUtilization": 60},
        "memory": {"type": "Utilization", "averageUtilization": 75},
    }


def test_authentication(tmp_path: Path) -> None:
    values = published("auth")
    found = documents(values)
    settings = inspected(found, tmp_path).settings
    assert settings.auth.enabled is True
    assert settings.auth.jwt_secret == values["authSecret"]["jwtSecret"]
    secret = found["shared-secret"]
    assert secret["type"] == "Opaque"
    assert base64.b64decode(secret["data"]["jwt-secret"]).decode() == values["authSecret"]["jwtSecret"]
    assert values["authSecret"]["jwtSecret"] not in found["ConfigMap"]["data"]["config.yaml"]
    names = [each["name"] for each in container(found)["env"]]
    assert len(names) == len(set(names)), "the variable of extraEnv is not there twice"
    without = documents({**values, "extraEnv": []})
    assert environment(without)["AVISOSERVER_AUTH__JWT_SECRET"] == values["authSecret"]["jwtSecret"]
    with pytest.raises(Failed, match=r"authSecret\.jwtSecret"):
        documents({"authSecret": {"enabled": True}})


def test_metrics() -> None:
    monitor = documents(published("auth"))["ServiceMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"] == [
        {"port": "metrics", "path": "/metrics", "interval": "15s", "scrapeTimeout": "10s"}
    ]
    off = documents({"metrics": {"serviceMonitor": {"enabled": True}}, "config": {"metrics": {"enabled": False}}})
    assert "ServiceMonitor" not in off
    assert [port["name"] for port in off["Service"]["spec"]["ports"]] == ["http"]


def test_ecpds(tmp_path: Path) -> None:
    settings = inspected(documents(published("ecpds")), tmp_path).settings
    assert settings.ecpds.servers == ("https://ecpds-1.example.org", "https://ecpds-2.example.org")
    assert (settings.ecpds.username, settings.ecpds.password) == ("u", "p")
    assert settings.ecpds.partial_outage_policy == "any_success"
    assert settings.stream_auth["dissemination"].plugins == ("ecpds",)


def test_annotations() -> None:
    found = documents(published("annotations"))
    included = {"logs.example.org/include": "true"}
    assert included.items() <= pod(found)["metadata"]["annotations"].items()
    assert "checksum/config" in pod(found)["metadata"]["annotations"]
    assert found["Service"]["metadata"]["annotations"] == included


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nats": {"enabled": True}}, r": nats\.enabled: .*notification_backend\.jetstream\.nats_url"),
        ({"auth-o-tron": {"enabled": True}}, r": auth-o-tron\.enabled: .*config\.auth\.auth_o_tron_url"),
        ({"autoscaling": {"enabled": True}}, r": autoscaling\.enabled needs .*jetstream, not sqlite"),
        (
            {"autoscaling": {"enabled": True}, "config": {"notification_backend": {"kind": "in_memory"}}},
            r": autoscaling\.enabled needs .*jetstream, not in_memory",
        ),
        ({"ingress": {"enabled": True, "hosts": []}}, r": ingress\.hosts is empty"),
        ({"ingress": {"enabled": True, "tls": {"enabled": True}}}, r": ingress\.tls\.secretName is empty"),
        (
            {"ingress": {"enabled": True, "streamingTuning": {"controller": "other"}}},
            r": ingress\.streamingTuning\.controller is 'other', accepted are nginx-org, ingress-nginx",
        ),
    ],
)
def test_what_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(Failed, match=words):
        documents(values)
