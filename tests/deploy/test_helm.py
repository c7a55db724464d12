"""The chart: rendered with several values, what comes out is what Kubernetes and our own checks accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from aviso_server import __version__
from aviso_server.config import inspect
from tests.deploy.go_template import Chart, Failed

DIRECTORY = Path(__file__).parents[2] / "deploy" / "helm" / "aviso-server"
CHART = Chart(DIRECTORY)
JETSTREAM = {"config": {"notification_backend": {"kind": "jetstream", "jetstream": {"replicas": 3}}}}
VALUES: dict[str, dict[str, Any]] = {
    "as delivered": {},
    "three pods": {**JETSTREAM, "replicaCount": 3, "podDisruptionBudget": {"enabled": True}},
    "everything": {
        "ingress": {"enabled": True, "className": "nginx", "tls": [{"hosts": ["a.example.org"], "secretName": "tls"}]},
        "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "service": {"annotations": {"a": "b"}},
        "existingSecret": "secrets",
        "extraEnv": [{"name": "RUST_LOG", "value": "debug"}],
        "extraVolumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "extraVolumeMounts": [{"name": "keys", "mountPath": "/keys"}],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "podLabels": {"team": "x"},
        "podAnnotations": {"b": "c"},
        "serviceAccount": {"annotations": {"c": "d"}},
        "persistence": {"storageClass": "fast"},
        "image": {"tag": "9.9.9"},
    },
    "little": {
        "metrics": {"enabled": False},
        "persistence": {"enabled": False},
        "serviceAccount": {"create": False},
        "fullnameOverride": "mine",
    },
}


def documents(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is rendered, by kind."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in CHART.render(values).items():
        if name.endswith(".yaml"):
            document = yaml.safe_load(text)
            found[document["kind"]] = document
    return found


@pytest.mark.parametrize("name", VALUES)
def test_what_is_rendered_fits_together(name: str) -> None:
    found = documents(VALUES[name])
    deployment = found["Deployment"]
    pod = deployment["spec"]["template"]
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"] == labels
    [container] = pod["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == ports
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    for document in found.values():
        assert document["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert len(document["metadata"]["name"]) <= 63


@pytest.mark.parametrize("name", VALUES)
def test_the_server_starts_with_what_is_rendered(name: str, tmp_path: Path) -> None:
    found = documents(VALUES[name])
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap"]["data"]["config.yaml"])
    environ = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    inspected = inspect(environ, file)
    assert inspected.problems == ()
    assert inspected.settings.application.host == "0.0.0.0"
    assert inspected.settings.metrics.enabled is (name != "little")
    if inspected.settings.notification_backend.kind == "sqlite":
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert str(inspected.settings.notification_backend.sqlite.path.parent) in paths


@pytest.mark.parametrize("name", VALUES)
def test_nobody_is_root(name: str) -> None:
    pod = documents(VALUES[name])["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_rolling_restarts() -> None:
    one, three = documents({})["Deployment"]["spec"], documents(VALUES["three pods"])["Deployment"]["spec"]
    assert one["strategy"] == {"type": "Recreate"}, "two pods cannot share a sqlite log"
    assert three["replicas"] == 3
    assert three["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = three["template"]["spec"]
    [wait] = [int(word) for word in pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] if word.isdigit()]
    assert pod["terminationGracePeriodSeconds"] > wait + 30
    before = one["template"]["metadata"]["annotations"]["checksum/config"]
    changed = documents({"config": {"application": {"base_url": "https://a"}}})["Deployment"]["spec"]["template"]
    assert changed["metadata"]["annotations"]["checksum/config"] != before, "a new configuration restarts the pods"


def test_what_is_made_only_when_asked_for() -> None:
    assert set(documents({})) == {"ConfigMap", "Deployment", "PersistentVolumeClaim", "Service", "ServiceAccount"}
    assert set(documents(VALUES["little"])) == {"ConfigMap", "Deployment", "Service"}
    everything = documents(VALUES["everything"])
    assert {"Ingress", "ServiceMonitor"} <= set(everything)
    [rule] = everything["Ingress"]["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == everything["Service"]["metadata"]["name"]
    [container] = everything["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "aviso-server:9.9.9"
    assert container["envFrom"] == [{"secretRef": {"name": "secrets"}}]
    assert "PodDisruptionBudget" in documents(VALUES["three pods"])
    assert "PersistentVolumeClaim" not in documents(VALUES["three pods"])


def test_several_pods_need_a_log_that_they_can_share() -> None:
    with pytest.raises(Failed, match="jetstream"):
        documents({"replicaCount": 2})


def test_versions() -> None:
    chart = yaml.safe_load((DIRECTORY / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
